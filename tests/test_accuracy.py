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


def _cast(values: np.ndarray, dtype: object, how: str) -> Tensor:
    """To a 16-bit dtype, by rounding to nearest even or by cutting bits off (float32 in, exactly)."""
    bits = values.astype(np.float32).view(np.uint32)
    if how != "nearest":
        low = np.uint32(0xFFFF if dtype == ms.bfloat16 else 0x1FFF)
        up = (bits & low != 0) & {"zero": False, "down": values < 0, "up": values > 0, "away": True}[how]
        bits = (bits & ~low) + np.where(up, low + np.uint32(1), np.uint32(0))
    return Tensor(bits.astype(np.uint32).view(np.float32).astype(NUMPY[dtype]))


@pytest.mark.parametrize("dtype", list(NUMPY))
@pytest.mark.parametrize("size", [64, 4096])
def test_a_bias_of_rounding_is_seen(dtype: object, size: int) -> None:
    want = np.random.default_rng(size).normal(size=size).astype(np.float32).astype(np.float64)
    for how in ("nearest", "zero", "down", "up", "away"):
        got = _cast(want, dtype, how)
        assert accuracy.error_ratio(got, want).max() <= 1
        bias, allowed = accuracy.rounding_bias(got, want)
        assert (abs(bias) <= allowed) == (how == "nearest"), how
        if how == "zero":
            assert bias == pytest.approx(-0.5, abs=0.2)


def test_one_wrong_number_in_ten_is_a_bias() -> None:
    want = np.random.default_rng(0).normal(size=40000).astype(np.float32).astype(np.float64)
    mixed = np.where(
        np.arange(want.size) % 10 == 0,
        *(accuracy.to_float64(_cast(want, ms.bfloat16, how)) for how in ("zero", "nearest")),
    )
    bias, allowed = accuracy.rounding_bias(Tensor(mixed.astype(NUMPY[ms.bfloat16])), want)
    assert abs(bias) > allowed


def test_no_bias_where_nothing_can_be_said() -> None:
    few, same = np.linspace(1.001, 1.003, 31), np.full(1000, 1.003)
    for want in (few, same, np.zeros(100)):
        assert accuracy.rounding_bias(_cast(want, ms.bfloat16, "zero"), want) == (0.0, 0.0)
    many = np.linspace(1, 2, 1000)
    assert accuracy.rounding_bias(Tensor(many.astype(np.float32)), many) == (0.0, 0.0)
    # beside 1e6, fp32 arithmetic does not know the last place of these
    beside = np.concatenate([many, [1e6]])
    assert accuracy.rounding_bias(_cast(beside, ms.bfloat16, "zero"), beside) == (0.0, 0.0)


def test_nan_is_never_near_enough() -> None:
    assert accuracy.error_ratio(Tensor(np.array([np.nan], np.float32)), np.array([1.0])).max() > 1


def test_zero_must_be_zero() -> None:
    assert accuracy.error_ratio(Tensor(np.zeros(2, np.float32)), np.zeros(2)).max() <= 1
    assert accuracy.error_ratio(Tensor(np.full(2, 1e-20, np.float32)), np.zeros(2)).max() > 1


def test_another_shape_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"shape \(2,\), expected \(3,\)"):
        accuracy.error_ratio(Tensor(np.zeros(2, np.float32)), np.zeros(3))
