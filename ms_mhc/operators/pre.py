"""MhcPre: reads the layer's input and the mixing weights off N residual streams."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import numpy as np
from mindspore import Parameter, Tensor, mint, ops
from mindspore.ops import constexpr

from aclnn_adapter import operators as aclnn
from ms_mhc import checks, parallel
from ms_mhc.backends import registry
from ms_mhc.backends.registry import Job
from ms_mhc.dispatch import Options, alone, constants, joined, present, specs
from ms_mhc.operation import Operation
from ms_mhc.operators import initial
from ms_mhc.operators.arithmetic import (
    bmm,
    float32,
    matmul,
    matmul_nt,
    matmul_tn,
    plus_bmm,
    sigmoid,
    sum_of_row,
    sum_over_tokens,
    unit_matrix,
)
from ms_mhc.operators.precision import GateCell


def mhc_pre(
    x: Tensor,
    phi: Tensor,
    alpha: Tensor,
    bias: Tensor,
    gamma: Optional[Tensor] = None,
    *,
    norm_eps: float = 1e-6,
    hc_eps: float = 1e-6,
    precision: str = "float32",
    backend: str = "auto",
) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Read the layer's input and the mixing weights off N residual streams (aclnnMhcPre).

    With xf the N*D values of one token::

        inv_rms = 1 / sqrt(mean(xf**2) + norm_eps)
        h_mix   = (x * gamma) @ phi.T
        h_pre   = sigmoid(alpha[0] * h_mix[pre] * inv_rms + bias[pre]) + hc_eps
        h_post  = 2 * sigmoid(alpha[1] * h_mix[post] * inv_rms + bias[post])
        h_res   = alpha[2] * h_mix[res] * inv_rms + bias[res]
        h_in    = sum_i h_pre[i] * x[i]

    F is N*N+2N; its entries are N of pre, N of post and N*N of res, row-major.

    Args:
        x: the residual streams, [B, S, N, D] or [T, N, D], bfloat16, float16 or float32. May be a view.
        phi: projection, [F, N*D], float32.
        alpha: scales of pre, post and res, [3], float32.
        bias: [F], float32.
        gamma: scale of x in the product with phi, [N, D], float32. ``None`` means ones.
        norm_eps: added to the mean square, >= 0.
        hc_eps: added to h_pre, >= 0.
        precision: of the product with phi. ``"hf32"`` allows kernels that round its factors to 10 bits of fraction.
        backend: ``"auto"``, or a backend by name.

    Returns:
        ``(h_in, h_post, h_res, inv_rms, h_mix, h_pre)``: h_in [..., D] in the dtype of x; h_post [..., N], h_res
        [..., N, N] (logits, before Sinkhorn), inv_rms [...], h_mix [..., F] and h_pre [..., N] in float32. The first
        three carry gradients; the last three are what the backward needs and carry none.

    Raises:
        TypeError: an argument of the wrong type or dtype.
        ValueError: shapes that do not fit together, an empty tensor, a negative eps, an unknown backend.
        RuntimeError: a backend asked for by name that this machine lacks.
    """
    tensors = (x, phi, alpha, bias, gamma)
    cell = joined("mhc_pre", "mhc_pre", specs(tensors), (norm_eps, hc_eps), Options(backend, precision))
    out = cell(present(tensors))
    return out[:3] + constants(out[3:])


def mhc_pre_backward(
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
    gamma: Optional[Tensor] = None,
    grad_x_post: Optional[Tensor] = None,
    *,
    hc_eps: float = 1e-6,
    precision: str = "float32",
    backend: str = "auto",
) -> Tuple[Tensor, Tensor, Tensor, Tensor, Optional[Tensor]]:
    """The gradients of :func:`mhc_pre` (aclnnMhcPreBackward).

    The formulas are those of the aclnn document with its errata: the inv_rms term of grad_x multiplies x, not
    ``x * gamma``, and the gradient of alpha's third entry multiplies ``h_mix * inv_rms``.

    Args:
        x, phi, alpha, gamma: as given to :func:`mhc_pre`.
        grad_h_in: [..., D], in the dtype of x.
        grad_h_post: [..., N], float32.
        grad_h_res: [..., N, N], float32.
        inv_rms, h_mix, h_pre, h_post: as :func:`mhc_pre` returned them.
        grad_x_post: the gradient that reached x by other ways, in shape and dtype of x. ``None`` means zeros. It is
            added before the one rounding to the dtype of x.
        hc_eps: as given to :func:`mhc_pre`.
        precision, backend: as given to :func:`mhc_pre`.

    Returns:
        ``(grad_x, grad_phi, grad_alpha, grad_bias, grad_gamma)``: grad_x in the dtype of x, the others in float32;
        grad_gamma is ``None`` when gamma is. (A graph of your own must not return that ``None``: MindSpore 2.10 aborts
        on a compiled graph that contains a custom kernel and returns ``None``.)

    Raises:
        TypeError, ValueError, RuntimeError: as :func:`mhc_pre`.
    """
    tensors = (x, phi, alpha, grad_h_in, grad_h_post, grad_h_res, inv_rms, h_mix, h_pre, h_post, gamma, grad_x_post)
    cell = alone("mhc_pre_backward", "mhc_pre", specs(tensors), (hc_eps,), Options(backend, precision))
    grads = cell(present(tensors))
    # joined here, outside the cell: MindSpore aborts on a graph with a custom kernel that returns None
    return grads + (None,) if gamma is None else grads


