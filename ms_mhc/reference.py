"""The operators in NumPy float64, written to be read beside the formulas.

Symbols follow the aclnn documents, in snake_case. Leading dimensions of x are free: ``[T, N, D]`` and ``[B, S, N, D]``
give the same numbers. Nothing here is fast, and nothing here knows MindSpore: these functions are what every backend is
compared with, and they are themselves checked against central differences.
"""

from __future__ import annotations

from typing import NamedTuple, Optional, Tuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


class MhcPreOutputs(NamedTuple):
    """What :func:`mhc_pre` returns, in the order of aclnnMhcPre."""

    h_in: Array
    h_post: Array
    h_res: Array
    inv_rms: Array
    h_mix: Array
    h_pre: Array


class MhcPreGradients(NamedTuple):
    """What :func:`mhc_pre_backward` returns, in the order of aclnnMhcPreBackward."""

    grad_x: Array
    grad_phi: Array
    grad_alpha: Array
    grad_bias: Array
    grad_gamma: Optional[Array]


class MhcPostGradients(NamedTuple):
    """What :func:`mhc_post_backward` returns, in the order of aclnnMhcPostBackward."""

    grad_x: Array
    grad_h_res: Array
    grad_h_out: Array
    grad_h_post: Array


def _double(value: ArrayLike) -> Array:
    return np.asarray(value, dtype=np.float64)


def _sigmoid(z: Array) -> Array:
    exp = np.exp(-np.abs(z))  # never overflows
    return np.where(z >= 0, 1.0, exp) / (1.0 + exp)


def mhc_pre(
    x: ArrayLike,
    phi: ArrayLike,
    alpha: ArrayLike,
    bias: ArrayLike,
    gamma: Optional[ArrayLike] = None,
    *,
    norm_eps: float = 1e-6,
    hc_eps: float = 1e-6,
) -> MhcPreOutputs:
    """aclnnMhcPre.

    Shapes: x ``[..., N, D]``, phi ``[N*N+2N, N*D]``, alpha ``[3]``, bias ``[N*N+2N]``, gamma ``[N, D]`` or ``None``
    for ones. inv_rms is taken of x without gamma; h_mix is the product before it is multiplied by inv_rms.
    """
    x, phi, alpha, bias = map(_double, (x, phi, alpha, bias))
    *tokens, n, d = x.shape
    x_rs = (x if gamma is None else x * _double(gamma)).reshape(*tokens, n * d)

    inv_rms = 1.0 / np.sqrt(np.mean(x**2, axis=(-2, -1)) + norm_eps)
    h_mix = x_rs @ phi.T
    h_pre_1, h_post_1, h_res_1 = np.split(h_mix * inv_rms[..., None], [n, 2 * n], axis=-1)
    bias_pre, bias_post, bias_res = np.split(bias, [n, 2 * n])

    h_pre = _sigmoid(alpha[0] * h_pre_1 + bias_pre) + hc_eps
    h_post = 2.0 * _sigmoid(alpha[1] * h_post_1 + bias_post)
    h_res = (alpha[2] * h_res_1 + bias_res).reshape(*tokens, n, n)
    h_in = np.sum(h_pre[..., None] * x, axis=-2)
    return MhcPreOutputs(h_in, h_post, h_res, inv_rms, h_mix, h_pre)


