"""An N*N matrix for each token, and vectors of N, in the form in which they are multiplied fastest.

On Ascend, and called eagerly, a matrix is [T, N, N] and a vector [T, N, 1]: there the number of operators counts. In
the CPU's graphs a matrix is [T, N*N] and a vector [T, N]: MindSpore's batched products of small matrices are several
times slower there than products of all tokens with one constant matrix, of zeros and ones, that repeats or sums.
"""

from __future__ import annotations

from typing import Tuple

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, ops
from mindspore.ops import constexpr

from aclnn_adapter import platform
from ms_mhc.operators.arithmetic import bmm, bmm_nt, bmm_tn, fused, matmul

Vectors = Tuple[Tensor, ...]


@constexpr(get_instance=False)
def _in_graph_of_cpu() -> bool:
    return platform.device_target() == "CPU"


class _Flat(_in_graph_of_cpu):  # type: ignore[misc,valid-type]
    """Whether matrices and vectors are flat. MindSpore does not come through here when it compiles a graph."""

    def __call__(self) -> bool:
        return False


_flat = _Flat()


@constexpr
def _repeated(n: int, rows: bool) -> Tensor:
    """[N, N*N]: vectors times it are matrices whose entry i, j is that of row i (or column j)."""
    unit, ones = np.eye(n, dtype=np.float32), np.ones((1, n), np.float32)
    return Tensor(np.kron(unit, ones) if rows else np.kron(ones, unit))


@constexpr
def _summed(n: int, rows: bool) -> Tensor:
    """[N*N, N]: matrices times it are the sums of their rows (or columns)."""
    unit, ones = np.eye(n, dtype=np.float32), np.ones((n, 1), np.float32)
    return Tensor(np.kron(unit, ones) if rows else np.kron(ones, unit))


@constexpr
def _one(rank: int) -> Tensor:
    return Tensor(np.ones((1,) * rank, np.float32))


def one() -> Tensor:
    """A vector of ones that broadcasts."""
    return _one(2) if _flat() else _one(3)


def ones(x: Tensor) -> Tensor:
    """A vector of ones for each of the tokens of x [T, N, N]."""
    tokens, n = x.shape[0], x.shape[1]
    return mint.ones((tokens, n) if _flat() else (tokens, n, 1), dtype=ms.float32)


def matrices(x: Tensor) -> Tensor:
    """[T, N, N] in the form of this place."""
    return x.reshape(-1, x.shape[-1] * x.shape[-1]) if _flat() else x


def transposed(m: Tensor) -> Tensor:
    """The matrices transposed, where :func:`of_columns` and :func:`prepared` need them."""
    return m if _flat() else ops.transpose(m, (0, 2, 1))


def plain(m: Tensor, n: int) -> Tensor:
    """Back to [T, N, N]."""
    return m.reshape(-1, n, n)


def vectors(x: Tensor, n: int) -> Tensor:
    """[T, N] or [T, 1, N] or [T, N, 1] in the form of this place."""
    return x.reshape(-1, n) if _flat() else x.reshape(-1, n, 1)


def saved(parts: Vectors, n: int) -> Tensor:
    """Vectors as one tensor [T, K*N], in an order of its own."""
    return mint.cat(parts, -1).reshape(-1, len(parts) * n)


def restored(x: Tensor, n: int) -> Tensor:
    """What :func:`saved` made, for :func:`some` and :func:`each`."""
    return x if _flat() else x.reshape(-1, n, x.shape[-1] // n)


def each_of(x: Tensor, count: int, n: int) -> Vectors:
    """Vectors [T, N, K] one by one."""
    return each(ops.transpose(x, (0, 2, 1)).reshape(-1, count * n) if _flat() else x, count)


def some(x: Tensor, begin: int, end: int, n: int) -> Tensor:
    """Of saved vectors those from begin to end."""
    return x[:, begin * n : end * n] if _flat() else x[:, :, begin:end]


def each(x: Tensor, count: int) -> Vectors:
    """Of so many saved vectors every one: equal parts of the last dimension, copied in one launch."""
    if count == 1:
        return (x,)
    return ops.Split(x.ndim - 1, count)(x)


def row_sums(m: Tensor, n: int) -> Tensor:
    """m @ 1."""
    return matmul(m, _summed(n, True)) if _flat() else mint.sum(m, -1, True)


def column_sums(m: Tensor, n: int) -> Tensor:
    """m.T @ 1."""
    return matmul(m, _summed(n, False)) if _flat() else mint.sum(m, -2).reshape(-1, n, 1)


def scaled(m: Tensor, r: Tensor, c: Tensor, n: int) -> Tensor:
    """diag(r) @ m @ diag(c)."""
    if _flat():
        return m * (matmul(r, _repeated(n, True)) * matmul(c, _repeated(n, False)))
    return m * bmm_nt(r, c)


def _flat_rows(m: Tensor, v: Tensor, n: int) -> Tensor:
    """m @ v, all flat."""
    return matmul(m * matmul(v, _repeated(n, False)), _summed(n, True))


def _flat_columns(m: Tensor, v: Tensor, n: int) -> Tensor:
    """m.T @ v, all flat."""
    return matmul(m * matmul(v, _repeated(n, True)), _summed(n, False))


def of_rows(before: Tensor, share: float, m: Tensor, v: Tensor, n: int) -> Tensor:
    """share * before + m @ v."""
    if _flat():
        return _flat_rows(m, v, n) + before * share
    if fused():
        return mint.baddbmm(before, m, v, beta=share)
    return mint.add(bmm(m, v), before, alpha=share)


def of_columns(before: Tensor, share: float, m: Tensor, m_t: Tensor, v: Tensor, n: int) -> Tensor:
    """share * before + m.T @ v."""
    if _flat():
        return _flat_columns(m, v, n) + before * share
    return of_rows(before, share, m_t, v, n)


def prepared(factors: Tensor, count: int, m: Tensor, n: int) -> Vectors:
    """For :func:`less_rows` and :func:`less_columns`: for each of the saved factors diag(factor) @ m."""
    if _flat():
        return each(factors, count)
    return each((factors.expand_dims(-1) * m.expand_dims(2)).reshape(-1, n, count * n), count)


def _less(before: Tensor, share: float, m: Tensor, v: Tensor) -> Tensor:
    if fused():
        return mint.baddbmm(before, m, v, beta=share, alpha=-1)
    return before * share - bmm(m, v)


def less_rows(before: Tensor, share: float, factor: Tensor, m: Tensor, v: Tensor, n: int) -> Tensor:
    """share * before - diag(factor) @ m @ v, with a factor from :func:`prepared`."""
    if _flat():
        return before * share - factor * _flat_rows(m, v, n)
    return _less(before, share, factor, v)


def less_columns(before: Tensor, share: float, factor: Tensor, m: Tensor, v: Tensor, n: int) -> Tensor:
    """share * before - diag(factor) @ m.T @ v, with a factor from :func:`prepared` of the transposed matrices."""
    if _flat():
        return before * share - factor * _flat_columns(m, v, n)
    return _less(before, share, factor, v)


def outer_products(left: Vectors, right: Vectors, n: int) -> Tensor:
    """The sum of left[k] @ right[k].T, as matrices in the form of this place."""
    if _flat():
        rows = mint.cat(left, -1).reshape(-1, len(left), n)
        return bmm_tn(rows, mint.cat(right, -1).reshape(-1, len(right), n)).reshape(-1, n * n)
    return bmm_nt(mint.cat(left, -1), mint.cat(right, -1))
