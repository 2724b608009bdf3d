"""MhcPre and Sinkhorn in one: what comes out mixes the streams as it is."""

from __future__ import annotations

from typing import Any, Optional, Tuple

from mindspore import Tensor

from aclnn_adapter import operators as aclnn
from aclnn_adapter.operators import Argument
from ms_mhc.dispatch import Options, joined, joined_unless_composite, present, specs
from ms_mhc.operation import Operation
from ms_mhc.operators import pre, sinkhorn


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
    options = Options(backend, precision)
    return pre_sinkhorn("mhc_pre_sinkhorn", (x, phi, alpha, bias, gamma), attributes, options)[:3]


def pre_sinkhorn(
    caller: str, tensors: Tuple[Optional[Tensor], ...], attributes: Tuple[Any, ...], options: Tuple[Any, ...]
) -> Tuple[Tensor, ...]:
    """h_in, h_post, h_res and, where the options ask for it, x: in one piece or as two operators."""
    arguments = specs(tensors)
    fused = joined_unless_composite(caller, "mhc_pre_sinkhorn", arguments, attributes, options)
    if fused is not None:
        out = fused(present(tensors))
        return out[0], out[1], out[2], out[-1]
    norm_eps, hc_eps, sinkhorn_eps, num_iters, recipe = attributes
    out = joined(caller, "mhc_pre", arguments, (norm_eps, hc_eps), options)(present(tensors))
    steps = (sinkhorn_eps, num_iters, recipe)
    matrices = joined(caller, "mhc_sinkhorn", specs((out[2],)), steps, Options(options[0]))((out[2],))
    return out[0], out[1], matrices[0], out[-1]


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
    h_res = sinkhorn._forward(out[2], sinkhorn_eps, num_iters, recipe)
    return out[:2] + h_res + out[3:]


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
    hc_eps: float,
    sinkhorn_eps: float,
    num_iters: int,
    recipe: str,
) -> Tuple[Optional[Tensor], ...]:
    """The formulas of :func:`ms_mhc.reference.mhc_pre_sinkhorn_backward`."""
    n = x.shape[-2]
    h_mix_res = h_mix.reshape(-1, n * n + 2 * n)[:, 2 * n :]
    logits = h_mix_res * inv_rms.reshape(-1, 1) * alpha[2:3] + bias[2 * n :]
    grad_logits = sinkhorn._backward(grad_h_res, logits.reshape(grad_h_res.shape), sinkhorn_eps, num_iters, recipe)
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

# The vendor's kernels save the tensors of every Sinkhorn step; ours compute the steps again.
MHC_PRE_SINKHORN = Operation(
    "mhc_pre_sinkhorn",
    contracts={"forward": _CONTRACT, "backward": _BACKWARD_CONTRACT},
    composite={"forward": _forward, "backward": _backward},
    kernels={"forward": (aclnn.MHC_PRE_SINKHORN,), "backward": (aclnn.MHC_PRE_SINKHORN_BACKWARD,)},
    results=3,
    names={"hin": "h_in", "grad_hin": "grad_h_in"},
)