@constexpr
def _gates(n: int) -> Tensor:
    """[3, F]: which of the F gates belong to h_pre, which to h_post, which to h_res."""
    return Tensor(np.repeat(np.eye(3, dtype=np.float32), (n, n, n * n), axis=1))


def _alpha_of_each(alpha: Tensor, n: int) -> Tensor:
    """alpha [3] repeated to [1, F]."""
    return matmul(alpha.reshape(1, 3), _gates(n))


def _forward(
    x: Tensor,
    phi: Tensor,
    alpha: Tensor,
    bias: Tensor,
    gamma: Optional[Tensor],
    norm_eps: float,
    hc_eps: float,
) -> Tuple[Tensor, ...]:
    """The formulas of :func:`ms_mhc.reference.mhc_pre`."""
    tokens, dtype, n, d = x.shape[:-2], x.dtype, x.shape[-2], x.shape[-1]
    x = float32(x).reshape(-1, n, d)
    flat = x.reshape(-1, n * d)
    if gamma is not None:  # (x * gamma) @ phi.T = x @ (phi * gamma).T
        phi = phi * gamma.reshape(1, n * d)

    inv_rms = ops.rsqrt(sum_of_row(flat * flat) / (n * d) + norm_eps)
    h_mix = matmul_nt(flat, phi)
    h_2 = h_mix * inv_rms * _alpha_of_each(alpha, n) + bias
    gates = sigmoid(h_2[:, : 2 * n])
    h_pre = gates[:, :n] + hc_eps
    h_post = 2.0 * gates[:, n:]
    h_res = h_2[:, 2 * n :]
    h_in = bmm(h_pre.reshape(-1, 1, n), x)
    return (
        ops.cast(h_in.reshape(tokens + (d,)), dtype),
        h_post.reshape(tokens + (n,)),
        h_res.reshape(tokens + (n, n)),
        inv_rms.reshape(tokens),
        h_mix.reshape(tokens + (phi.shape[0],)),
        h_pre.reshape(tokens + (n,)),
    )