def mhc_pre_backward(
    x: ArrayLike,
    phi: ArrayLike,
    alpha: ArrayLike,
    grad_h_in: ArrayLike,
    grad_h_post: ArrayLike,
    grad_h_res: ArrayLike,
    inv_rms: ArrayLike,
    h_mix: ArrayLike,
    h_pre: ArrayLike,
    h_post: ArrayLike,
    gamma: Optional[ArrayLike] = None,
    grad_x_post: Optional[ArrayLike] = None,
    *,
    hc_eps: float = 1e-6,
) -> MhcPreGradients:
    """aclnnMhcPreBackward, with the corrections to its document.

    The inv_rms term of grad_x multiplies x, not ``x * gamma``; grad_alpha of the residual part multiplies H_res_1,
    which is ``h_mix * inv_rms``; grad_gamma uses the product with phi alone.
    """
    x, phi, alpha = map(_double, (x, phi, alpha))
    inv_rms, h_mix, h_pre, h_post = map(_double, (inv_rms, h_mix, h_pre, h_post))
    grad_h_in, grad_h_post, grad_h_res = map(_double, (grad_h_in, grad_h_post, grad_h_res))
    *tokens, n, d = x.shape
    f = n * n + 2 * n
    rows = int(np.prod(tokens))
    scale = np.ones((n, d)) if gamma is None else _double(gamma)

    # the gates
    h_pre_grad = np.sum(grad_h_in[..., None, :] * x, axis=-1)
    s = h_pre - hc_eps
    h_pre_2_grad = h_pre_grad * s * (1.0 - s)
    h_post_2_grad = grad_h_post * h_post * (1.0 - h_post / 2.0)
    h_res_2_grad = grad_h_res.reshape(*tokens, n * n)
    gates = (h_pre_2_grad, h_post_2_grad, h_res_2_grad)
    h_1 = np.split(h_mix * inv_rms[..., None], [n, 2 * n], axis=-1)
    grad_alpha = np.array([np.sum(grad * value) for grad, value in zip(gates, h_1)])
    grad_bias = np.concatenate([grad.reshape(rows, grad.shape[-1]).sum(axis=0) for grad in gates])

    # the product with phi
    h_mix_tmp_grad = np.concatenate([grad * a for grad, a in zip(gates, alpha)], axis=-1)
    h_mix_grad = (h_mix_tmp_grad * inv_rms[..., None]).reshape(rows, f)
    inv_rms_grad = np.sum(h_mix_tmp_grad * h_mix, axis=-1)
    grad_phi = h_mix_grad.T @ (x * scale).reshape(rows, n * d)
    x_rs_grad = (h_mix_grad @ phi).reshape(x.shape)
    grad_gamma = None if gamma is None else np.sum((x * x_rs_grad).reshape(rows, n, d), axis=0)

    grad_x = (
        h_pre[..., None] * grad_h_in[..., None, :]
        - (inv_rms_grad * inv_rms**3 / (n * d))[..., None, None] * x
        + x_rs_grad * scale
    )
    if grad_x_post is not None:
        grad_x = grad_x + _double(grad_x_post)
    return MhcPreGradients(grad_x, grad_phi, grad_alpha, grad_bias, grad_gamma)


def _sinkhorn_steps(
    h_res: Array, num_iters: int, eps: float, recipe: str
) -> Tuple[Array, list[Tuple[int, Array, Array]]]:
    """The matrix before the first step, and of each step its axis, its sum (with eps) and its result."""
    exp = np.exp(h_res - h_res.max(axis=-1, keepdims=True))
    if recipe == "deepseek_v4":
        start = exp / exp.sum(axis=-1, keepdims=True) + eps
        axes = [-2] + [-1, -2] * (num_iters - 1)
    elif recipe == "paper":
        start = exp
        axes = [-1, -2] * num_iters
    else:
        raise ValueError(f"recipe {recipe!r} is not 'deepseek_v4' or 'paper'")
    y, steps = start, []
    for axis in axes:
        total = y.sum(axis=axis, keepdims=True) + eps
        y = y / total
        steps.append((axis, total, y))
    return start, steps


def mhc_sinkhorn(h_res: ArrayLike, *, num_iters: int = 20, eps: float = 1e-6, recipe: str = "deepseek_v4") -> Array:
    """Logits ``[..., N, N]`` to nearly doubly stochastic matrices.

    ``"deepseek_v4"`` is what aclnnMhcSinkhorn does: a softmax over the last axis, plus eps, one division by the column
    sums, then ``num_iters - 1`` times rows and columns. ``"paper"`` is the mHC paper's: ``exp(x - rowmax)``, then
    ``num_iters`` times rows and columns. Every sum has eps added before it divides.
    """
    return _sinkhorn_steps(_double(h_res), num_iters, eps, recipe)[1][-1][2]


def mhc_sinkhorn_backward(
    grad_output: ArrayLike,
    h_res: ArrayLike,
    *,
    num_iters: int = 20,
    eps: float = 1e-6,
    recipe: str = "deepseek_v4",
) -> Array:
    """The derivative of what :func:`mhc_sinkhorn` computed, converged or not."""
    x = _double(h_res)
    start, steps = _sinkhorn_steps(x, num_iters, eps, recipe)
    grad = _double(grad_output)
    for axis, total, y in reversed(steps):
        grad = (grad - np.sum(grad * y, axis=axis, keepdims=True)) / total
    if recipe == "deepseek_v4":
        softmax = start - eps
        return softmax * (grad - np.sum(grad * softmax, axis=-1, keepdims=True))
    # exp(x - rowmax): the largest entry of each row (the first of equals) is a function of x as well
    grad = grad * start
    largest = np.argmax(x, axis=-1)[..., None] == np.arange(x.shape[-1])
    return grad - largest * grad.sum(axis=-1, keepdims=True)


