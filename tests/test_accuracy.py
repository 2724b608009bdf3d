"""The yardstick itself."""

from __future__ import annotations

import mindspore as ms
import ml_dtypes
import numpy as np
import pytest
from mindspore import Tensor

from ms_mhc import accuracy

NUMPY = {ms.bfloat16: ml_dtypes.bfloat16, ms.float16: np.float16}


@pytest.mark.parametrize("dtype", list(NUMPY))
def test_rounding_is_that_of_the_dtype(dtype: object) -> None:
    values = np.random.default_rng(0).normal(size=10000) * 10.0 ** np.random.default_rng(1).integers(-6, 4, 10000)
    values = np.concatenate([values, [0.0, 1.0, 1 + 2**-8, 1 + 2**-11, 1 + 3 * 2**-11, 2**-24, 3 * 2**-26]])
    assert np.array_equal(accuracy.rounded(values, dtype), values.astype(NUMPY[dtype]).astype(np.float64))


def test_one_unit_in_the_last_place_is_allowed_and_two_are_not() -> None:
    want = np.array([1.0, 256.0])
    for steps, accepted in ((0, True), (1, True), (2, False)):
        got = Tensor(np.array([1.0 + steps * 2**-7, 256.0], np.float32)).astype(ms.bfloat16)
        assert (accuracy.error_ratio(got, want).max() <= 1) == accepted


def test_float32_is_measured_by_the_largest_entry() -> None:
    want = np.array([1e-9, 10.0])
    assert accuracy.error_ratio(Tensor(np.array([4e-5, 10.0], np.float32)), want).max() <= 1
    assert accuracy.error_ratio(Tensor(np.array([6e-5, 10.0], np.float32)), want).max() > 1


def test_nan_is_never_near_enough() -> None:
    assert accuracy.error_ratio(Tensor(np.array([np.nan], np.float32)), np.array([1.0])).max() > 1


def test_zero_must_be_zero() -> None:
    assert accuracy.error_ratio(Tensor(np.zeros(2, np.float32)), np.zeros(2)).max() <= 1
    assert accuracy.error_ratio(Tensor(np.full(2, 1e-20, np.float32)), np.zeros(2)).max() > 1


def test_another_shape_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"shape \(2,\), expected \(3,\)"):
        accuracy.error_ratio(Tensor(np.zeros(2, np.float32)), np.zeros(3))
