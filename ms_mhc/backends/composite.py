"""The operators in MindSpore ops: everywhere, in every mode.

All arithmetic is fp32, with one cast on the way in and one on the way out. Where the formulas multiply a large tensor
by a broadcast small one, these functions use a matrix product instead: MindSpore's CPU kernels are an order of
magnitude faster at products than at broadcasting, and no temporary is larger than x. Parts of a tensor are slices, not
``mint.split``: that makes views, and graph mode gave the gradients of one layer's parameters to another's.
"""

from __future__ import annotations

from typing import Optional, Tuple

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, ops
from mindspore.ops import constexpr

from ms_mhc.backends.registry import Backend, Kernels

Tensors = Tuple[Tensor, ...]

_matmul = ops.MatMul()
_matmul_tn = ops.MatMul(transpose_a=True)
_matmul_nt = ops.MatMul(transpose_b=True)
_bmm = ops.BatchMatMul()
_bmm_tn = ops.BatchMatMul(transpose_a=True)
_bmm_nt = ops.BatchMatMul(transpose_b=True)


def _float32(x: Tensor) -> Tensor:
    return ops.cast(x, ms.float32)


@constexpr
def _identity(n: int) -> Tensor:
    return Tensor(np.eye(n, dtype=np.float32))


def _sum_over_tokens(rows: Tensor) -> Tensor:
    """[T, F] to [F]. As a product: MindSpore's CPU sum over a long leading axis loses a decimal digit in fp32."""
    return _matmul(mint.ones((1, rows.shape[0]), dtype=ms.float32), rows).reshape(-1)


def mhc_pre_forward(
    x: Tensor,
    phi: Tensor,
    alpha: Tensor,
    bias: Tensor,
    gamma: Optional[Tensor],
    norm_eps: float,
    hc_eps: float,
) -> Tensors:
    """The formulas of :func:`ms_mhc.reference.mhc_pre`."""
    tokens, dtype, n, d = x.shape[:-2], x.dtype, x.shape[-2], x.shape[-1]
    x = _float32(x).reshape(-1, n, d)
    flat = x.reshape(-1, n * d)
    if gamma is not None:  # (x * gamma) @ phi.T = x @ (phi * gamma).T
        phi = phi * gamma.reshape(1, n * d)

    inv_rms = 1.0 / ops.sqrt(mint.sum(flat * flat, -1, True) / (n * d) + norm_eps)
    h_mix = _matmul_nt(flat, phi)
    h_1 = h_mix * inv_rms
    h_pre = ops.sigmoid(h_1[:, :n] * alpha[0:1] + bias[:n]) + hc_eps
    h_post = 2.0 * ops.sigmoid(h_1[:, n : 2 * n] * alpha[1:2] + bias[n : 2 * n])
    h_res = h_1[:, 2 * n :] * alpha[2:3] + bias[2 * n :]
    h_in = _bmm(h_pre.reshape(-1, 1, n), x)
    return (
        ops.cast(h_in.reshape(tokens + (d,)), dtype),
        h_post.reshape(tokens + (n,)),
        h_res.reshape(tokens + (n, n)),
        inv_rms.reshape(tokens),
        h_mix.reshape(tokens + (n * n + 2 * n,)),
        h_pre.reshape(tokens + (n,)),
    )


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
    gamma: Optional[Tensor],
    grad_x_post: Optional[Tensor],
    hc_eps: float,
) -> Tuple[Tensor, Tensor, Tensor, Tensor, Optional[Tensor]]:
    """The formulas of :func:`ms_mhc.reference.mhc_pre_backward`."""
    shape, dtype, n, d = x.shape, x.dtype, x.shape[-2], x.shape[-1]
    f = n * n + 2 * n
    x = _float32(x).reshape(-1, n, d)
    grad_h_in = _float32(grad_h_in).reshape(-1, 1, d)
    inv_rms, h_mix = inv_rms.reshape(-1, 1), h_mix.reshape(-1, f)
    h_pre, h_post = h_pre.reshape(-1, n), h_post.reshape(-1, n)

    # the gates
    h_pre_grad = _bmm(x, grad_h_in.reshape(-1, d, 1)).reshape(-1, n)
    s = h_pre - hc_eps
    # 1 - s as (1 - h_pre) + hc_eps: near s = 1 the difference of the rounded s would keep few digits
    h_pre_2_grad = h_pre_grad * s * ((1.0 - h_pre) + hc_eps)
    h_post_2_grad = grad_h_post.reshape(-1, n) * h_post * (1.0 - h_post / 2.0)
    h_res_2_grad = grad_h_res.reshape(-1, n * n)
    h_2_grad = mint.cat((h_pre_2_grad, h_post_2_grad, h_res_2_grad), -1)
    grad_bias = _sum_over_tokens(h_2_grad)
    alpha_terms = _sum_over_tokens(h_2_grad * (h_mix * inv_rms))
    parts = (alpha_terms[:n], alpha_terms[n : 2 * n], alpha_terms[2 * n :])
    grad_alpha = mint.cat([mint.sum(part, 0, True) for part in parts])

    # the product with phi
    h_mix_tmp_grad = mint.cat((h_pre_2_grad * alpha[0:1], h_post_2_grad * alpha[1:2], h_res_2_grad * alpha[2:3]), -1)
    h_mix_grad = h_mix_tmp_grad * inv_rms
    inv_rms_grad = mint.sum(h_mix_tmp_grad * h_mix, -1, True)
    grad_phi = _matmul_tn(h_mix_grad, x.reshape(-1, n * d))  # so far without gamma
    grad_gamma = None
    if gamma is not None:
        grad_gamma = mint.sum(phi * grad_phi, 0).reshape(n, d)
        scale = gamma.reshape(1, n * d)
        grad_phi = grad_phi * scale
        phi = phi * scale

    coefficient = inv_rms_grad * inv_rms * inv_rms * inv_rms * (-1.0 / (n * d))
    grad_x = (
        _bmm(h_pre.reshape(-1, n, 1), grad_h_in)
        + _bmm(coefficient.reshape(-1, 1, 1) * _identity(n), x)
        + _matmul(h_mix_grad, phi).reshape(-1, n, d)
    )
    if grad_x_post is not None:
        grad_x = grad_x + _float32(grad_x_post).reshape(-1, n, d)
    return ops.cast(grad_x.reshape(shape), dtype), grad_phi, grad_alpha, grad_bias, grad_gamma


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


