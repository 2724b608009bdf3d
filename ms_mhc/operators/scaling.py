"""Sinkhorn's steps and their derivative in MindSpore ops, by scaling vectors.

After every step the matrices are ``diag(r) @ m @ diag(c)`` with the matrices m before the first step. With ``u = 1/r``
and ``v = 1/c``, a division of rows (or columns) by their sums plus eps is ``u = m @ c + eps * u`` (or
``v = m.T @ r + eps * v``): one product of a matrix and a vector, and a reciprocal.

A column whose logits are all small underflows in float32, and a later step may make it large again. Therefore a column
j of m may be divided by ``exp(-shift[j])``. The steps stay the same, and v starts at ``exp(shift)`` instead of 1.
"""

from __future__ import annotations

import math
from typing import Tuple

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, ops
from mindspore.ops import constexpr

from ms_mhc.operators.arithmetic import bmm, bmm_nt, bmm_tn

# Above it the softmax plus eps has no small columns.
_SAFE_EPS = 1e-12
# exp(-745) is the smallest number in float64, exp(88) nearly the largest in float32.
_FLOAT64_RANGE, _FLOAT32_RANGE = 745.0, 88.0
# A prepared step takes N*N floats a token; so many of them take no more than x with D = 128.
_PREPARED = 128


@constexpr
def _fused() -> bool:
    """Whether the device adds to a product in the same launch: MindSpore has no such kernel for the CPU."""
    return bool(ms.get_context("device_target") == "Ascend")


@constexpr
def _small_columns(eps: float, recipe: str) -> bool:
    """Whether m may have columns that float32 holds only after a shift."""
    return recipe == "paper" or eps < _SAFE_EPS


@constexpr
def _log(eps: float) -> float:
    return math.log(eps)


@constexpr
def _log_powers(eps: float, num_iters: int) -> Tensor:
    """[1, 1, I]: log(eps**k) for k = 1 to I."""
    return Tensor((math.log(eps) * np.arange(1, num_iters + 1)).reshape(1, 1, -1).astype(np.float32))


@constexpr
def _one() -> Tensor:
    return Tensor(np.ones((1, 1, 1), np.float32))


def _step(before: Tensor, eps: float, matrices: Tensor, vectors: Tensor) -> Tensor:
    """matrices @ vectors + eps * before."""
    if _fused():
        return mint.baddbmm(before, matrices, vectors, beta=eps)
    return mint.add(bmm(matrices, vectors), before, alpha=eps)


def _reciprocal(x: Tensor, small: bool) -> Tensor:
    """1 / x, and no larger than what float32 can square."""
    return mint.reciprocal(ops.maximum(x, 1e-18) if small else x)


def _parts(x: Tensor, count: int) -> Tuple[Tensor, ...]:
    """x in equal parts of its last dimension, copied in one launch."""
    if count == 1:
        return (x,)
    return ops.Split(2, count)(x)


def _start(h_res: Tensor, eps: float, recipe: str) -> Tuple[Tensor, Tensor, Tensor]:
    """Of logits [T, N, N]: m, the part of it that is not eps, and the shift [T, N, 1]."""
    if not _small_columns(eps, recipe):
        softmax = ops.softmax(h_res, -1)
        return softmax + eps, softmax, _one() * 0.0
    logits = h_res - ops.amax(h_res, -1, keepdims=True)
    if recipe == "deepseek_v4":
        logits = logits - ops.log(mint.sum(ops.exp(logits), -1, True))
    shift = -ops.amax(logits, -2, keepdims=True)
    start_eps = recipe == "deepseek_v4" and eps > 0
    if start_eps:
        shift = ops.minimum(shift, -_log(eps))
    bounded = ops.minimum(shift, _FLOAT64_RANGE)
    values = ops.exp(logits + bounded)
    m = values
    if start_eps:
        m = values + ops.exp(bounded + _log(eps))
    return m, values, shift.reshape(-1, h_res.shape[-1], 1)


def _carried(shift: Tensor, eps: float, num_iters: int) -> Tuple[Tensor, ...]:
    """What is left of the start value of v after each iteration: eps**k * exp(shift), as large as float32 allows.

    Columns that are zero in float64 stay zero.
    """
    shift = shift + ops.maximum(shift - _FLOAT64_RANGE, 0.0) * 1e30
    return _parts(ops.exp(ops.minimum(shift + _log_powers(eps, num_iters), _FLOAT32_RANGE)), num_iters)


