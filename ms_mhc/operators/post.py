"""MhcPost: mixes the streams and writes the layer's output back."""

from __future__ import annotations

from typing import Any, Optional, Tuple

from mindspore import Tensor, ops

from aclnn_adapter import operators as aclnn
from ms_mhc import checks, parallel
from ms_mhc.backends import registry
from ms_mhc.dispatch import Options, joined, present, specs
from ms_mhc.operation import Operation
from ms_mhc.operators.arithmetic import bmm, bmm_nt, bmm_tn, float32, plus_bmm
from ms_mhc.operators.precision import GateCell


def mhc_post(x: Tensor, h_res: Optional[Tensor], h_out: Tensor, h_post: Tensor, *, backend: str = "auto") -> Tensor:
    """Mix the streams and write the layer's output back (aclnnMhcPost)::

        out[j] = h_post[j] * h_out + sum_i h_res[i, j] * x[i]

    Mind the orientation: the first index of h_res is the stream that is read, the second the stream that is written. As
    a matrix product over streams this is the transpose of h_res times x. (CANN, DeepSeek V4 and Hugging Face use this
    convention; the mHC paper writes the other one.)

    Args:
        x: the residual streams, [B, S, N, D] or [T, N, D], bfloat16, float16 or float32.
        h_res: mixing matrices, [..., N, N], float32. ``None`` means the identity.
        h_out: the layer's output, [..., D], in the dtype of x.
        h_post: what each stream takes of it, [..., N], float32.
        backend: ``"auto"``, or a backend by name.

    Returns:
        The next streams, in shape and dtype of x.

    Raises:
        TypeError, ValueError, RuntimeError: as :func:`mhc_pre`.
    """
    tensors = (x, h_res, h_out, h_post)
    return joined("mhc_post", "mhc_post", specs(tensors), (), Options(backend))(present(tensors))[0]


def _forward(x: Tensor, h_res: Optional[Tensor], h_out: Tensor, h_post: Tensor) -> Tuple[Tensor]:
    """The formula of :func:`ms_mhc.reference.mhc_post`."""
    shape, dtype, n, d = x.shape, x.dtype, x.shape[-2], x.shape[-1]
    x = float32(x).reshape(-1, n, d)
    if h_res is not None:
        x = bmm_tn(h_res.reshape(-1, n, n), x)
    out = plus_bmm(x, h_post.reshape(-1, n, 1), float32(h_out).reshape(-1, 1, d))
    return (ops.cast(out.reshape(shape), dtype),)


def _backward(
    grad_output: Tensor, x: Tensor, h_res: Optional[Tensor], h_out: Tensor, h_post: Tensor
) -> Tuple[Tensor, Optional[Tensor], Tensor, Tensor]:
    """The formulas of :func:`ms_mhc.reference.mhc_post_backward`; no grad_h_res where there is no h_res."""
    shape, dtype, n, d = x.shape, x.dtype, x.shape[-2], x.shape[-1]
    grad = float32(grad_output).reshape(-1, n, d)
    grad_h_out = bmm(h_post.reshape(-1, 1, n), grad).reshape(h_out.shape)
    grad_h_post = bmm(grad, float32(h_out).reshape(-1, d, 1)).reshape(h_post.shape)
    if h_res is None:
        return grad_output, None, ops.cast(grad_h_out, dtype), grad_h_post
    grad_x = bmm(h_res.reshape(-1, n, n), grad).reshape(shape)
    grad_h_res = bmm_nt(float32(x).reshape(-1, n, d), grad).reshape(h_res.shape)
    return ops.cast(grad_x, dtype), grad_h_res, ops.cast(grad_h_out, dtype), grad_h_post


MHC_POST = Operation(
    "mhc_post",
    contracts={"forward": aclnn.MHC_POST, "backward": aclnn.MHC_POST_BACKWARD},
    composite={"forward": _forward, "backward": _backward},
    kernels={"forward": (aclnn.MHC_POST,), "backward": (aclnn.MHC_POST_BACKWARD,)},
    results=1,
    names={"grad_output": "grad_out"},
)


class MhcPost(GateCell):
    """:func:`ms_mhc.mhc_post` as a cell: ``out[j] = h_post[j] * h_out + sum_i h_res[i, j] * x[i]``.

    It has no parameters. h_res ``None`` means the identity.

    Args:
        backend: ``"auto"``, or a backend by name.
        layout: how x is split under semi_auto_parallel, see :class:`ms_mhc.HyperConnection`.
    """

    def __init__(self, backend: str = "auto", layout: Any = None) -> None:
        super().__init__()
        checks.one_of("MhcPost", "backend", backend, registry.names())
        parallel.check("MhcPost", layout)
        self.backend = backend
        self.layout = layout

    def construct(self, x: Tensor, h_res: Optional[Tensor], h_out: Tensor, h_post: Tensor) -> Tensor:
        tensors = (self.streams(x), h_res, self.streams(h_out), h_post)
        options = Options(self.backend, layout=self.layout)
        return joined("MhcPost", "mhc_post", specs(tensors), (), options)(present(tensors))[0]

    def extend_repr(self) -> str:
        return f"backend={self.backend!r}"
