"""Tensors of any library as float32 arrays, without loss."""

from __future__ import annotations

from typing import Any, Dict, Tuple

import mindspore as ms
import ml_dtypes
import numpy as np
from mindspore import Tensor
from numpy.typing import NDArray

Array = NDArray[np.float32]
Arrays = Dict[str, Array]
Shape = Tuple[int, ...]

# Every value of these is a float32 value, so that the conversion is exact; float64 would have to be rounded.
EXACT = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
EXACT_NAMES = "float32, float16, bfloat16"


def float32(name: str, value: Any) -> Array:
    """A copy in float32, exact: bfloat16 is the upper half of a float32, float16 is widened.

    A number without dimensions becomes an array of one: some programs store scales and alphas so.

    Raises:
        TypeError: no array and no Tensor.
        ValueError: another dtype.
    """
    if isinstance(value, Tensor):
        # NumPy has no bfloat16: MindSpore widens it, exactly as well
        value = (value.astype(ms.float32) if value.dtype == ms.bfloat16 else value).asnumpy()
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{name} must be a NumPy array or a mindspore Tensor, but got {type(value).__name__}")
    if value.dtype not in EXACT:
        raise ValueError(f"{name} has dtype {value.dtype}; accepted: {EXACT_NAMES}")
    return np.atleast_1d(np.array(value, dtype=np.float32, order="C"))
