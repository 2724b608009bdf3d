"""MhcPre and Sinkhorn in one: what comes out mixes the streams as it is."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, Optional, Tuple

import mindspore as ms
from mindspore import Tensor, nn
from mindspore.ops import constexpr

from aclnn_adapter import operators as aclnn
from aclnn_adapter.operators import Argument
from aclnn_adapter.platform import called_eagerly
from ms_mhc.dispatch import CELLS_KEPT, Options, cell_for, has_kernel, present, specs
from ms_mhc.operation import Operation
from ms_mhc.operators import pre, sinkhorn
from ms_mhc.operators.precision import entering


def mhc_pre_sinkhorn(
    x: Tensor,
    phi: Tensor,
    alpha: Tensor,
    bias: Tensor,
    gamma: Optional[Tensor] = None,
    *,
    num_iters: int = 20,
    norm_eps: float = 1e-6,
    hc_eps: float = 1e-6,
    sinkhorn_eps: float = 1e-6,
    recipe: str = "deepseek_v4",
    precision: str = "float32",
    backend: str = "auto",
) -> Tuple[Tensor, Tensor, Tensor]:
    """:func:`ms_mhc.mhc_pre`, and :func:`ms_mhc.mhc_sinkhorn` of its h_res (aclnnMhcPreSinkhorn).

    One kernel where the backend has one, otherwise the two operators, each on the best backend for it. The vendor's
    kernel multiplies in HF32, so it is taken only with ``precision="hf32"``; its limits and its deviations of the order
    of hc_eps stand in the README.

    Args:
        x, phi, alpha, bias, gamma: as in :func:`ms_mhc.mhc_pre`.
        num_iters, recipe: as in :func:`ms_mhc.mhc_sinkhorn`.
        norm_eps, hc_eps: as in :func:`ms_mhc.mhc_pre`.
        sinkhorn_eps: the eps of :func:`ms_mhc.mhc_sinkhorn`. The vendor's kernel has one eps for both and is taken
            where they are equal.
        precision: of the product with phi, see :func:`ms_mhc.mhc_pre`.
        backend: ``"auto"``, or a backend by name.

    Returns:
        ``(h_in, h_post, h_res)`` as :func:`ms_mhc.mhc_pre`, but h_res are the matrices after Sinkhorn.

    Raises:
        TypeError, ValueError, RuntimeError: as :func:`ms_mhc.mhc_pre` and :func:`ms_mhc.mhc_sinkhorn`.
    """
    attributes = (norm_eps, hc_eps, sinkhorn_eps, num_iters, recipe)
    tensors = (x, phi, alpha, bias, gamma)
    cell = pre_sinkhorn("mhc_pre_sinkhorn", specs(tensors), attributes, Options(backend, precision))
    return cell(present(tensors))[:3]


class _InParts(nn.Cell):
    """MhcPre, then Sinkhorn of its h_res."""

    def __init__(self, pre: nn.Cell, sinkhorn: nn.Cell) -> None:
        super().__init__()
        self.pre = pre
        self.sinkhorn = sinkhorn

    def __call__(self, inputs: Tuple[Tensor, ...]) -> Tuple[Tensor, ...]:
        if not called_eagerly():
            inputs = entering("mhc_pre_sinkhorn", self.pre.names, inputs)
        return super().__call__(inputs)

    def construct(self, inputs: Tuple[Tensor, ...]) -> Tuple[Tensor, ...]:
        out = self.pre(inputs)
        matrices = self.sinkhorn((out[2],))
        return out[:2] + matrices[:1] + out[3:]


@constexpr(check=False)
def pre_sinkhorn(
    caller: str, arguments: Tuple[Any, ...], attributes: Tuple[Any, ...], options: Tuple[Any, ...]
) -> nn.Cell:
    """The cell for both: in one piece where a backend has it, else the two, which may find better ones.

    Its first three outputs are h_in, h_post and the matrices; with ``share`` the last one is x.
    """
    if has_kernel(caller, "mhc_pre_sinkhorn", arguments, attributes, options):
        return cell_for(caller, "mhc_pre_sinkhorn", arguments, attributes, options)
    norm_eps, hc_eps, sinkhorn_eps, num_iters, recipe = attributes
    chosen = Options(*options)
    first = cell_for(caller, "mhc_pre", arguments, (norm_eps, hc_eps), chosen)
    x_shape = arguments[0][0]
    logits = ((x_shape[:-1] + x_shape[-2:-1], ms.float32),)
    steps = chosen._replace(precision="float32", share=False, sizes=None)
    second = cell_for(caller, "mhc_sinkhorn", logits, (sinkhorn_eps, num_iters, recipe), steps)
    return _made(first, second)


@lru_cache(maxsize=CELLS_KEPT)
def _made(pre: nn.Cell, sinkhorn: nn.Cell) -> _InParts:
    return _InParts(pre, sinkhorn)


def _forward(
    x: Tensor,
    phi: Tensor,
    alpha: Tensor,
    bias: Tensor,
    gamma: Optional[Tensor],
    norm_eps: float,
    hc_eps: float,
    sinkhorn_eps: float,
    num_iters: int,
    recipe: str,
) -> Tuple[Tensor, ...]:
    """The formulas of :func:`ms_mhc.reference.mhc_pre_sinkhorn`."""
    out = pre._forward(x, phi, alpha, bias, gamma, norm_eps, hc_eps)
    matrices, scalings = sinkhorn._forward(out[2], sinkhorn_eps, num_iters, recipe)
    return out[:2] + (matrices,) + out[3:] + (scalings,)


def _backward(
    x: Tensor,
    phi: Tensor,
    alpha: Tensor,
    bias: Tensor,
    grad_h_in: Tensor,
    grad_h_post: Tensor,
    grad_h_res: Tensor,
    inv_rms: Tensor,
    h_mix: Tensor,
    h_pre: Tensor,
    h_post: Tensor,
    gamma: Optional[Tensor],
    grad_x_post: Optional[Tensor],
    h_res: Tensor,
    scalings: Tensor,
    hc_eps: float,
    sinkhorn_eps: float,
    num_iters: int,
    recipe: str,
) -> Tuple[Optional[Tensor], ...]:
    """The formulas of :func:`ms_mhc.reference.mhc_pre_sinkhorn_backward`."""
    n = x.shape[-2]
    h_mix_res = h_mix.reshape(-1, h_mix.shape[-1])[:, 2 * n :]
    logits = h_mix_res * inv_rms.reshape(-1, 1) * alpha[2:3] + bias[2 * n :]
    logits = logits.reshape(grad_h_res.shape)
    grad_logits = sinkhorn._backward(grad_h_res, logits, h_res, scalings, sinkhorn_eps, num_iters, recipe)
    return pre._backward(
        x, phi, alpha, grad_h_in, grad_h_post, *grad_logits, inv_rms, h_mix, h_pre, h_post, gamma, grad_x_post, hc_eps
    )


_SINKHORN = (
    Argument("sinkhornEps", "attr", c_type="double", default=1e-6),
    Argument("numIters", "attr", c_type="int64_t", default=20),
    Argument("recipe", "attr", default="deepseek_v4"),
)
_PRE, _PRE_BACKWARD = aclnn.MHC_PRE, aclnn.MHC_PRE_BACKWARD
_CONTRACT = aclnn.MHC_PRE_SINKHORN.with_arguments(*_PRE.inputs, *_PRE.attrs, *_SINKHORN, *_PRE.outputs)
_BACKWARD_CONTRACT = aclnn.MHC_PRE_SINKHORN_BACKWARD.with_arguments(
    *_PRE.inputs[:4], *_PRE_BACKWARD.inputs[3:], *_PRE_BACKWARD.attrs, *_SINKHORN, *_PRE_BACKWARD.outputs
)
_COMPOSITE = _CONTRACT.with_arguments(*_CONTRACT.arguments, sinkhorn.SCALINGS)
_COMPOSITE_BACKWARD = _BACKWARD_CONTRACT.with_arguments(
    *_BACKWARD_CONTRACT.inputs,
    *(replace(output, role="input") for output in _PRE.outputs if output.name == "hRes"),
    replace(sinkhorn.SCALINGS, role="input"),
    *_BACKWARD_CONTRACT.attrs,
    *_BACKWARD_CONTRACT.outputs,
)

# The vendor's kernels save the tensors of every Sinkhorn step; the C++ kernels compute the steps again.
MHC_PRE_SINKHORN = Operation(
    "mhc_pre_sinkhorn",
    contracts={"forward": _CONTRACT, "backward": _BACKWARD_CONTRACT},
    composite={"forward": _forward, "backward": _backward},
    composite_contracts={"forward": _COMPOSITE, "backward": _COMPOSITE_BACKWARD},
    kernels={"forward": (aclnn.MHC_PRE_SINKHORN,), "backward": (aclnn.MHC_PRE_SINKHORN_BACKWARD,)},
    results=3,
    names={"hin": "h_in", "grad_hin": "grad_h_in"},
)