def mhc_pre_sinkhorn(
    x: ArrayLike,
    phi: ArrayLike,
    alpha: ArrayLike,
    bias: ArrayLike,
    gamma: Optional[ArrayLike] = None,
    *,
    num_iters: int = 20,
    norm_eps: float = 1e-6,
    hc_eps: float = 1e-6,
    sinkhorn_eps: float = 1e-6,
    recipe: str = "deepseek_v4",
) -> MhcPreOutputs:
    """:func:`mhc_pre` with h_res after :func:`mhc_sinkhorn` (aclnnMhcPreSinkhorn, without its roundings)."""
    out = mhc_pre(x, phi, alpha, bias, gamma, norm_eps=norm_eps, hc_eps=hc_eps)
    return out._replace(h_res=mhc_sinkhorn(out.h_res, num_iters=num_iters, eps=sinkhorn_eps, recipe=recipe))


def mhc_pre_sinkhorn_backward(
    x: ArrayLike,
    phi: ArrayLike,
    alpha: ArrayLike,
    bias: ArrayLike,
    grad_h_in: ArrayLike,
    grad_h_post: ArrayLike,
    grad_h_res: ArrayLike,
    inv_rms: ArrayLike,
    h_mix: ArrayLike,
    h_pre: ArrayLike,
    h_post: ArrayLike,
    gamma: Optional[ArrayLike] = None,
    grad_x_post: Optional[ArrayLike] = None,
    *,
    num_iters: int = 20,
    hc_eps: float = 1e-6,
    sinkhorn_eps: float = 1e-6,
    recipe: str = "deepseek_v4",
) -> MhcPreGradients:
    """The gradients of :func:`mhc_pre_sinkhorn`: those of the matrices go through Sinkhorn to the logits, then on."""
    grad_h_res, h_mix, alpha = _double(grad_h_res), _double(h_mix), _double(alpha)
    n = grad_h_res.shape[-1]
    logits = alpha[2] * h_mix[..., 2 * n :] * _double(inv_rms)[..., None] + _double(bias)[2 * n :]
    logits = logits.reshape(grad_h_res.shape)
    grad_logits = mhc_sinkhorn_backward(grad_h_res, logits, num_iters=num_iters, eps=sinkhorn_eps, recipe=recipe)
    return mhc_pre_backward(
        x, phi, alpha, grad_h_in, grad_h_post, grad_logits, inv_rms, h_mix, h_pre, h_post, gamma, grad_x_post,
        hc_eps=hc_eps,
    )  # fmt: skip


def mhc_post(x: ArrayLike, h_res: Optional[ArrayLike], h_out: ArrayLike, h_post: ArrayLike) -> Array:
    """aclnnMhcPost: ``out[j] = h_post[j] * h_out + sum_i h_res[i, j] * x[i]``; h_res ``None`` is the identity."""
    x, h_out, h_post = map(_double, (x, h_out, h_post))
    mixed = x if h_res is None else np.swapaxes(_double(h_res), -1, -2) @ x
    return h_post[..., None] * h_out[..., None, :] + mixed


def mhc_post_backward(
    grad_output: ArrayLike,
    x: ArrayLike,
    h_res: Optional[ArrayLike],
    h_out: ArrayLike,
    h_post: ArrayLike,
) -> MhcPostGradients:
    """aclnnMhcPostBackward; grad_h_res is computed even where h_res is ``None``."""
    grad, x, h_out, h_post = map(_double, (grad_output, x, h_out, h_post))
    return MhcPostGradients(
        grad_x=grad if h_res is None else _double(h_res) @ grad,
        grad_h_res=x @ np.swapaxes(grad, -1, -2),
        grad_h_out=np.sum(h_post[..., None] * grad, axis=-2),
        grad_h_post=np.sum(grad * h_out[..., None, :], axis=-1),
    )


def mhc_head(
    x: ArrayLike, phi: ArrayLike, scale: ArrayLike, bias: ArrayLike, *, norm_eps: float = 1e-6, hc_eps: float = 1e-6
) -> Array:
    """DeepSeek V4's learned collapse: ``sum_i (sigmoid(scale * mix[i] + bias[i]) + hc_eps) * x[i]``."""
    x, phi, scale, bias = map(_double, (x, phi, scale, bias))
    flat = x.reshape(*x.shape[:-2], -1)
    inv_rms = 1.0 / np.sqrt(np.mean(flat**2, axis=-1, keepdims=True) + norm_eps)
    gates = _sigmoid(scale * (flat @ phi.T) * inv_rms + bias) + hc_eps
    return np.sum(gates[..., None] * x, axis=-2)
