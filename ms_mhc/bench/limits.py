"""What the machine itself can do, measured in the same rounds: a copy and a matrix product, with the same threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable

import numpy as np


def copy(megabytes: int, threads: int) -> Callable[[], Any]:
    """Copies an array, in as many pieces as there are threads. Moves twice its bytes."""
    source = np.ones(megabytes * 2**20 // 4, np.float32)
    target = np.zeros_like(source)
    pieces = list(zip(np.array_split(target, threads), np.array_split(source, threads)))
    pool = ThreadPoolExecutor(threads)  # NumPy copies without the interpreter's lock
    return lambda: list(pool.map(lambda piece: np.copyto(*piece), pieces))


def product(size: int) -> Callable[[], Any]:
    """A square fp32 matrix product by NumPy's BLAS. Takes 2 * size**3 operations."""
    left, right = np.ones((size, size), np.float32), np.ones((size, size), np.float32)
    target = np.empty_like(left)
    return lambda: np.matmul(left, right, out=target)
