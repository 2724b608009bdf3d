"""Sinkhorn: logits to nearly doubly stochastic matrices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Tuple

from mindspore import Tensor

from aclnn_adapter import operators as aclnn
from aclnn_adapter.operators import Argument
from ms_mhc import checks, parallel
from ms_mhc.backends import registry
from ms_mhc.dispatch import Options, joined, specs
from ms_mhc.operation import Operation
from ms_mhc.operators import scaling
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


def _forward(h_res: Tensor, eps: float, num_iters: int, recipe: str) -> Tuple[Tensor, Tensor]:
    """The steps of :func:`ms_mhc.reference.mhc_sinkhorn`, and the scaling vectors of all of them."""
    n = h_res.shape[-1]
    out, scalings = scaling.forward(h_res.reshape(-1, n, n), eps, num_iters, recipe)
    return out.reshape(h_res.shape), scalings.reshape(h_res.shape[:-1] + (2 * num_iters,))


def _backward(
    grad_output: Tensor, h_res: Tensor, out: Tensor, scalings: Tensor, eps: float, num_iters: int, recipe: str
) -> Tuple[Tensor]:
    """The derivative of what :func:`_forward` computed, step by step."""
    n = h_res.shape[-1]
    grad_output, logits, out = grad_output.reshape(-1, n, n), h_res.reshape(-1, n, n), out.reshape(-1, n, n)
    scalings = scalings.reshape(-1, 2 * num_iters * n)
    return (scaling.backward(grad_output, logits, out, scalings, eps, num_iters, recipe).reshape(h_res.shape),)


# The vendor's kernels save norms and sums for their backward; the C++ kernels compute them again from the logits.
_ATTRIBUTES = (*aclnn.MHC_SINKHORN.attrs, Argument("recipe", "attr", default="deepseek_v4"))
_CONTRACT = aclnn.MHC_SINKHORN.with_arguments(*aclnn.MHC_SINKHORN.inputs, *_ATTRIBUTES, aclnn.MHC_SINKHORN.outputs[0])
_BACKWARD_CONTRACT = aclnn.MHC_SINKHORN_BACKWARD.with_arguments(
    aclnn.MHC_SINKHORN_BACKWARD.inputs[0],
    *aclnn.MHC_SINKHORN.inputs,
    *_ATTRIBUTES,
    *aclnn.MHC_SINKHORN_BACKWARD.outputs,
)
# MindSpore ops save the matrices and the scaling vectors, in an order of their own: a launch costs more than these few
# numbers.
SCALINGS = Argument("scalings", "output", dtype="float32", shape=("T", "N", "2*I"))
_COMPOSITE = _CONTRACT.with_arguments(*_CONTRACT.arguments, SCALINGS)
_COMPOSITE_BACKWARD = _BACKWARD_CONTRACT.with_arguments(
    *_BACKWARD_CONTRACT.inputs,
    replace(aclnn.MHC_SINKHORN.outputs[0], role="input"),
    replace(SCALINGS, role="input"),
    *_ATTRIBUTES,
    *_BACKWARD_CONTRACT.outputs,
)

MHC_SINKHORN = Operation(
    "mhc_sinkhorn",
    contracts={"forward": _CONTRACT, "backward": _BACKWARD_CONTRACT},
    composite={"forward": _forward, "backward": _backward},
    composite_contracts={"forward": _COMPOSITE, "backward": _COMPOSITE_BACKWARD},
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
        checks.iterations("MhcSinkhorn", "num_iters", num_iters)
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
