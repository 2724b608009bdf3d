"""MhcPreSinkhorn as the vendor's kernels compute it, deviations included, in NumPy float64 (ACLNN_SPEC.md 7 and 8).

Written from the formulas, not from the host's C++: the host is compared with it.
"""

from __future__ import annotations

from typing import Any, Dict, Tuple

import numpy as np

Array = np.ndarray


def hf32(values: Array) -> Array:
    """float32 with 10 explicit bits of fraction, halves away from zero."""
    values = np.asarray(values, np.float32)
    mantissa, exponent = np.frexp(values.astype(np.float64))  # 0.5 <= |mantissa| < 1: 11 bits are kept
    scaled = np.abs(mantissa) * 2.0**11
    return np.sign(values) * np.ldexp(np.floor(scaled + 0.5), exponent - 11)


def exact(values: Array) -> Array:
    return np.asarray(values, np.float64)


def sigmoid(z: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-z)))


def gates(mix: Array, inv_rms: Array, alpha: Array, bias: Array, n: int) -> Tuple[Array, Array, Array]:
    """The arguments of the two gates and the logits of the mixing matrix."""
    per_row = np.repeat(exact(alpha), (n, n, n * n))
    z = mix * inv_rms[..., None] * per_row + exact(bias)
    return z[..., :n], z[..., n : 2 * n], z[..., 2 * n :].reshape(*z.shape[:-1], n, n)


def forward(v: Dict[str, Any], on_950: bool, product: Any = hf32) -> Dict[str, Array]:
    """The outputs of aclnnMhcPreSinkhorn by their names in snake_case."""
    x, eps, steps = exact(v["x"]), v["hcEps"], 2 * v["numIters"]
    n = x.shape[-2]
    flat = x.reshape(*x.shape[:-2], -1)
    inv_rms = 1 / np.sqrt((flat**2).mean(-1) + v["normEps"])
    mix = exact(product(flat)) @ exact(product(v["phi"])).T
    pre, post, logits = gates(mix, inv_rms, v["alpha"], v["bias"], n)
    h_pre = sigmoid(pre) + eps
    e = np.exp(logits - logits.max(-1, keepdims=True))
    y = e / e.sum(-1, keepdims=True) + eps
    norm, sums = [y], [e.sum(-1) + (eps if on_950 else 0)]
    for step in range(1, steps):
        axis = -2 if step % 2 else -1
        total = y.sum(axis, keepdims=True)
        y = y / (total + eps)
        norm.append(y)
        sums.append(total.squeeze(axis) + (eps if on_950 or step > 1 else 0))
    return {
        "hin": np.einsum("...n,...nd->...d", h_pre, x),
        "h_post": 2 * sigmoid(post),
        "h_res": y.reshape(*y.shape[:-2], n * n),
        "h_pre": h_pre,
        "hc_before_norm": mix,
        "inv_rms": inv_rms[..., None],
        "sum_out": np.stack(sums),
        "norm_out": np.stack(norm),
    }


def backward(v: Dict[str, Any], on_950: bool, product: Any = None) -> Dict[str, Array]:
    """The outputs of aclnnMhcPreSinkhornBackward by their names in snake_case."""
    x, phi, alpha, eps = exact(v["x"]), v["phi"], exact(v["alpha"]), v["hcEps"]
    n, d = x.shape[-2:]
    mix, inv_rms, grad_h_in = exact(v["hcBeforeNorm"]), exact(v["invRms"])[..., 0], exact(v["gradHin"])
    pre, post, logits = gates(mix, inv_rms, alpha, v["bias"], n)
    s = sigmoid(pre) - (eps if on_950 else 0)
    d_pre = np.einsum("...d,...nd->...n", grad_h_in, x) * s * (1 - s)
    d_post = 2 * exact(v["gradHPost"]) * sigmoid(post) * (1 - sigmoid(post))
    g = exact(v["gradHRes"]).reshape(logits.shape)
    norm, sums = exact(v["normOut"]), exact(v["sumOut"]) + (0 if on_950 else eps)
    for step in range(len(sums) - 2, -1, -2):
        rows, columns, normed = sums[step][..., None], sums[step + 1][..., None, :], norm[step]
        g = g / columns - (g * normed / columns**2).sum(-2, keepdims=True)
        g = g / rows - (g * normed / rows).sum(-1, keepdims=True)
    e = np.exp(logits - logits.max(-1, keepdims=True))
    largest = np.arange(n) == logits.argmax(-1)[..., None]
    d_res = e * g - largest * (e * g).sum(-1, keepdims=True)
    d_all = np.concatenate([d_pre, d_post, d_res.reshape(*d_res.shape[:-2], n * n)], -1)
    u = mix * inv_rms[..., None]
    grad_u = d_all * np.repeat(alpha, (n, n, n * n))
    grad_mix, grad_inv = grad_u * inv_rms[..., None], (grad_u * mix).sum(-1)
    product = product or (exact if on_950 else hf32)
    m = (exact(product(grad_mix)) @ exact(product(phi))).reshape(x.shape)
    tokens = grad_inv.size
    grad_phi = exact(product(grad_mix)).reshape(tokens, -1).T @ exact(product(x)).reshape(tokens, -1)
    share = -grad_inv * inv_rms**3 / (n * d)
    by_gate = np.split((d_all * u).reshape(tokens, -1), [n, 2 * n], -1)
    return {
        "grad_x": exact(v["hPre"])[..., None] * grad_h_in[..., None, :] + share[..., None, None] * x + m,
        "grad_phi": grad_phi,
        "grad_alpha": np.array([part.sum() for part in by_gate]),
        "grad_bias": d_all.reshape(tokens, -1).sum(0),
    }
