"""How near to the float64 reference is near enough.

float32: within a fraction of the tensor's largest entry. 16 bits: within one unit in the last place of the rounded
float64 result. Where terms cancel, fp32 arithmetic cannot know one unit in the last place of what is left; there, as
much is allowed as fp32 may leave.

One unit in the last place is also what truncation instead of rounding is off by at most. What tells them apart is the
mean: rounding to nearest errs as often up as down, truncation by half a unit towards zero.
"""

from __future__ import annotations

from typing import Any, Tuple

import mindspore as ms
import numpy as np
from mindspore import Tensor
from numpy.typing import NDArray

Array = NDArray[np.float64]

FLOAT32_NOISE = 5e-6  # of the tensor's largest entry
CANCELLATION = 1e-6  # of the tensor's largest entry
LEAST_NUMBERS = 32  # fewer different numbers say nothing about a mean
_SIGNIFICAND_BITS = {ms.bfloat16: 8, ms.float16: 11}  # with the hidden one
_LEAST_EXPONENT = {ms.bfloat16: -126, ms.float16: -14}


def to_float64(tensor: Tensor) -> Array:
    """The values of a tensor of any float dtype. (NumPy has no bfloat16; ml_dtypes lends MindSpore one.)"""
    return np.asarray(tensor.asnumpy().astype(np.float64))


def unit_in_last_place(value: Array, dtype: Any) -> Array:
    """The distance from each value to its neighbour in a 16-bit dtype."""
    _, exponent = np.frexp(value)
    least = np.maximum(exponent - 1, _LEAST_EXPONENT[dtype])
    return np.asarray(np.ldexp(1.0, least - (_SIGNIFICAND_BITS[dtype] - 1)))


def rounded(value: Array, dtype: Any) -> Array:
    """float64 to the nearest value of a 16-bit dtype, ties to even."""
    unit = unit_in_last_place(value, dtype)
    return np.asarray(np.round(value / unit) * unit)


def error_ratio(got: Tensor, want: Array, noise: float = FLOAT32_NOISE) -> Array:
    """Elementwise error over the error that is allowed: everything up to 1 is near enough.

    Raises:
        ValueError: the shapes differ.
    """
    value = to_float64(got)
    if value.shape != want.shape:
        raise ValueError(f"shape {value.shape}, expected {want.shape}")
    largest = float(np.abs(want).max()) if want.size else 0.0
    if got.dtype == ms.float32:
        target, allowed = want, np.full(want.shape, noise * largest)
    else:
        target = rounded(want, got.dtype)
        allowed = np.maximum(unit_in_last_place(target, got.dtype), CANCELLATION * largest)
    # a NaN is an error of infinite size; where everything is zero, so must the result be
    error = np.nan_to_num(np.abs(value - target), nan=np.inf)
    return np.asarray(error / np.maximum(allowed, 1e-30))


def rounding_bias(got: Tensor, want: Array) -> Tuple[float, float]:
    """The mean error in units in the last place, and how far from zero it may be by chance.

    The mean is that of the errors away from zero, or that of the errors upwards if it is larger. Both numbers are 0
    where there is nothing to judge: a tensor of float32, or one with few different numbers that are large enough beside
    its largest entry for fp32 arithmetic to know their last place.

    Rounding to nearest leaves errors spread over one unit, with a standard deviation of 1/sqrt(12); five of the mean's
    are allowed, and a fiftieth of a unit for fp32 arithmetic.
    """
    if got.dtype not in _SIGNIFICAND_BITS or not want.size:
        return 0.0, 0.0
    value, flat = to_float64(got).reshape(-1), want.reshape(-1)
    unit = unit_in_last_place(rounded(flat, got.dtype), got.dtype)
    with np.errstate(invalid="ignore"):
        known = np.isfinite(value) & np.isfinite(flat) & (50 * CANCELLATION * np.abs(flat).max() <= unit)
    _, different = np.unique(np.abs(flat[known]), return_index=True)
    if different.size < LEAST_NUMBERS:
        return 0.0, 0.0
    value, flat, unit = (a[known][different] for a in (value, flat, unit))
    outwards = float(np.mean((np.abs(value) - np.abs(flat)) / unit))
    upwards = float(np.mean((value - flat) / unit))
    return max(outwards, upwards, key=abs), 0.02 + 5 / np.sqrt(12 * different.size)
