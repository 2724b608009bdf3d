"""fp32 arithmetic in MindSpore ops, for the operators' formulas.

All arithmetic is fp32, with one cast on the way in and one on the way out. Where the formulas multiply a large tensor
by a broadcast small one, a matrix product stands instead: MindSpore's CPU kernels are an order of magnitude faster at
products than at broadcasting, and no temporary is larger than x. Parts of a tensor are slices, not ``mint.split``: that
makes views, and graph mode gave the gradients of one layer's parameters to another's.
"""

from __future__ import annotations

from typing import Any, Tuple

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, ops
from mindspore.ops import constexpr

from aclnn_adapter import platform

matmul = ops.MatMul()
matmul_tn = ops.MatMul(transpose_a=True)
matmul_nt = ops.MatMul(transpose_b=True)
bmm = ops.BatchMatMul()
bmm_tn = ops.BatchMatMul(transpose_a=True)
bmm_nt = ops.BatchMatMul(transpose_b=True)

# MindSpore's CPU adds one after the other in fp32, so that the error grows with the length of a sum.
_LONGEST_SUM = 128
# Below it exp(-z) is infinite in float32, and the derivative of 1 / (1 + exp(-z)) no number.
_LEAST_LOGIT = -87.0


def float32(x: Tensor) -> Tensor:
    """x in float32."""
    return ops.cast(x, ms.float32)


@constexpr
def fused() -> bool:
    """Whether the device adds to a product in the same launch: MindSpore has no such kernel for the CPU."""
    return platform.device_target() == "Ascend"


def plus_bmm(before: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """before + a @ b."""
    return mint.baddbmm(before, a, b) if fused() else before + bmm(a, b)


def sigmoid(z: Tensor) -> Tensor:
    """The logistic function, each number by itself: MindSpore's CPU sigmoid rounds all differently where one is NaN."""
    if fused():
        return ops.sigmoid(z)
    bounded = mint.where(z < _LEAST_LOGIT, _LEAST_LOGIT, z)  # mint.clamp would lose NaN on the CPU
    return mint.reciprocal(1.0 + ops.exp(-bounded))


@constexpr
def unit_matrix(n: int) -> Tensor:
    """[n, n]."""
    return Tensor(np.eye(n, dtype=np.float32))


@constexpr
def _parted(length: Any) -> Tuple[int, ...]:
    """How many numbers are summed in parts, once and again, until few are left; nothing where the length is unknown."""
    found: Tuple[int, ...] = ()
    while length is not None and length > _LONGEST_SUM:
        parts, rest = divmod(int(length), _LONGEST_SUM)
        found += (parts * _LONGEST_SUM,)
        length = parts + (rest > 0)
    return found


def sum_of_row(rows: Tensor) -> Tensor:
    """[T, K] to [T, 1], in several steps where K is long."""
    for parted in _parted(rows.shape[1]):
        parts = mint.sum(rows[:, :parted].reshape(-1, parted // _LONGEST_SUM, _LONGEST_SUM), -1)
        if parted < rows.shape[1]:
            parts = mint.cat((parts, mint.sum(rows[:, parted:], -1, True)), -1)
        rows = parts
    return mint.sum(rows, -1, True)


def sum_over_tokens(rows: Tensor) -> Tensor:
    """[T, F] to [F]. Transposed: MindSpore's CPU sum over a long leading axis loses a decimal digit in fp32."""
    return sum_of_row(ops.transpose(rows, (1, 0))).reshape(-1)
