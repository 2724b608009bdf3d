"""What each operator accepts, and the messages.

These functions see descriptions of tensors (:class:`Spec`), never tensors, so that they run eagerly and at the
compile time of a graph alike. A dimension that is not known at compile time is ``None`` and fits everything.
"""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any, NamedTuple, Optional, Sequence, Tuple, Union

import mindspore as ms

X_DTYPES = (ms.bfloat16, ms.float16, ms.float32)
RECIPES = ("deepseek_v4", "paper")

Shape = Tuple[Optional[int], ...]


class Spec(NamedTuple):
    """Shape and dtype of a tensor."""

    shape: Shape
    dtype: Any

    def __str__(self) -> str:
        return f"{_shape_text(self.shape)} {_dtype_text(self.dtype)}"


def _shape_text(shape: Sequence[Union[int, str, None]]) -> str:
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"


def _dtype_text(dtype: Any) -> str:
    return str(dtype).rsplit(".", 1)[-1].lower()


def tensor(operator: str, argument: str, value: Any) -> Spec:
    """The spec of a tensor argument. ``value`` is ``(shape, dtype)``, or a text that names the type of a non-tensor."""
    if isinstance(value, str):
        raise TypeError(f"{operator}: {argument} must be a mindspore Tensor, but got {value}")
    return Spec(tuple(value[0]), value[1])


def _dtype(operator: str, argument: str, spec: Spec, accepted: Sequence[Any]) -> None:
    if spec.dtype not in accepted:
        names = ", ".join(map(_dtype_text, accepted))
        raise TypeError(f"{operator}: {argument} has dtype {_dtype_text(spec.dtype)}; accepted: {names}")


def _shape(operator: str, argument: str, spec: Spec, expected: Sequence[Optional[int]], symbols: str) -> None:
    fits = len(spec.shape) == len(expected) and all(
        got is None or want is None or got == want for got, want in zip(spec.shape, expected)
    )
    if not fits:
        raise ValueError(
            f"{operator}: {argument} has shape {_shape_text(spec.shape)}; "
            f"expected {_shape_text(expected)}, which is {symbols}"
        )


def fixed(
    operator: str,
    argument: str,
    spec: Spec,
    expected: Sequence[Optional[int]],
    symbols: str,
    dtypes: Sequence[Any] = (ms.float32,),
) -> None:
    """A tensor whose shape follows from x."""
    _dtype(operator, argument, spec, dtypes)
    _shape(operator, argument, spec, expected, symbols)


def streams(operator: str, spec: Spec, sizes: Optional[Tuple[int, int]] = None) -> Tuple[Shape, int, int]:
    """x, the widened residual stream. Returns its token dimensions, N and D; ``sizes`` fixes N and D."""
    _dtype(operator, "x", spec, X_DTYPES)
    if len(spec.shape) not in (3, 4):
        raise ValueError(
            f"{operator}: x has rank {len(spec.shape)} and shape {_shape_text(spec.shape)}; "
            f"accepted: rank 4 [B, S, N, D] or rank 3 [T, N, D]"
        )
    not_empty(operator, "x", spec)
    *tokens, n, d = spec.shape
    if n is None or d is None:
        raise ValueError(
            f"{operator}: x has shape {_shape_text(spec.shape)}; the number of streams N and the hidden size D "
            f"must be known when the graph is compiled, only B, S and T may vary"
        )
    if sizes is not None and sizes != (n, d):
        raise ValueError(
            f"{operator}: x has shape {_shape_text(spec.shape)}, so {n} streams of size {d}; "
            f"expected num_streams={sizes[0]} and hidden_size={sizes[1]}: [B, S, {sizes[0]}, {sizes[1]}] or "
            f"[T, {sizes[0]}, {sizes[1]}]"
        )
    return tuple(tokens), n, d


def not_empty(operator: str, argument: str, spec: Spec) -> None:
    """A tensor with at least one element."""
    if 0 in spec.shape:
        raise ValueError(f"{operator}: {argument} is empty, its shape is {_shape_text(spec.shape)}")


def eps(operator: str, argument: str, value: Any) -> None:
    """A finite number >= 0."""
    number(operator, argument, value)
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{operator}: {argument} must be a finite number >= 0, but got {value}")


def number(operator: str, argument: str, value: Any) -> None:
    """A real number; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{operator}: {argument} must be a number, but got {_described(value)}")


def positive_int(operator: str, argument: str, value: Any) -> None:
    """An integer >= 1; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{operator}: {argument} must be a positive int, but got {_described(value)}")
    if value < 1:
        raise ValueError(f"{operator}: {argument} must be a positive int, but got {value}")


