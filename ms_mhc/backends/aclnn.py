"""The vendor's kernels on Ascend.

In a compiled graph the kernel runs. Called eagerly in PyNative mode, ``auto`` computes with MindSpore ops and
``backend="aclnn"`` compiles the one call as a small graph: that needs no CANN headers and no C++ extension, and the kernel
is reached the same way as in a large graph.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Dict, Optional, Tuple

import mindspore as ms
from mindspore import Tensor, nn, ops

from aclnn_adapter import operators, platform
from aclnn_adapter.custom import X_DTYPES, AclnnKernel
from aclnn_adapter.operators import Operator
from ms_mhc.backends import composite
from ms_mhc.backends.registry import Backend, Job, Kernels, Refusal

# forward and backward of each operator of ms_mhc.functional
CONTRACTS: Dict[str, Tuple[Operator, Operator]] = {
    "mhc_pre": (operators.MHC_PRE, operators.MHC_PRE_BACKWARD),
}


def refusal(job: Job) -> Optional[Refusal]:
    """Why the kernels cannot do a job. Forward and backward are judged together, before the forward runs."""
    for operator in CONTRACTS[job.operator]:
        reason = platform.refusal(operator)
        if reason:
            return Refusal(reason)
        limits = operator.limits[platform.soc_version()]
        reason = limits.refusal(job.num_streams, job.hidden_size)
        if reason:
            advice = _advice(job, limits.hidden_size_multiple)
            return Refusal(f"{reason}, which {operator.name} needs; {advice}", "job")
    if job.dtype is not None and _name(job.dtype) not in X_DTYPES:
        return Refusal(f"x has dtype {_name(job.dtype)}; the kernels take {' and '.join(X_DTYPES)}", "job")
    return None


def _name(dtype: Any) -> str:
    return str(dtype).rsplit(".", 1)[-1].lower()


def _advice(job: Job, multiple: int) -> str:
    advice = 'use backend="composite"'
    if job.hidden_size is not None and job.hidden_size % multiple:
        advice += f" or pad to {-(-job.hidden_size // multiple) * multiple}"
    return advice


class _MhcPreForward(nn.Cell):  # type: ignore[misc]
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
            gamma = ops.ones(x.shape[-2:], ms.float32)
        return self.kernel(x, phi, alpha, bias, gamma, norm_eps, hc_eps)


class _MhcPreBackward(nn.Cell):  # type: ignore[misc]
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
        scale = ops.ones(x.shape[-2:], ms.float32) if gamma is None else gamma
        share = ops.zeros_like(x) if grad_x_post is None else grad_x_post
        grad_x, grad_phi, grad_alpha, grad_bias, grad_gamma = self.kernel(
            x, phi, alpha, grad_h_in, grad_h_post, grad_h_res, inv_rms, h_mix, h_pre, h_post, scale, share, hc_eps
        )
        return grad_x, grad_phi, grad_alpha, grad_bias, None if gamma is None else grad_gamma


_CELLS = {"mhc_pre": (_MhcPreForward, _MhcPreBackward)}


@lru_cache(maxsize=None)
def _kernels(operator: str, by_name: bool) -> Kernels:
    eager = composite.BACKEND.kernels(Job(operator, 1), False)
    forward, backward = CONTRACTS[operator]
    forward_cell, backward_cell = _CELLS[operator]
    return Kernels(
        forward_cell(AclnnKernel(forward, None if by_name else eager.forward)),
        backward_cell(AclnnKernel(backward, None if by_name else eager.backward)),
    )


BACKEND = Backend("aclnn", refusal, lambda job, by_name: _kernels(job.operator, by_name))
