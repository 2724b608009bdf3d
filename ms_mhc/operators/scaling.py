"""Sinkhorn's steps and their derivative in MindSpore ops, by scaling vectors.

After every step the matrices are ``diag(r) @ m @ diag(c)`` with the matrices m before the first step. With ``u = 1/r``
and ``v = 1/c``, a division of rows (or columns) by their sums plus eps is ``u = m @ c + eps * u`` (or
``v = m.T @ r + eps * v``): one product of a matrix and a vector, and a reciprocal.

A column whose logits are all small underflows in float32, and a later step may make it large again. Therefore a column
j of m may be divided by ``exp(-shift[j])``. The steps stay the same, and v starts at ``exp(shift)`` instead of 1. And r
may grow by a factor of N with each iteration, for ever where no doubly stochastic matrix has m's zeros. Therefore the
iterations come in blocks, and each block starts from the logarithms of the matrices that the one before left.
"""

from __future__ import annotations

import math
from typing import Any, Tuple

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, ops
from mindspore.ops import constexpr

from ms_mhc.operators import small_matrices as small

# Above it the softmax plus eps has no small columns, and r and c stay below 1/eps.
_SAFE_EPS = 1e-12
# 1e-19 and the square of its reciprocal are float32 numbers.
_LEAST = 1e-19
# exp(-745) is the smallest number in float64, exp(88) nearly the largest in float32.
_FLOAT64_RANGE, _FLOAT32_RANGE = 745.0, 88.0
_NORMAL = 1.2e-38  # the smallest normal number in float32
# A prepared product takes N*N floats a token; so many of them take no more than x with D = 128.
_PREPARED = 128


@constexpr
def _small_columns(eps: float, recipe: str) -> bool:
    """Whether m may have columns that float32 holds only after a shift."""
    return recipe == "paper" or eps < _SAFE_EPS


@constexpr
def _blocks(n: int, num_iters: int) -> Tuple[Tuple[int, int], ...]:
    """The first iteration, and the one after the last, of each block."""
    longest = int(-math.log(_LEAST) / math.log(max(n, 2)))
    return tuple((begin, min(begin + longest, num_iters)) for begin in range(0, num_iters, longest))


