"""Sinkhorn: logits to nearly doubly stochastic matrices."""

from __future__ import annotations

from typing import Any, Tuple

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, ops
from mindspore.ops import constexpr

from aclnn_adapter import operators as aclnn
from aclnn_adapter.operators import Argument
from ms_mhc import checks, parallel
from ms_mhc.backends import registry
from ms_mhc.dispatch import Options, joined, specs
from ms_mhc.operation import Operation
from ms_mhc.operators.arithmetic import matmul
from ms_mhc.operators.precision import GateCell


def mhc_sinkhorn(
    h_res: Tensor,
    *,
    num_iters: int = 20,
    eps: float = 1e-6,
    recipe: str = "deepseek_v4",
    backend: str = "auto",
) -> Tensor:
    """Logits to nearly doubly stochastic matrices, by Sinkhorn's alternating normalisation (aclnnMhcSinkhorn).

    ``"deepseek_v4"``, what the kernels do::

        y = softmax(h_res, -1) + eps;  y = y / (colsum(y) + eps)
        num_iters - 1 times:           y = y / (rowsum(y) + eps);  y = y / (colsum(y) + eps)

    ``"paper"``, of the mHC paper::

        y = exp(h_res - rowmax(h_res))
        num_iters times:               y = y / (rowsum(y) + eps);  y = y / (colsum(y) + eps)

    A softmax is a row step, so the two take the same steps and differ in where eps enters. The gradient is the
    derivative of what was computed, converged or not.

    Args:
        h_res: logits, [B, S, N, N] or [T, N, N], float32.
        num_iters: >= 1; the kernels take 1 to 100.
        eps: added to every sum before it divides, >= 0.
        recipe: ``"deepseek_v4"`` or ``"paper"``.
        backend: ``"auto"``, or a backend by name.

    Returns:
        The matrices, in the shape of h_res, float32. Row index i is the stream that is read, column index j the stream
        that is written, see :func:`mhc_post`.

    Raises:
        TypeError: an argument of the wrong type or dtype.
        ValueError: matrices that are not square, an empty tensor, num_iters below 1, an unknown recipe or backend.
        RuntimeError: a backend asked for by name that this machine lacks.
    """
    attributes = (eps, num_iters, recipe)
    return joined("mhc_sinkhorn", "mhc_sinkhorn", specs((h_res,)), attributes, Options(backend))((h_res,))[0]


def _same_row(n: int) -> Tensor:
    """[N*N, N*N]: flattened matrices times this are their row sums, repeated over the row."""
    return Tensor(np.kron(np.eye(n), np.ones((n, n))).astype(np.float32))


def _same_column(n: int) -> Tensor:
    return Tensor(np.kron(np.ones((n, n)), np.eye(n)).astype(np.float32))


@constexpr
def _step_sums(n: int, num_iters: int, recipe: str) -> Tuple[Tensor, ...]:
    """Of each Sinkhorn step the matrix whose product with the flattened matrices gives the sums it divides by."""
    row, column = _same_row(n), _same_column(n)
    if recipe == "deepseek_v4":
        return (column,) + (row, column) * (num_iters - 1)
    return (row, column) * num_iters


def _sinkhorn_start(h_res: Tensor, eps: float, recipe: str) -> Tensor:
    """[T, N, N] before the first step."""
    if recipe == "deepseek_v4":
        return ops.softmax(h_res, -1) + eps
    return ops.exp(h_res - ops.amax(h_res, -1, keepdims=True))


def _forward(h_res: Tensor, eps: float, num_iters: int, recipe: str) -> Tuple[Tensor]:
    """The steps of :func:`ms_mhc.reference.mhc_sinkhorn`. Nothing is saved: the backward recomputes."""
    n = h_res.shape[-1]
    y = _sinkhorn_start(h_res.reshape(-1, n, n), eps, recipe).reshape(-1, n * n)
    for sums in _step_sums(n, num_iters, recipe):
        y = y / (matmul(y, sums) + eps)
    return (y.reshape(h_res.shape),)