def mhc_sinkhorn_forward(h_res: Tensor, eps: float, num_iters: int, recipe: str) -> Tensor:
    """The steps of :func:`ms_mhc.reference.mhc_sinkhorn`. Nothing is saved: the backward recomputes."""
    n = h_res.shape[-1]
    y = _sinkhorn_start(h_res.reshape(-1, n, n), eps, recipe).reshape(-1, n * n)
    for sums in _step_sums(n, num_iters, recipe):
        y = y / (_matmul(y, sums) + eps)
    return y.reshape(h_res.shape)


def mhc_sinkhorn_backward(
    grad_output: Tensor, h_res: Tensor, saved: Tensors, eps: float, num_iters: int, recipe: str
) -> Tensor:
    """The derivative of what :func:`mhc_sinkhorn_forward` computed, step by step."""
    shape, n = h_res.shape, h_res.shape[-1]
    h_res = h_res.reshape(-1, n, n)
    start = _sinkhorn_start(h_res, eps, recipe)
    y = start.reshape(-1, n * n)
    steps = _step_sums(n, num_iters, recipe)
    trace: Tuple[Tuple[Tensor, Tensor], ...] = ()
    for sums in steps:
        total = _matmul(y, sums) + eps
        y = y / total
        trace = trace + ((total, y),)

    grad = grad_output.reshape(-1, n * n)
    for k in range(len(steps)):
        total, y = trace[-1 - k]
        grad = (grad - _matmul(grad * y, steps[-1 - k])) / total
    grad = grad.reshape(-1, n, n)
    if recipe == "deepseek_v4":
        softmax = start - eps
        return (softmax * (grad - mint.sum(grad * softmax, -1, True))).reshape(shape)
    # exp(x - rowmax): the largest entry of each row (the first of equals) is a function of x as well
    grad = grad * start
    largest = ops.one_hot(ops.argmax(h_res, -1), n, Tensor(1.0, ms.float32), Tensor(0.0, ms.float32))
    return (grad - largest * mint.sum(grad, -1, True)).reshape(shape)


def mhc_post_forward(x: Tensor, h_res: Optional[Tensor], h_out: Tensor, h_post: Tensor) -> Tensor:
    """The formula of :func:`ms_mhc.reference.mhc_post`."""
    shape, dtype, n, d = x.shape, x.dtype, x.shape[-2], x.shape[-1]
    x = _float32(x).reshape(-1, n, d)
    if h_res is not None:
        x = _bmm_tn(h_res.reshape(-1, n, n), x)
    out = _bmm(h_post.reshape(-1, n, 1), _float32(h_out).reshape(-1, 1, d)) + x
    return ops.cast(out.reshape(shape), dtype)


def mhc_post_backward(
    grad_output: Tensor, x: Tensor, h_res: Optional[Tensor], h_out: Tensor, h_post: Tensor
) -> Tuple[Tensor, Optional[Tensor], Tensor, Tensor]:
    """The formulas of :func:`ms_mhc.reference.mhc_post_backward`; no grad_h_res where there is no h_res."""
    shape, dtype, n, d = x.shape, x.dtype, x.shape[-2], x.shape[-1]
    grad = _float32(grad_output).reshape(-1, n, d)
    grad_h_out = _bmm(h_post.reshape(-1, 1, n), grad).reshape(h_out.shape)
    grad_h_post = _bmm(grad, _float32(h_out).reshape(-1, d, 1)).reshape(h_post.shape)
    if h_res is None:
        return grad_output, None, ops.cast(grad_h_out, dtype), grad_h_post
    grad_x = _bmm(h_res.reshape(-1, n, n), grad).reshape(shape)
    grad_h_res = _bmm_nt(_float32(x).reshape(-1, n, d), grad).reshape(h_res.shape)
    return ops.cast(grad_x, dtype), grad_h_res, ops.cast(grad_h_out, dtype), grad_h_post


_KERNELS = {
    "mhc_pre": Kernels(mhc_pre_forward, mhc_pre_backward),
    "mhc_sinkhorn": Kernels(mhc_sinkhorn_forward, mhc_sinkhorn_backward),
    "mhc_post": Kernels(mhc_post_forward, mhc_post_backward),
}

BACKEND = Backend("composite", refusal=lambda job: None, kernels=lambda job, by_name: _KERNELS[job.operator])
