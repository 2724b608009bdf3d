"""Where float32 needs care: columns that underflow, long sums, mixed precision around the gates."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, amp, nn

from ms_mhc import MhcHead, MhcPre, MhcSinkhorn, reference
from ms_mhc.accuracy import unit_in_last_place
from ms_mhc.backends import registry
from ms_mhc.backends.registry import Job
from ms_mhc.operators.arithmetic import sum_of_row, sum_over_tokens
from tests.compare import as_numpy


def backends():
    """Those that this machine has."""
    job = Job("mhc_sinkhorn", 4, None, num_iters=20)
    return [b.name for b in registry.backends() if b.refusal(job) is None]


def steep_logits(kind: str) -> np.ndarray:
    h = np.random.default_rng(0).normal(size=(5, 4, 4)) * 2
    if kind == "mask":
        h[..., 2] -= 1e4
    elif kind == "infinite mask":
        h[:2, :, 2] = -np.inf
        h[3, 0, 1] = -np.inf
    else:
        h[..., 1] -= float(kind)
    return h.astype(np.float32)


class Weighted(nn.Cell):
    def __init__(self, cell: nn.Cell, weights: Tensor) -> None:
        super().__init__()
        self.cell = cell
        self.weights = weights

    def construct(self, x: Tensor) -> Tensor:
        return (self.cell(x) * self.weights).sum()


@pytest.fixture(params=[ms.PYNATIVE_MODE, ms.GRAPH_MODE], ids=["pynative", "graph"])
def mode(request):
    before = ms.get_context("mode")
    ms.set_context(mode=request.param)
    yield request.param
    ms.set_context(mode=before)


@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize(
    ("recipe", "eps"), [("paper", 1e-6), ("paper", 0.0), ("deepseek_v4", 0.0), ("deepseek_v4", 1e-6)]
)
def test_columns_that_underflow_equal_float64(mode, backend, recipe, eps):
    cell = MhcSinkhorn(20, eps, recipe, backend=backend)
    kinds = ("120", "250", "mask", "infinite mask")
    h = np.stack([steep_logits(kind) for kind in kinds])
    g = np.random.default_rng(1).normal(size=h.shape).astype(np.float32)
    with np.errstate(all="ignore"):
        want = reference.mhc_sinkhorn(h, num_iters=20, eps=eps, recipe=recipe)
        want_grad = reference.mhc_sinkhorn_backward(g, h, num_iters=20, eps=eps, recipe=recipe)
    got, grad = as_numpy(cell(Tensor(h))), as_numpy(ms.grad(Weighted(cell, Tensor(g)))(Tensor(h)))
    for k, kind in enumerate(kinds):
        there, there_grad = np.isfinite(want[k]), np.isfinite(want_grad[k])
        # a difference of logits of magnitude 256 is rounded by 1.5e-5
        np.testing.assert_allclose(got[k][there], want[k][there], atol=2e-5, rtol=2e-5, err_msg=kind)
        np.testing.assert_allclose(grad[k][there_grad], want_grad[k][there_grad], atol=2e-5, rtol=2e-5, err_msg=kind)


@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize(("recipe", "eps"), [("paper", 1e-6), ("paper", 0.0), ("deepseek_v4", 0.0)])
def test_what_is_not_a_number_stays_visible(mode, backend, recipe, eps):
    h = np.zeros((3, 4, 4), np.float32)
    h[0, 1, 2], h[1, 3, 0] = np.nan, np.inf
    out = as_numpy(MhcSinkhorn(3, eps, recipe, backend=backend)(Tensor(h)))
    assert np.isnan(out[:2]).all()
    np.testing.assert_allclose(out[2], 0.25, rtol=1e-5)


@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize(
    ("mode", "num_iters", "recipe", "spread", "eps"),
    [
        pytest.param(ms.PYNATIVE_MODE, 100, "paper", 60, 1e-6, marks=pytest.mark.slow),
        (ms.PYNATIVE_MODE, 100, "deepseek_v4", 60, 0.0),
        (ms.GRAPH_MODE, 35, "paper", 60, 1e-6),
    ],
    indirect=["mode"],
)
def test_many_iterations_on_steep_logits_equal_float64(mode, backend, num_iters, recipe, spread, eps):
    """Scaling vectors would leave the range of float32 here, if all iterations were taken in one block."""
    cell = MhcSinkhorn(num_iters, eps, recipe, backend=backend)
    h = (np.random.default_rng(0).normal(size=(200, 4, 4)) * spread).astype(np.float32)
    g = np.random.default_rng(1).normal(size=h.shape).astype(np.float32)
    want = reference.mhc_sinkhorn(h, num_iters=num_iters, eps=eps, recipe=recipe)
    want_grad = reference.mhc_sinkhorn_backward(g, h, num_iters=num_iters, eps=eps, recipe=recipe)
    np.testing.assert_allclose(as_numpy(cell(Tensor(h))), want, atol=2e-5)
    grad = as_numpy(ms.grad(Weighted(cell, Tensor(g)))(Tensor(h)))
    np.testing.assert_allclose(grad, want_grad, atol=2e-5 * np.abs(want_grad).max())


@pytest.mark.parametrize("length", [500, 8192, 10499, 65536, 131072])
def test_a_long_sum_of_equal_values_keeps_its_digits(length):
    value = np.float32(0.49)
    row = as_numpy(sum_of_row(Tensor(np.full((2, length), value))))
    tokens = as_numpy(sum_over_tokens(Tensor(np.full((length, 3), value))))
    np.testing.assert_allclose(row, np.full((2, 1), np.float64(value) * length), rtol=1e-6)
    np.testing.assert_allclose(tokens, np.full(3, np.float64(value) * length), rtol=1e-6)


def learnt(cell):
    cell.phi.set_data(Tensor(np.random.default_rng(1).normal(0, 0.1, cell.phi.shape).astype(np.float32)))
    return cell


@pytest.mark.parametrize("dtype", [ms.float16, ms.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("mode", "level"),
    [(ms.PYNATIVE_MODE, level) for level in ("O1", "O2", "O3", "auto")]
    + [(ms.GRAPH_MODE, "O2"), (ms.GRAPH_MODE, "auto")],
    indirect=["mode"],
)
def test_every_level_leaves_the_gates_in_fp32(mode, level, dtype):
    x = Tensor((np.random.default_rng(0).integers(-8, 9, size=(6, 4, 32)) / 8).astype(np.float32))  # exact in 16 bits
    for backend in backends():
        want = as_numpy(learnt(MhcPre(4, 32, backend=backend))(x)[1])
        got = amp.auto_mixed_precision(learnt(MhcPre(4, 32, backend=backend)), level, dtype)(x)[1]
        assert got.dtype == ms.float32
        np.testing.assert_allclose(as_numpy(got), want, rtol=1e-6, err_msg=backend)
    want = as_numpy(learnt(MhcHead(4, 32))(x))
    got = as_numpy(amp.auto_mixed_precision(learnt(MhcHead(4, 32)), level, dtype)(x))
    # O2 and O3 hand all that is not a gate on in 16 bits: the head's output is rounded once
    rounding = 0.5 * unit_in_last_place(want, dtype) if level in ("O2", "O3") else 0.0
    assert (np.abs(got - want) <= rounding + 1e-6).all()
