"""Assertions on accuracy, and the inputs on which it is asked."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

import numpy as np
import pytest
from mindspore import Tensor

from ms_mhc.accuracy import FLOAT32_NOISE, error_ratio, rounding_bias, to_float64

# For tests that compile for long: with the fixture `way`, ms.jit is left to `make slow`.
JIT_IS_SLOW = pytest.mark.parametrize(
    "way", ["graph", "pynative", pytest.param("jit", marks=pytest.mark.slow)], indirect=True
)


def in_turn(*cases: Tuple[Any, ...]) -> List[Tuple[Any, ...]]:
    """Every case eagerly, and compiled in one of two ways, in turn: by graph mode or by ``ms.jit``.

    For ``parametrize`` with the fixture ``way`` as the first argument, and ``indirect=["way"]``.
    """
    compiled = [("jit" if number % 2 else "graph", *case) for number, case in enumerate(cases)]
    return [*compiled, *(("pynative", *case) for case in cases)]


def as_numpy(tensor: Tensor) -> np.ndarray:
    return to_float64(tensor)


def assert_close(name: str, got: Tensor, want: np.ndarray, noise: float = FLOAT32_NOISE) -> None:
    ratio = error_ratio(got, want, noise)
    worst = np.unravel_index(np.argmax(ratio), ratio.shape)
    assert ratio[worst] <= 1, (
        f"{name} at {worst}: got {as_numpy(got)[worst]!r}, expected {want[worst]!r}, "
        f"{ratio[worst]:.3g} times the error that is allowed"
    )
    bias, allowed = rounding_bias(got, want)
    assert abs(bias) <= allowed, f"{name}: on average {bias:.3g} units in the last place off, {allowed:.3g} by chance"


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
