"""Fused C++ kernels on the CPU.

The library is compiled when the package is installed. ``ops.Custom`` hands its functions the tensors as they are, in
graph mode and in PyNative mode; scalars travel in one small tensor, optional tensors are left out
(``ms_mhc/csrc/mindspore_aot.cc``).
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any, Callable, Dict, Optional, Sequence, Tuple, Type

import numpy as np
from mindspore import Tensor, nn, ops

from aclnn_adapter import operators, platform
from aclnn_adapter.custom import infer_functions
from aclnn_adapter.operators import Operator
from ms_mhc import csrc
from ms_mhc.backends.registry import Backend, Job, Kernels, Refusal

RECIPES = {"deepseek_v4": 0.0, "paper": 1.0}


def library() -> Path:
    """Where the compiled library lies, if it was compiled."""
    return csrc.LIBRARY


@cache
def _unusable(path: Path) -> Optional[str]:
    if not path.is_file():
        return (
            f"{path.name} was not compiled when the package was installed; "
            f"install a C++ compiler such as g++, then run: python -m ms_mhc.csrc.build"
        )
    try:
        ctypes.CDLL(str(path))
    except OSError as error:
        return f"{path.name} cannot be loaded ({error}); compile it here: python -m ms_mhc.csrc.build"
    return None


def refusal(job: Job) -> Optional[Refusal]:
    """Why the CPU kernels cannot do a job. They take any sizes that are known when a graph is compiled."""
    target = platform.device_target()
    if target != "CPU":
        return Refusal(f"the device target is {target}, not CPU")
    reason = _unusable(library())
    if reason:
        return Refusal(reason)
    if job.dynamic:
        return Refusal("MindSpore cannot call a C function from a graph with dynamic shapes", "job")
    return None


def _function(operator: Operator, names: Sequence[str], without: Sequence[str] = ()) -> Callable[..., Any]:
    """The library's function for a contract, with the inputs of these names and all outputs but a few."""
    shapes, dtypes = infer_functions(operator.select(names, without))
    name = operator.name[len("aclnn") :]
    return ops.Custom(f"{library()}:{name}", shapes, dtypes, func_type="aot")


@ops.constexpr
def _scalars(*values: float) -> Tensor:
    """Scalars as the library takes them: one float32 tensor, a constant of the graph."""
    return Tensor(np.array(values, np.float32))


class _MhcPreForward(nn.Cell):
    """MhcPre, with and without gamma."""

    def __init__(self) -> None:
        super().__init__()
        names = ("x", "phi", "alpha", "bias")
        self.plain = _function(operators.MHC_PRE, names)
        self.scaled = _function(operators.MHC_PRE, (*names, "gammaOptional"))

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
        scalars = _scalars(norm_eps, hc_eps)
        if gamma is None:
            return self.plain(x, phi, alpha, bias, scalars)
        return self.scaled(x, phi, alpha, bias, gamma, scalars)


class _MhcPreBackward(nn.Cell):
    """MhcPreBackward, with and without gamma and grad_x_post."""

    def __init__(self) -> None:
        super().__init__()
        names = tuple(a.name for a in operators.MHC_PRE_BACKWARD.inputs if not a.optional)
        share = "gradXPostOptional"
        self.plain = _function(operators.MHC_PRE_BACKWARD, names, ("gradGamma",))
        self.plain_shared = _function(operators.MHC_PRE_BACKWARD, (*names, share), ("gradGamma",))
        self.scaled = _function(operators.MHC_PRE_BACKWARD, (*names, "gammaOptional"))
        self.scaled_shared = _function(operators.MHC_PRE_BACKWARD, (*names, "gammaOptional", share))

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
    ) -> Tuple[Optional[Tensor], ...]:
        required = (x, phi, alpha, grad_h_in, grad_h_post, grad_h_res, inv_rms, h_mix, h_pre, h_post)
        scalars = _scalars(hc_eps)
        if gamma is not None:
            if grad_x_post is None:
                return self.scaled(*required, gamma, scalars)
            return self.scaled_shared(*required, gamma, grad_x_post, scalars)
        if grad_x_post is None:
            grad_x, grad_phi, grad_alpha, grad_bias = self.plain(*required, scalars)
        else:
            grad_x, grad_phi, grad_alpha, grad_bias = self.plain_shared(*required, grad_x_post, scalars)
        return grad_x, grad_phi, grad_alpha, grad_bias, None


class _MhcSinkhornForward(nn.Cell):
    """Sinkhorn. Nothing is saved: the backward recomputes."""

    def __init__(self) -> None:
        super().__init__()
        self.function = _function(operators.MHC_SINKHORN, ("x",), ("normOut", "sumOut"))

    def construct(self, h_res: Tensor, eps: float, num_iters: int, recipe: str) -> Tensor:
        return self.function(h_res, _scalars(eps, num_iters, RECIPES[recipe]))


class _MhcSinkhornBackward(nn.Cell):
    """The exact derivative of the forward, for both recipes."""

    def __init__(self) -> None:
        super().__init__()
        self.function = _function(operators.MHC_SINKHORN_BACKWARD, ("gradOutput",))

    def construct(
        self, grad_output: Tensor, h_res: Tensor, saved: Tuple[Tensor, ...], eps: float, num_iters: int, recipe: str
    ) -> Tensor:
        return self.function(grad_output, h_res, _scalars(eps, num_iters, RECIPES[recipe]))


class _MhcPostForward(nn.Cell):
    """MhcPost, with and without h_res."""

    def __init__(self) -> None:
        super().__init__()
        self.mixed = _function(operators.MHC_POST, ("x", "hRes", "hOut", "hPost"))
        self.identity = _function(operators.MHC_POST, ("x", "hOut", "hPost"))

    def construct(self, x: Tensor, h_res: Optional[Tensor], h_out: Tensor, h_post: Tensor) -> Tensor:
        if h_res is None:
            return self.identity(x, h_out, h_post)
        return self.mixed(x, h_res, h_out, h_post)


class _MhcPostBackward(nn.Cell):
    """MhcPostBackward; no grad_h_res where there is no h_res."""

    def __init__(self) -> None:
        super().__init__()
        self.mixed = _function(operators.MHC_POST_BACKWARD, ("gradOutput", "x", "hRes", "hOut", "hPost"))
        self.identity = _function(operators.MHC_POST_BACKWARD, ("gradOutput", "x", "hOut", "hPost"))

    def construct(
        self, grad_output: Tensor, x: Tensor, h_res: Optional[Tensor], h_out: Tensor, h_post: Tensor
    ) -> Tuple[Tensor, Optional[Tensor], Tensor, Tensor]:
        if h_res is None:
            grad_x, _, grad_h_out, grad_h_post = self.identity(grad_output, x, h_out, h_post)
            return grad_x, None, grad_h_out, grad_h_post
        return self.mixed(grad_output, x, h_res, h_out, h_post)


_CELLS: Dict[str, Tuple[Type[nn.Cell], Type[nn.Cell]]] = {
    "mhc_pre": (_MhcPreForward, _MhcPreBackward),
    "mhc_sinkhorn": (_MhcSinkhornForward, _MhcSinkhornBackward),
    "mhc_post": (_MhcPostForward, _MhcPostBackward),
}


@cache
def _kernels(operator: str) -> Kernels:
    forward, backward = _CELLS[operator]
    return Kernels(forward(), backward())


BACKEND = Backend("cpu", refusal, lambda job, by_name: _kernels(job.operator))
