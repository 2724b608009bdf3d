"""fp32 arithmetic in MindSpore ops, for the operators' formulas.

All arithmetic is fp32, with one cast on the way in and one on the way out. Where the formulas multiply a large tensor
by a broadcast small one, a matrix product stands instead: MindSpore's CPU kernels are an order of magnitude faster at
products than at broadcasting, and no temporary is larger than x. Parts of a tensor are slices, not ``mint.split``: that
makes views, and graph mode gave the gradients of one layer's parameters to another's.
"""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, ops
from mindspore.ops import constexpr

matmul = ops.MatMul()
matmul_tn = ops.MatMul(transpose_a=True)
matmul_nt = ops.MatMul(transpose_b=True)
bmm = ops.BatchMatMul()
bmm_tn = ops.BatchMatMul(transpose_a=True)
bmm_nt = ops.BatchMatMul(transpose_b=True)

# MindSpore's CPU adds one after the other in fp32, so that the error grows with the length of a sum.
_LONGEST_SUM = 512


def float32(x: Tensor) -> Tensor:
    """x in float32."""
    return ops.cast(x, ms.float32)


@constexpr
def unit_matrix(n: int) -> Tensor:
    """[n, n]."""
    return Tensor(np.eye(n, dtype=np.float32))


@constexpr
def _parted(length: Any) -> int:
    """How much of a length is summed in parts of the longest sum; 0 where it is short or unknown."""
    return 0 if length is None or length <= _LONGEST_SUM else int(length) // _LONGEST_SUM * _LONGEST_SUM


def sum_of_row(rows: Tensor) -> Tensor:
    """[T, K] to [T, 1], in two steps where K is long."""
    length = rows.shape[1]
    parted = _parted(length)
    if parted == 0:
        return mint.sum(rows, -1, True)
    if parted == length:
        return mint.sum(mint.sum(rows.reshape(-1, parted // _LONGEST_SUM, _LONGEST_SUM), -1), -1, True)
    parts = mint.sum(rows[:, :parted].reshape(-1, parted // _LONGEST_SUM, _LONGEST_SUM), -1)
    return mint.sum(parts, -1, True) + mint.sum(rows[:, parted:], -1, True)


def sum_over_tokens(rows: Tensor) -> Tensor:
    """[T, F] to [F], in two steps where T is long.

    As products: MindSpore's CPU sum over a long leading axis loses a decimal digit in fp32.
    """
    parted = _parted(rows.shape[0])
    if parted == 0:
        return _sum_of_rows(rows)
    features = rows.shape[1]
    parts = _sum_of_rows(rows[:parted].reshape(-1, _LONGEST_SUM * features)).reshape(_LONGEST_SUM, features)
    total = _sum_of_rows(parts)
    if parted < rows.shape[0]:
        total = total + _sum_of_rows(rows[parted:])
    return total


def _sum_of_rows(rows: Tensor) -> Tensor:
    return matmul(mint.ones((1, rows.shape[0]), dtype=ms.float32), rows).reshape(-1)
