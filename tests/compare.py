"""How near is near enough, and the inputs on which it is asked."""

from __future__ import annotations

from typing import Any, Dict, Optional, Sequence, Tuple

import mindspore as ms
import numpy as np
from mindspore import Tensor

MANTISSA = {ms.bfloat16: 8, ms.float16: 11}  # bits, with the hidden one
SMALLEST_EXPONENT = {ms.bfloat16: -126, ms.float16: -14}
FLOAT32_NOISE = 5e-6  # of the tensor's largest entry
# Where terms cancel, fp32 arithmetic cannot know one unit in the last place of what is left.
CANCELLATION = 1e-6  # of the tensor's largest entry


def as_numpy(tensor: Tensor) -> np.ndarray:
    """float64, also of bfloat16, which NumPy does not have."""
    return tensor.astype(ms.float32).asnumpy().astype(np.float64)


def rounded(value: np.ndarray, dtype: Any) -> np.ndarray:
    """float64 to the nearest value of a 16-bit dtype, ties to even."""
    bits, least = MANTISSA[dtype], SMALLEST_EXPONENT[dtype]
    unit = unit_in_last_place(value, bits, least)
    return np.round(value / unit) * unit


def unit_in_last_place(value: np.ndarray, bits: int, least: int) -> np.ndarray:
    _, exponent = np.frexp(np.asarray(value, np.float64))
    return np.ldexp(1.0, np.maximum(exponent - 1, least) - (bits - 1))


def assert_close(name: str, got: Tensor, want: np.ndarray, noise: float = FLOAT32_NOISE) -> None:
    """fp32: within ``noise`` of the largest entry. 16 bits: within one unit in the last place of the rounded result."""
    value = as_numpy(got)
    assert value.shape == want.shape, f"{name}: shape {value.shape}, expected {want.shape}"
    largest = np.abs(want).max()
    if got.dtype == ms.float32:
        allowed = np.full(want.shape, max(noise * largest, 1e-30))
        target = want
    else:
        target = rounded(want, got.dtype)
        unit = unit_in_last_place(target, MANTISSA[got.dtype], SMALLEST_EXPONENT[got.dtype])
        allowed = np.maximum(unit, CANCELLATION * largest)
    error = np.abs(value - target)
    worst = np.unravel_index(np.argmax(error / allowed), error.shape) if error.ndim else ()
    assert np.all(error <= allowed), (
        f"{name} at {worst}: got {value[worst]!r}, expected {target[worst]!r}, "
        f"error {error[worst]:.3g} above {allowed[worst]:.3g} (largest entry {largest:.3g})"
    )


def pre_inputs(
    rng: np.random.Generator, n: int, d: int, tokens: Sequence[int], gamma: bool = True
) -> Dict[str, np.ndarray]:
    """Random inputs of MhcPre with gates away from saturation. float32 values, so that every backend sees the same."""
    f = n * n + 2 * n
    inputs = {
        "x": rng.normal(size=(*tokens, n, d)),
        "phi": rng.normal(size=(f, n * d)) / np.sqrt(n * d),
        "alpha": rng.normal(size=3),
        "bias": rng.normal(size=f),
    }
    if gamma:
        inputs["gamma"] = rng.normal(size=(n, d))
    return {name: value.astype(np.float32) for name, value in inputs.items()}


def pre_cotangents(rng: np.random.Generator, n: int, d: int, tokens: Sequence[int]) -> Tuple[np.ndarray, ...]:
    """Gradients of h_in, h_post, h_res and of x's other uses."""
    shapes = ((*tokens, d), (*tokens, n), (*tokens, n, n), (*tokens, n, d))
    return tuple(rng.normal(size=shape).astype(np.float32) for shape in shapes)


def in_dtype(value: np.ndarray, dtype: Optional[Any]) -> Tensor:
    tensor = Tensor(value)
    return tensor if dtype is None else tensor.astype(dtype)