def _backward(grad_output: Tensor, h_res: Tensor, eps: float, num_iters: int, recipe: str) -> Tuple[Tensor]:
    """The derivative of what :func:`mhc_sinkhorn_forward` computed, step by step."""
    shape, n = h_res.shape, h_res.shape[-1]
    h_res = h_res.reshape(-1, n, n)
    start = _sinkhorn_start(h_res, eps, recipe)
    y = start.reshape(-1, n * n)
    steps = _step_sums(n, num_iters, recipe)
    trace: Tuple[Tuple[Tensor, Tensor], ...] = ()
    for sums in steps:
        total = matmul(y, sums) + eps
        y = y / total
        trace = trace + ((total, y),)

    grad = grad_output.reshape(-1, n * n)
    for k in range(len(steps)):
        total, y = trace[-1 - k]
        grad = (grad - matmul(grad * y, steps[-1 - k])) / total
    grad = grad.reshape(-1, n, n)
    if recipe == "deepseek_v4":
        softmax = start - eps
        return ((softmax * (grad - mint.sum(grad * softmax, -1, True))).reshape(shape),)
    # exp(x - rowmax): the largest entry of each row (the first of equals) is a function of x as well
    grad = grad * start
    largest = ops.one_hot(mint.argmax(h_res, -1), n, Tensor(1.0, ms.float32), Tensor(0.0, ms.float32))
    return ((grad - largest * mint.sum(grad, -1, True)).reshape(shape),)


# The vendor's kernels save norms and sums for their backward; ours compute them again from the logits.
_ATTRIBUTES = (*aclnn.MHC_SINKHORN.attrs, Argument("recipe", "attr", default="deepseek_v4"))
_CONTRACT = aclnn.MHC_SINKHORN.with_arguments(*aclnn.MHC_SINKHORN.inputs, *_ATTRIBUTES, aclnn.MHC_SINKHORN.outputs[0])
_BACKWARD_CONTRACT = aclnn.MHC_SINKHORN_BACKWARD.with_arguments(
    aclnn.MHC_SINKHORN_BACKWARD.inputs[0],
    *aclnn.MHC_SINKHORN.inputs,
    *_ATTRIBUTES,
    *aclnn.MHC_SINKHORN_BACKWARD.outputs,
)

MHC_SINKHORN = Operation(
    "mhc_sinkhorn",
    contracts={"forward": _CONTRACT, "backward": _BACKWARD_CONTRACT},
    composite={"forward": _forward, "backward": _backward},
    kernels={"forward": (aclnn.MHC_SINKHORN,), "backward": (aclnn.MHC_SINKHORN_BACKWARD,)},
    results=1,
    names={"x": "h_res", "out": "grad_h_res"},
)


class MhcSinkhorn(GateCell):
    """:func:`ms_mhc.mhc_sinkhorn` as a cell. It has no parameters.

    Args:
        num_iters: number of iterations, >= 1.
        eps: added to every sum before it divides, >= 0.
        recipe: ``"deepseek_v4"`` (what the kernels do) or ``"paper"``.
        backend: ``"auto"``, or a backend by name.
        layout: how x is split under semi_auto_parallel, see :class:`ms_mhc.HyperConnection`.

    Inputs:
        h_res: logits, [B, S, N, N] or [T, N, N], float32.

    Outputs:
        The nearly doubly stochastic matrices, in the shape of h_res, float32.
    """

    def __init__(
        self,
        num_iters: int = 20,
        eps: float = 1e-6,
        recipe: str = "deepseek_v4",
        backend: str = "auto",
        layout: Any = None,
    ) -> None:
        super().__init__()
        checks.positive_int("MhcSinkhorn", "num_iters", num_iters)
        checks.eps("MhcSinkhorn", "eps", eps)
        checks.one_of("MhcSinkhorn", "recipe", recipe, checks.RECIPES)
        checks.one_of("MhcSinkhorn", "backend", backend, registry.names())
        parallel.check("MhcSinkhorn", layout)
        self.num_iters = int(num_iters)
        self.eps = float(eps)
        self.recipe = recipe
        self.backend = backend
        self.layout = layout

    def construct(self, h_res: Tensor) -> Tensor:
        attributes = (self.eps, self.num_iters, self.recipe)
        options = Options(self.backend, layout=self.layout)
        return joined("MhcSinkhorn", "mhc_sinkhorn", specs((h_res,)), attributes, options)((h_res,))[0]

    def extend_repr(self) -> str:
        return f"num_iters={self.num_iters}, eps={self.eps}, recipe={self.recipe!r}, backend={self.backend!r}"
