"""The vendor's kernels on Ascend.

In a compiled graph the kernel runs. Called eagerly in PyNative mode, ``auto`` computes with MindSpore ops and
``backend="aclnn"`` compiles the one call as a small graph: that needs no CANN headers and no C++ extension, and the
kernel is reached the same way as in a large graph.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Dict, Optional, Tuple

import mindspore as ms
from mindspore import Tensor, mint, nn

from aclnn_adapter import operators, platform
from aclnn_adapter.custom import X_DTYPES, AclnnKernel
from aclnn_adapter.operators import Limits, Operator
from ms_mhc.backends import composite
from ms_mhc.backends.registry import Backend, Job, Kernels, Refusal

# forward and backward of each operator of ms_mhc.functional
CONTRACTS: Dict[str, Tuple[Operator, Operator]] = {
    "mhc_pre": (operators.MHC_PRE, operators.MHC_PRE_BACKWARD),
    "mhc_sinkhorn": (operators.MHC_SINKHORN, operators.MHC_SINKHORN_BACKWARD),
    "mhc_post": (operators.MHC_POST, operators.MHC_POST_BACKWARD),
}


def refusal(job: Job) -> Optional[Refusal]:
    """Why the kernels cannot do a job. Forward and backward are judged together, before the forward runs."""
    for operator in CONTRACTS[job.operator]:
        reason = platform.refusal(operator)
        if reason:
            return Refusal(reason)
        limits = operator.limits[platform.soc_version()]
        reason = limits.refusal(job.num_streams, job.hidden_size, job.num_iters)
        if reason:
            return Refusal(f"{reason}, which {operator.name} needs; {_advice(job, limits)}", "job")
    if job.dtype is not None and _name(job.dtype) not in X_DTYPES:
        return Refusal(f"x has dtype {_name(job.dtype)}; the kernels take {' and '.join(X_DTYPES)}", "job")
    if job.recipe not in (None, "deepseek_v4"):
        return Refusal(f"the kernel computes the recipe 'deepseek_v4', not {job.recipe!r}", "job")
    if job.identity:
        return Refusal("MindSpore cannot hand the kernel the null pointer that stands for the identity h_res", "job")
    return None


def _name(dtype: Any) -> str:
    return str(dtype).rsplit(".", 1)[-1].lower()


def _advice(job: Job, limits: Limits) -> str:
    advice = 'use backend="composite"'
    multiple = limits.hidden_size_multiple
    if job.hidden_size is not None and job.hidden_size % multiple:
        advice += f" or pad to {-(-job.hidden_size // multiple) * multiple}"
    return advice


class _MhcPreForward(nn.Cell):
    """aclnnMhcPre. The kernel must not see ``None``: no gamma is a gamma of ones."""

    def __init__(self, kernel: AclnnKernel) -> None:
        super().__init__()
        self.kernel = kernel

    def construct(
        self,
        x: Tensor,
        phi: Tensor,
        alpha: Tensor,
        bias: Tensor,
        gamma: Optional[Tensor],
        norm_eps: float,
        hc_eps: float,
    ) -> Tuple[Tensor, ...]:
        if gamma is None:
            gamma = mint.ones(x.shape[-2:], dtype=ms.float32)
        return self.kernel(x, phi, alpha, bias, gamma, norm_eps, hc_eps)


class _MhcPreBackward(nn.Cell):
    """aclnnMhcPreBackward. Neither gamma nor grad_x_post reaches the kernel as ``None``."""

    def __init__(self, kernel: AclnnKernel) -> None:
        super().__init__()
        self.kernel = kernel

    def construct(
        self,
        x: Tensor,
        phi: Tensor,
        alpha: Tensor,
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
    ) -> Tuple[Tensor, Tensor, Tensor, Tensor, Optional[Tensor]]:
        scale = mint.ones(x.shape[-2:], dtype=ms.float32) if gamma is None else gamma
        share = mint.zeros_like(x) if grad_x_post is None else grad_x_post
        grad_x, grad_phi, grad_alpha, grad_bias, grad_gamma = self.kernel(
            x, phi, alpha, grad_h_in, grad_h_post, grad_h_res, inv_rms, h_mix, h_pre, h_post, scale, share, hc_eps
        )
        return grad_x, grad_phi, grad_alpha, grad_bias, None if gamma is None else grad_gamma


class _MhcSinkhornForward(nn.Cell):
    """aclnnMhcSinkhorn, with the tensors that its backward needs."""

    def __init__(self, kernel: AclnnKernel) -> None:
        super().__init__()
        self.kernel = kernel

    def construct(self, h_res: Tensor, eps: float, num_iters: int, recipe: str) -> Any:
        return self.kernel(h_res, eps, num_iters)


class _MhcSinkhornBackward(nn.Cell):
    """aclnnMhcSinkhornBackward where the kernel ran forward; where MindSpore ops did, nothing was saved."""

    def __init__(self, kernel: AclnnKernel) -> None:
        super().__init__()
        self.kernel = kernel

    def construct(
        self, grad_output: Tensor, h_res: Tensor, saved: Tuple[Tensor, ...], eps: float, num_iters: int, recipe: str
    ) -> Tensor:
        if len(saved) == 0:
            return composite.mhc_sinkhorn_backward(grad_output, h_res, saved, eps, num_iters, recipe)
        return self.kernel(grad_output, saved[0], saved[1])


class _MhcPostForward(nn.Cell):
    """aclnnMhcPost."""

    def __init__(self, kernel: AclnnKernel) -> None:
        super().__init__()
        self.kernel = kernel

    def construct(self, x: Tensor, h_res: Tensor, h_out: Tensor, h_post: Tensor) -> Tensor:
        return self.kernel(x, h_res, h_out, h_post)


class _MhcPostBackward(nn.Cell):
    """aclnnMhcPostBackward."""

    def __init__(self, kernel: AclnnKernel) -> None:
        super().__init__()
        self.kernel = kernel

    def construct(
        self, grad_output: Tensor, x: Tensor, h_res: Tensor, h_out: Tensor, h_post: Tensor
    ) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.kernel(grad_output, x, h_res, h_out, h_post)


def _sinkhorn_eagerly(h_res: Tensor, eps: float, num_iters: int) -> Tensor:
    return composite.mhc_sinkhorn_forward(h_res, eps, num_iters, "deepseek_v4")


def _never_eagerly(*_: Any) -> Any:
    raise AssertionError("the eager backward of Sinkhorn needs no kernel")


@cache
def _mhc_pre_kernels(by_name: bool) -> Kernels:
    return Kernels(
        _MhcPreForward(AclnnKernel(operators.MHC_PRE, None if by_name else composite.mhc_pre_forward)),
        _MhcPreBackward(AclnnKernel(operators.MHC_PRE_BACKWARD, None if by_name else composite.mhc_pre_backward)),
    )


@cache
def _mhc_sinkhorn_kernels(by_name: bool, num_iters: int) -> Kernels:
    """One pair for each number of iterations: the lengths of the saved tensors depend on it, and no input shows it."""
    forward = AclnnKernel(operators.MHC_SINKHORN, None if by_name else _sinkhorn_eagerly, I=num_iters)
    backward = AclnnKernel(operators.MHC_SINKHORN_BACKWARD, None if by_name else _never_eagerly)
    return Kernels(_MhcSinkhornForward(forward), _MhcSinkhornBackward(backward))


@cache
def _mhc_post_kernels(by_name: bool) -> Kernels:
    return Kernels(
        _MhcPostForward(AclnnKernel(operators.MHC_POST, None if by_name else composite.mhc_post_forward)),
        _MhcPostBackward(AclnnKernel(operators.MHC_POST_BACKWARD, None if by_name else composite.mhc_post_backward)),
    )


def _kernels(job: Job, by_name: bool) -> Kernels:
    if job.operator == "mhc_sinkhorn":
        assert job.num_iters is not None
        return _mhc_sinkhorn_kernels(by_name, job.num_iters)
    return _mhc_pre_kernels(by_name) if job.operator == "mhc_pre" else _mhc_post_kernels(by_name)


BACKEND = Backend("aclnn", refusal, _kernels)