def flag(operator: str, argument: str, value: Any) -> None:
    """True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{operator}: {argument} must be True or False, but got {_described(value)}")


def one_of(operator: str, argument: str, value: Any, accepted: Sequence[str]) -> None:
    """One of some texts."""
    if not isinstance(value, str):
        raise TypeError(f"{operator}: {argument} must be one of {', '.join(accepted)}, but got {_described(value)}")
    if value not in accepted:
        raise ValueError(f"{operator}: {argument} must be one of {', '.join(accepted)}, but got {value!r}")


def _described(value: Any) -> str:
    return f"{value!r} of type {type(value).__name__}"


def mhc_pre(
    operator: str,
    sizes: Optional[Tuple[int, int]],
    x: Spec,
    phi: Spec,
    alpha: Spec,
    bias: Spec,
    gamma: Optional[Spec],
    norm_eps: Any,
    hc_eps: Any,
) -> Tuple[int, int]:
    """Everything that aclnnMhcPre takes. ``sizes`` are N and D where the caller fixes them. Returns N and D."""
    _, n, d = streams(operator, x, sizes)
    _parameters(operator, n, d, phi, alpha, gamma)
    fixed(operator, "bias", bias, (n * n + 2 * n,), "[N*N+2N]")
    eps(operator, "norm_eps", norm_eps)
    eps(operator, "hc_eps", hc_eps)
    return n, d


def mhc_pre_backward(
    operator: str,
    x: Spec,
    phi: Spec,
    alpha: Spec,
    grad_h_in: Spec,
    grad_h_post: Spec,
    grad_h_res: Spec,
    inv_rms: Spec,
    h_mix: Spec,
    h_pre: Spec,
    h_post: Spec,
    gamma: Optional[Spec],
    grad_x_post: Optional[Spec],
    hc_eps: Any,
) -> Tuple[int, int]:
    """Everything that aclnnMhcPreBackward takes. Returns N and D."""
    tokens, n, d = streams(operator, x)
    _parameters(operator, n, d, phi, alpha, gamma)
    fixed(operator, "grad_h_in", grad_h_in, (*tokens, d), "[..., D]", (x.dtype,))
    fixed(operator, "grad_h_post", grad_h_post, (*tokens, n), "[..., N]")
    fixed(operator, "grad_h_res", grad_h_res, (*tokens, n, n), "[..., N, N]")
    fixed(operator, "inv_rms", inv_rms, tokens, "the token dimensions of x")
    fixed(operator, "h_mix", h_mix, (*tokens, n * n + 2 * n), "[..., N*N+2N]")
    fixed(operator, "h_pre", h_pre, (*tokens, n), "[..., N]")
    fixed(operator, "h_post", h_post, (*tokens, n), "[..., N]")
    if grad_x_post is not None:
        fixed(operator, "grad_x_post", grad_x_post, x.shape, "the shape of x", (x.dtype,))
    eps(operator, "hc_eps", hc_eps)
    return n, d


def _parameters(operator: str, n: int, d: int, phi: Spec, alpha: Spec, gamma: Optional[Spec]) -> None:
    fixed(operator, "phi", phi, (n * n + 2 * n, n * d), "[N*N+2N, N*D]")
    fixed(operator, "alpha", alpha, (3,), "[3]: pre, post, res")
    if gamma is not None:
        fixed(operator, "gamma", gamma, (n, d), "[N, D]")


def mhc_sinkhorn(operator: str, h_res: Spec, num_iters: Any, eps_value: Any, recipe: Any) -> int:
    """Everything that aclnnMhcSinkhorn takes. Returns N."""
    _dtype(operator, "h_res", h_res, (ms.float32,))
    if len(h_res.shape) not in (3, 4) or h_res.shape[-1] != h_res.shape[-2]:
        raise ValueError(
            f"{operator}: h_res has shape {_shape_text(h_res.shape)}; "
            f"accepted: square matrices [B, S, N, N] or [T, N, N]"
        )
    not_empty(operator, "h_res", h_res)
    n = h_res.shape[-1]
    if n is None:
        raise ValueError(
            f"{operator}: h_res has shape {_shape_text(h_res.shape)}; N must be known when the graph is compiled, "
            f"only B, S and T may vary"
        )
    positive_int(operator, "num_iters", num_iters)
    eps(operator, "eps", eps_value)
    one_of(operator, "recipe", recipe, RECIPES)
    return n


def mhc_post(operator: str, x: Spec, h_res: Optional[Spec], h_out: Spec, h_post: Spec) -> Tuple[int, int]:
    """Everything that aclnnMhcPost takes. Returns N and D."""
    tokens, n, d = streams(operator, x)
    if h_res is not None:
        fixed(operator, "h_res", h_res, (*tokens, n, n), "[..., N, N]")
    fixed(operator, "h_out", h_out, (*tokens, d), "[..., D]", (x.dtype,))
    fixed(operator, "h_post", h_post, (*tokens, n), "[..., N]")
    return n, d


def mhc_head(operator: str, x: Spec, phi: Spec, scale: Spec, bias: Spec, norm_eps: Any, hc_eps: Any) -> Tuple[int, int]:
    """Everything that the learned collapse takes. Returns N and D."""
    _, n, d = streams(operator, x)
    fixed(operator, "phi", phi, (n, n * d), "[N, N*D]")
    fixed(operator, "scale", scale, (1,), "[1]")
    fixed(operator, "bias", bias, (n,), "[N]")
    eps(operator, "norm_eps", norm_eps)
    eps(operator, "hc_eps", hc_eps)
    return n, d


def expand_streams(operator: str, h: Spec, num_streams: Any) -> Shape:
    """Any tensor [..., D] of a dtype that x may have. Returns its shape."""
    _dtype(operator, "h", h, X_DTYPES)
    if not h.shape:
        raise ValueError(f"{operator}: h has rank 0; accepted: [..., D]")
    positive_int(operator, "num_streams", num_streams)
    return h.shape


def merge_streams(operator: str, x: Spec) -> int:
    """Any tensor [..., N, D] of a dtype that x may have. Returns N."""
    _dtype(operator, "x", x, X_DTYPES)
    if len(x.shape) < 2:
        raise ValueError(f"{operator}: x has shape {_shape_text(x.shape)}; accepted: [..., N, D]")
    n = x.shape[-2]
    if n is None:
        raise ValueError(f"{operator}: x has shape {_shape_text(x.shape)}; N must be known when the graph is compiled")
    return n