def _backward(
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
    """The formulas of :func:`ms_mhc.reference.mhc_pre_backward`."""
    shape, dtype, n, d = x.shape, x.dtype, x.shape[-2], x.shape[-1]
    f = phi.shape[0]
    x = float32(x).reshape(-1, n, d)
    grad_h_in = float32(grad_h_in).reshape(-1, 1, d)
    inv_rms, h_mix = inv_rms.reshape(-1, 1), h_mix.reshape(-1, f)
    h_pre, h_post = h_pre.reshape(-1, n), h_post.reshape(-1, n)

    # the gates
    h_pre_grad = bmm(x, grad_h_in.reshape(-1, d, 1)).reshape(-1, n)
    s = h_pre - hc_eps
    # 1 - s as (1 - h_pre) + hc_eps: near s = 1 the difference of the rounded s would keep few digits
    h_pre_2_grad = h_pre_grad * s * ((1.0 - h_pre) + hc_eps)
    h_post_2_grad = grad_h_post.reshape(-1, n) * h_post * (1.0 - h_post / 2.0)
    h_res_2_grad = grad_h_res.reshape(-1, n * n)
    h_2_grad = mint.cat((h_pre_2_grad, h_post_2_grad, h_res_2_grad), -1)
    grad_bias = sum_over_tokens(h_2_grad)
    alpha_terms = h_2_grad * (h_mix * inv_rms)
    grad_alpha = matmul_nt(sum_over_tokens(alpha_terms).reshape(1, -1), _gates(n)).reshape(3)

    # the product with phi
    alpha_of_each = _alpha_of_each(alpha, n)
    h_mix_grad = h_2_grad * alpha_of_each * inv_rms
    # from the gradient of inv_rms, which is that of the logarithm over inv_rms
    coefficient = matmul_nt(alpha_terms, alpha_of_each) * inv_rms * inv_rms * (-1.0 / (n * d))
    grad_phi = matmul_tn(h_mix_grad, x.reshape(-1, n * d))  # so far without gamma
    grad_gamma = None
    if gamma is not None:
        grad_gamma = mint.sum(phi * grad_phi, 0).reshape(n, d)
        scale = gamma.reshape(1, n * d)
        grad_phi = grad_phi * scale
        phi = phi * scale

    grad_x = matmul(h_mix_grad, phi).reshape(-1, n, d)
    grad_x = plus_bmm(grad_x, h_pre.reshape(-1, n, 1), grad_h_in)
    grad_x = plus_bmm(grad_x, coefficient.reshape(-1, 1, 1) * unit_matrix(n), x)
    if grad_x_post is not None:
        grad_x = grad_x + float32(grad_x_post).reshape(-1, n, d)
    return ops.cast(grad_x.reshape(shape), dtype), grad_phi, grad_alpha, grad_bias, grad_gamma


MHC_PRE = Operation(
    "mhc_pre",
    contracts={"forward": aclnn.MHC_PRE, "backward": aclnn.MHC_PRE_BACKWARD},
    composite={"forward": _forward, "backward": _backward},
    kernels={
        "forward": (aclnn.MHC_PRE, aclnn.MHC_PRE_V2),
        "backward": (aclnn.MHC_PRE_BACKWARD, aclnn.MHC_PRE_BACKWARD_V2),
    },
    results=3,
)


class MhcPre(GateCell):
    """MhcPre with its parameters: reads the layer's input and the mixing weights off N residual streams.

    See :func:`ms_mhc.mhc_pre` for the formulas. F is N*N+2N.

    Args:
        num_streams: N, the number of residual streams, >= 1.
        hidden_size: D, >= 1.
        use_gamma: learn a scale [N, D] of x in the product with phi.
        norm_eps: added to the mean square, >= 0.
        hc_eps: added to h_pre, >= 0.
        return_residual: also return x. Use that output instead of x in what comes after, and the backward kernel adds
            x's remaining gradient itself.
        precision: of the product with phi, see :func:`ms_mhc.mhc_pre`.
        backend: ``"auto"``, or a backend by name. The parameters do not depend on it.
        layout: how x is split under semi_auto_parallel, see :class:`ms_mhc.HyperConnection`.

    Parameters (float32): phi [F, N*D], alpha [3], bias [F], and with ``use_gamma`` gamma [N, D]. Initial values:
    phi ~ N(0, 1e-4), alpha 0.01, gamma 1, bias_pre -log(N-1) (20 for N = 1), bias_post 0, bias_res 5 * (I - 1).

    Inputs:
        x: [B, S, N, D] or [T, N, D], bfloat16, float16 or float32.

    Outputs:
        ``(h_in, h_post, h_res)`` or, with ``return_residual``, ``(h_in, h_post, h_res, x)``: h_in [..., D] in the dtype
        of x, h_post [..., N] and h_res [..., N, N] (logits, before Sinkhorn) in float32.

    Raises:
        TypeError: an argument of the wrong type or dtype.
        ValueError: a size below 1, a negative eps, an unknown backend, shapes that do not fit.
        RuntimeError: a backend asked for by name that this machine lacks.
    """

    def __init__(
        self,
        num_streams: int,
        hidden_size: int,
        *,
        use_gamma: bool = False,
        norm_eps: float = 1e-6,
        hc_eps: float = 1e-6,
        return_residual: bool = False,
        precision: str = "float32",
        backend: str = "auto",
        layout: Any = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        n, d = checks.sizes(name, num_streams, hidden_size)
        checks.flag(name, "use_gamma", use_gamma)
        checks.eps(name, "norm_eps", norm_eps)
        checks.eps(name, "hc_eps", hc_eps)
        checks.flag(name, "return_residual", return_residual)
        checks.one_of(name, "precision", precision, registry.PRECISIONS)
        parallel.check(name, layout)
        checks.one_of(name, "backend", backend, registry.names())
        if backend != registry.AUTO:
            registry.choose(name, Job("mhc_pre", n, d, precision=precision), backend)

        self.num_streams = n
        self.hidden_size = d
        self.norm_eps = float(norm_eps)
        self.hc_eps = float(hc_eps)
        self.return_residual = return_residual
        self.precision = precision
        self.layout = layout
        self.backend = backend
        self.phi = Parameter(initial.phi(aclnn.num_gates(n), n * d), name="phi")
        self.alpha = Parameter(Tensor(np.full(3, initial.ALPHA, np.float32)), name="alpha")
        self.bias = Parameter(Tensor(initial.bias(n)), name="bias")
        self.gamma = Parameter(Tensor(np.ones((n, d), np.float32)), name="gamma") if use_gamma else None

    def construct(self, x: Tensor) -> Tuple[Tensor, ...]:
        tensors = (self.streams(x), self.phi, self.alpha, self.bias, self.gamma)
        sizes = (self.num_streams, self.hidden_size)
        options = Options(self.backend, self.precision, self.return_residual, sizes, self.layout)
        cell = joined("MhcPre", "mhc_pre", specs(tensors), (self.norm_eps, self.hc_eps), options)
        out = cell(present(tensors))
        if self.return_residual:
            return out[0], out[1], out[2], out[6]
        return out[0], out[1], out[2]

    def extend_repr(self) -> str:
        return (
            f"num_streams={self.num_streams}, hidden_size={self.hidden_size}, use_gamma={self.gamma is not None}, "
            f"norm_eps={self.norm_eps}, hc_eps={self.hc_eps}, return_residual={self.return_residual}, "
            f"precision={self.precision!r}, backend={self.backend!r}"
        )