@constexpr
def _pieces(begin: int, end: int, n: int) -> Tuple[Tuple[int, int], ...]:
    """The iterations of a block in parts whose products may be prepared together, the last part first."""
    longest = max(1, _PREPARED // n)
    return tuple((max(begin, to - longest), to) for to in range(end, begin, -longest))


@constexpr
def _log(eps: float) -> float:
    return math.log(eps)


@constexpr
def _log_powers(eps: float, num_iters: int) -> Tensor:
    """[1, 1, I]: log(eps**k) for k = 1 to I."""
    return Tensor((math.log(eps) * np.arange(1, num_iters + 1)).reshape(1, 1, -1).astype(np.float32))


def _reciprocal(x: Tensor, bounded: bool) -> Tensor:
    """1 / x, and no larger than what float32 can square."""
    return mint.reciprocal(ops.maximum(x, _LEAST) if bounded else x)


def _log_softmax(h_res: Tensor) -> Tensor:
    logits = h_res - ops.amax(h_res, -1, keepdims=True)
    return logits - ops.log(mint.sum(ops.exp(logits), -1, True))


def _log_start(h_res: Tensor, eps: float, recipe: str) -> Tensor:
    """The logarithms of the matrices [T, N, N] before the first step.

    A NaN makes its whole matrix NaN, as dividing by sums would: MindSpore's maxima and minima drop it on the CPU.
    """
    logs = h_res - ops.amax(h_res, -1, keepdims=True) if recipe == "paper" else _log_softmax(h_res)
    logs = logs + 0.0 * mint.sum(ops.exp(logs), (-2, -1), True)
    if recipe == "paper" or eps == 0:
        return logs
    log_eps = _log(eps)
    return ops.maximum(logs, log_eps) + ops.log1p(ops.exp(-ops.abs(logs - log_eps)))


def _shifted(logs: Tensor) -> Tuple[Tensor, Tensor]:
    """The logarithms with a shift for each column, and the shift [T, 1, N]."""
    shift = -ops.amax(logs, -2, keepdims=True)
    return logs + ops.minimum(shift, _FLOAT64_RANGE), shift


def _carried(shift: Tensor, eps: float, count: int) -> Tensor:
    """The logarithm of what is left of the start value of v after each iteration, eps**k * exp(shift): [T, N, I].

    Columns that are zero in float64 stay zero.
    """
    shift = shift + ops.maximum(shift - _FLOAT64_RANGE, 0.0) * 1e30
    return ops.transpose(shift, (0, 2, 1)) + _log_powers(eps, count)


def _next_logs(logs: Tensor, shift: Tensor, r: Tensor, c: Tensor, eps: float, count: int) -> Tensor:
    """The logarithms of the matrices after a block of so many iterations that ended with r and c."""
    n = logs.shape[-1]
    log_c = ops.log(ops.maximum(c.reshape(-1, 1, n), _NORMAL))
    if eps > 0:
        # where v is larger than a float32 number, it is what is left of its start value
        log_c = ops.minimum(log_c, -ops.transpose(_carried(shift, eps, count)[:, :, -1:], (0, 2, 1)))
    return logs + ops.log(r.reshape(-1, n, 1)) + log_c


def _block(
    m: Tensor, m_t: Tensor, shift: Any, eps: float, r: Tensor, count: int, row_first: bool, n: int
) -> Tuple[small.Vectors, small.Vectors]:
    """r and c of each of so many iterations. A shift, if there is one, is that of the columns of m."""
    bounded = shift is not None
    u, v, c = small.one(), small.one(), r
    carried: small.Vectors = ()
    if bounded:
        c = small.vectors(ops.exp(-shift), n)
        v = v * 0.0  # without what is carried
        if eps > 0:
            logs = _carried(shift, eps, count)
            carried = small.each_of(ops.exp(ops.minimum(logs, _FLOAT32_RANGE)), count, n)
    rows: small.Vectors = ()
    columns: small.Vectors = ()
    for k in range(count):
        if k > 0 or row_first:
            u = small.of_rows(u, eps, m, c, n)
            r = _reciprocal(u, bounded)
        v = small.of_columns(v, eps, m, m_t, r, n)
        c = _reciprocal(v + carried[k] if bounded and eps > 0 else v, bounded)
        rows, columns = rows + (r,), columns + (c,)
    return rows, columns


def forward(h_res: Tensor, eps: float, num_iters: int, recipe: str) -> Tuple[Tensor, Tensor]:
    """The matrices of logits [T, N, N], and r of all iterations and then c of all iterations, [T, 2*I*N]."""
    n = h_res.shape[-1]
    r = small.ones(h_res)
    if not _small_columns(eps, recipe):
        m = small.matrices(ops.softmax(h_res, -1) + eps)
        rows, columns = _block(m, small.transposed(m), None, eps, r, num_iters, False, n)
        return small.plain(small.scaled(m, rows[-1], columns[-1], n), n), small.saved(rows + columns, n)
    logs, shift = _shifted(_log_start(h_res, eps, recipe))
    m = small.matrices(ops.exp(logs))
    c = r
    rows, columns = (), ()
    count = 0
    for begin, end in _blocks(n, num_iters):
        if begin > 0:
            logs, shift = _shifted(_next_logs(logs, shift, r, c, eps, count))
            m = small.matrices(ops.exp(logs))
        count = end - begin
        row_first = begin > 0 or recipe == "paper"
        more = _block(m, small.transposed(m), shift, eps, small.ones(h_res), count, row_first, n)
        rows, columns = rows + more[0], columns + more[1]
        r, c = rows[-1], columns[-1]
    return small.plain(small.scaled(m, r, c, n), n), small.saved(rows + columns, n)


def _block_back(
    grad: Tensor,
    m: Tensor,
    shift: Any,
    eps: float,
    saved: Tensor,
    vectors: small.Vectors,
    begin: int,
    end: int,
    row_first: bool,
    n: int,
) -> Tensor:
    """From the gradient of the logarithms of the matrices after a block to that of their logarithms before it.

    The shift is constant: the matrices do not depend on it. The gradients of u and v, here with the other sign, follow
    the steps backwards: ``gv = eps * gv - c**2 * (m.T @ gu)``, and ``gu = eps * gu - r**2 * (m @ gv)``.
    """
    num_iters = len(vectors) // 2
    m_t = small.transposed(m)
    gu = vectors[end - 1] * small.row_sums(grad, n)
    gv = vectors[num_iters + end - 1] * small.column_sums(grad, n)
    left: small.Vectors = ()
    right: small.Vectors = ()
    for first, last in _pieces(begin, end, n):
        count = last - first
        r, c = small.some(saved, first, last, n), small.some(saved, num_iters + first, num_iters + last, n)
        of_rows = small.prepared(r * r, count, m, n)
        of_columns = small.prepared(c * c, count, m_t, n)
        for k in range(last - 1, first - 1, -1):
            share_of_gu = 1.0
            if k < end - 1:
                gv = small.less_columns(gv, eps, of_columns[k - first], m, gu, n)
                share_of_gu = eps
            left, right = left + (vectors[k],), right + (gv,)
            if k > begin or row_first:
                gu = small.less_rows(gu, share_of_gu, of_rows[k - first], m, gv, n)
                c_before = vectors[num_iters + k - 1] if k > begin else small.vectors(ops.exp(-shift), n)
                left, right = left + (gu,), right + (c_before,)
    return grad - m * small.outer_products(left, right, n)


def backward(
    grad_output: Tensor, h_res: Tensor, out: Tensor, scalings: Tensor, eps: float, num_iters: int, recipe: str
) -> Tensor:
    """From the gradient of the matrices, and them, to the gradient of the logits, all [T, N, N]."""
    n = h_res.shape[-1]
    saved = small.restored(scalings, n)
    vectors = small.each(saved, 2 * num_iters)
    grad = small.matrices(grad_output * out)
    if not _small_columns(eps, recipe):
        softmax = ops.softmax(h_res, -1)
        m = softmax + eps
        grad = _block_back(grad, small.matrices(m), None, eps, saved, vectors, 0, num_iters, False, n)
        grad = small.plain(grad, n) * (softmax / m)
        return grad - softmax * mint.sum(grad, -1, True)
    logs, shift = _shifted(_log_start(h_res, eps, recipe))
    starts: Tuple[Tuple[Tensor, Tensor], ...] = ((logs, shift),)
    blocks = _blocks(n, num_iters)
    for begin, end in blocks[:-1]:
        logs, shift = starts[-1]
        r, c = vectors[end - 1], vectors[num_iters + end - 1]
        starts = starts + (_shifted(_next_logs(logs, shift, r, c, eps, end - begin)),)
    for k in range(len(blocks) - 1, -1, -1):
        begin, end = blocks[k]
        logs, shift = starts[k]
        m = small.matrices(ops.exp(logs))
        row_first = begin > 0 or recipe == "paper"
        grad = _block_back(grad, m, shift, eps, saved, vectors, begin, end, row_first, n)
    grad = small.plain(grad, n)
    if recipe == "deepseek_v4":
        logs = _log_softmax(h_res)
        softmax = ops.exp(logs)
        if eps > 0:
            grad = grad * ops.exp(logs - _log_start(h_res, eps, recipe))
        return grad - softmax * mint.sum(grad, -1, True)
    # exp(x - rowmax): the largest entry of each row (the first of equals) is a function of x as well
    largest = ops.one_hot(ops.max(h_res, -1)[1], n, Tensor(1.0, ms.float32), Tensor(0.0, ms.float32))
    return grad - largest * mint.sum(grad, -1, True)