def forward(h_res: Tensor, eps: float, num_iters: int, recipe: str) -> Tuple[Tensor, Tensor]:
    """The matrices of logits [T, N, N], and r of all iterations and then c of all iterations, [T, N, 2*I]."""
    m, _, shift = _start(h_res, eps, recipe)
    m_t = ops.transpose(m, (0, 2, 1))
    paper = recipe == "paper"
    r = mint.ones((h_res.shape[0], h_res.shape[1], 1), dtype=ms.float32)
    c = r
    u, v = _one(), _one()
    carried: Tuple[Tensor, ...] = ()
    if paper:
        c = ops.exp(-shift)
        if eps > 0:
            carried = _carried(shift, eps, num_iters)
            v = v * 0.0  # without what is carried
    elif _small_columns(eps, recipe):
        v = ops.exp(ops.minimum(shift, _FLOAT32_RANGE))
    rows: Tuple[Tensor, ...] = ()
    columns: Tuple[Tensor, ...] = ()
    small = _small_columns(eps, recipe)
    for k in range(num_iters):
        if k > 0 or paper:
            u = _step(u, eps, m, c)
            r = _reciprocal(u, small)
        v = _step(v, eps, m_t, r)
        c = _reciprocal(v + carried[k] if paper and eps > 0 else v, small)
        rows, columns = rows + (r,), columns + (c,)
    scalings = mint.cat(rows + columns, -1)
    return m * bmm_nt(r, c), scalings


def backward(grad: Tensor, h_res: Tensor, scalings: Tensor, eps: float, num_iters: int, recipe: str) -> Tensor:
    """From the gradient of the matrices to that of the logits. The shift is constant: the matrices do not depend on it.

    The gradients of u and v follow the steps backwards: ``gv = eps * gv - c**2 * (m.T @ gu)``, and
    ``gu = eps * gu - r**2 * (m @ gv)``.
    """
    n = h_res.shape[-1]
    m, values, shift = _start(h_res, eps, recipe)
    m_t = ops.transpose(m, (0, 2, 1))
    vectors = _parts(scalings, 2 * num_iters)
    r, c = vectors[num_iters - 1], vectors[2 * num_iters - 1]
    squares = -(scalings * scalings).expand_dims(-1)

    direct = grad * bmm_nt(r, c)
    grad_m = grad * m
    gv = -(c * c * bmm_tn(grad_m, r))
    gu = -(r * r * bmm(grad_m, c))
    first = 0 if recipe == "paper" else 1
    left: Tuple[Tensor, ...] = ()
    right: Tuple[Tensor, ...] = ()
    piece = max(1, _PREPARED // n)
    for end in range(num_iters, 0, -piece):
        begin = max(0, end - piece)
        of_rows = _prepared(squares[:, :, begin:end], m, end - begin)
        of_columns = _prepared(squares[:, :, num_iters + begin : num_iters + end], m_t, end - begin)
        for k in range(end - 1, begin - 1, -1):
            eps_of_gu = 1.0
            if k < num_iters - 1:
                gv = _step(gv, eps, of_columns[k - begin], gu)
                eps_of_gu = eps
            left, right = left + (vectors[k],), right + (gv,)
            if k >= first:
                gu = _step(gu, eps_of_gu, of_rows[k - begin], gv)
                c_before = vectors[num_iters + k - 1] if k > 0 else ops.exp(-shift)
                left, right = left + (gu,), right + (c_before,)
    grad_m = direct + bmm_nt(mint.cat(left, -1), mint.cat(right, -1))
    grad_values = grad_m * values
    total = mint.sum(grad_values, -1, True)
    if recipe == "deepseek_v4":
        return grad_values - ops.softmax(h_res, -1) * total
    # exp(x - rowmax): the largest entry of each row (the first of equals) is a function of x as well
    largest = ops.one_hot(ops.max(h_res, -1)[1], n, Tensor(1.0, ms.float32), Tensor(0.0, ms.float32))
    return grad_values - largest * total


def _prepared(squares: Tensor, matrices: Tensor, count: int) -> Tuple[Tensor, ...]:
    """For each of these iterations its squares [T, N, 1] times the matrices."""
    n = matrices.shape[-1]
    return _parts((squares * matrices.expand_dims(2)).reshape(-1, n, count * n), count)
