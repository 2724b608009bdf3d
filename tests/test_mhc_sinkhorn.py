"""Sinkhorn on the backends of this machine: numbers against the reference."""

from __future__ import annotations

import itertools
from typing import Any, Callable

import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from ms_mhc import MhcSinkhorn, mhc_sinkhorn, reference
from tests.compare import assert_close, in_turn

Way = Callable[[Any], Any]


@pytest.mark.parametrize(
    ("way", "n", "tokens", "num_iters", "recipe", "scale", "eps"),
    in_turn(
        (4, (2, 3), 20, "deepseek_v4", 3.0, 1e-6),
        (4, (7,), 3, "paper", 3.0, 1e-2),
        (8, (5,), 1, "deepseek_v4", 1.0, 1e-2),
        (6, (5,), 1, "paper", 1.0, 1e-6),
        (1, (2, 1), 3, "deepseek_v4", 1.0, 1e-2),
        (3, (4,), 20, "paper", 50.0, 1e-3),
        (4, (64,), 20, "deepseek_v4", 50.0, 1e-3),
    ),
    indirect=["way"],
)
def test_matrices_and_gradient_equal_the_reference(
    way: Way, backend: str, n: int, tokens: Any, num_iters: int, recipe: str, scale: float, eps: float
) -> None:
    rng = np.random.default_rng([n, num_iters])
    logits = rng.uniform(-scale, scale, size=(*tokens, n, n)).astype(np.float32)
    grad = rng.normal(size=logits.shape).astype(np.float32)
    options: Any = {"num_iters": num_iters, "eps": eps, "recipe": recipe}
    cell = MhcSinkhorn(backend=backend, **options)
    got = way(cell)(Tensor(logits))
    got_grad = way(ops.GradOperation(sens_param=True)(cell))(Tensor(logits), Tensor(grad))
    assert_close("matrices", got, reference.mhc_sinkhorn(logits, **options))
    want = reference.mhc_sinkhorn_backward(grad, logits, **options)
    # where nothing depends on the logits (N = 1, saturated rows) the gradient is what cancellation leaves of grad
    assert np.abs(got_grad.asnumpy() - want).max() <= 5e-6 * max(np.abs(want).max(), np.abs(grad).max())


def test_gradient_of_equal_logits_goes_through_the_first_of_them(backend: str) -> None:
    logits = np.zeros((1, 3, 3), np.float32)
    grad = np.random.default_rng(0).normal(size=logits.shape).astype(np.float32)
    options: Any = {"num_iters": 2, "eps": 0.1, "recipe": "paper"}
    cell = MhcSinkhorn(backend=backend, **options)
    got = ops.GradOperation(sens_param=True)(cell)(Tensor(logits), Tensor(grad))
    assert_close("gradient", got, reference.mhc_sinkhorn_backward(grad, logits, **options))


@pytest.mark.parametrize(
    ("way", "recipe", "bad"),
    in_turn(*itertools.product(("deepseek_v4", "paper"), (np.nan, np.inf, -np.inf))),
    indirect=["way"],
)
def test_nan_and_inf_stay_in_their_token(way: Way, backend: str, recipe: str, bad: float) -> None:
    logits = np.random.default_rng(1).normal(size=(4, 4, 4)).astype(np.float32)
    clean = logits.copy()
    logits[2, 1, 3] = bad
    cell = MhcSinkhorn(3, recipe=recipe, backend=backend)
    grad = ops.GradOperation(sens_param=True)(cell)
    ones = Tensor(np.random.default_rng(2).normal(size=logits.shape).astype(np.float32))
    others = [0, 1, 3]
    for run, given in ((way(cell), ()), (way(grad), (ones,))):
        got, want = run(Tensor(logits), *given).asnumpy(), run(Tensor(clean), *given).asnumpy()
        assert np.array_equal(got[others], want[others])
    if not bad < 0:  # -inf is a logit like any other: that entry is zero
        assert np.isnan(way(cell)(Tensor(logits)).asnumpy()[2]).any()


def test_columns_sum_to_one_and_rows_nearly(backend: str) -> None:
    logits = Tensor(np.random.default_rng(3).normal(size=(5, 6, 6)).astype(np.float32))
    out = mhc_sinkhorn(logits, backend=backend).asnumpy()
    assert np.allclose(out.sum(-2), 1, atol=2e-6)
    assert np.allclose(out.sum(-1), 1, atol=1e-3)
    assert (out >= 0).all()


class Sum(nn.Cell):
    def construct(self, logits: Tensor) -> Tensor:
        return (mhc_sinkhorn(logits, num_iters=3) ** 2).sum()


def test_operator_works_inside_a_users_cell(way: Way) -> None:
    logits = np.random.default_rng(4).normal(size=(5, 4, 4)).astype(np.float32)
    import mindspore as ms

    got = way(ms.grad(Sum()))(Tensor(logits))
    out = reference.mhc_sinkhorn(logits, num_iters=3)
    assert_close("gradient", got, reference.mhc_sinkhorn_backward(2 * out, logits, num_iters=3))
