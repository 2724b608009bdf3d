"""What MindSpore compiles, called as plain functions: how forward and backward are joined, and flat matrices."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import numpy as np
import pytest
from mindspore import Tensor
from mindspore.parallel import Layout

from aclnn_adapter.operators import MHC_PRE
from ms_mhc import reference
from ms_mhc.backends import aclnn
from ms_mhc.backends.composite import Composite
from ms_mhc.backends.registry import Job
from ms_mhc.hyper_connection import _Rest, missing
from ms_mhc.joint import Distributed, Joined
from ms_mhc.operation import BACKWARD, FORWARD
from ms_mhc.operators import scaling
from ms_mhc.operators import small_matrices as small
from ms_mhc.parallel import axes_of
from tests.compare import assert_close

T, N, D, EPS = 3, 4, 16, 1e-6
RNG = np.random.default_rng(0)
X = RNG.normal(size=(T, N, D)).astype(np.float32)
PHI, GAMMA = (RNG.normal(size=shape).astype(np.float32) / 8 for shape in ((24, N * D), (N, D)))
ALPHA, BIAS = (RNG.normal(size=size).astype(np.float32) for size in (3, 24))
H_RES, H_OUT, H_POST = (RNG.normal(size=(T, *shape)).astype(np.float32) for shape in ((N, N), (D,), (N,)))
EPSILONS = (("norm_eps", EPS), ("hc_eps", EPS))
STEPS = (("eps", EPS), ("num_iters", 5), ("recipe", "deepseek_v4"))


def pre(grads: Tuple[np.ndarray, ...], gamma: Optional[np.ndarray], share: Optional[np.ndarray]) -> Any:
    out = reference.mhc_pre(X, PHI, ALPHA, BIAS, gamma)
    saved = out.inv_rms, out.h_mix, out.h_pre, out.h_post
    return out[:3], reference.mhc_pre_backward(X, PHI, ALPHA, *grads, *saved, gamma, share)


def post(grads: Tuple[np.ndarray, ...], h_res: Optional[np.ndarray], share: Optional[np.ndarray]) -> Any:
    """Its backward does not take the gradient of x handed on, which has to be added."""
    back = reference.mhc_post_backward(*grads, X, h_res, H_OUT, H_POST)
    grad_x = back.grad_x if share is None else back.grad_x + share
    gradients = (grad_x, *(() if h_res is None else (back.grad_h_res,)), back.grad_h_out, back.grad_h_post)
    return (reference.mhc_post(X, h_res, H_OUT, H_POST),), gradients


def sinkhorn(grads: Tuple[np.ndarray, ...], h_res: np.ndarray, _: None) -> Any:
    back = reference.mhc_sinkhorn_backward(*grads, h_res, num_iters=5)
    return (reference.mhc_sinkhorn(h_res, num_iters=5),), (back,)


# operator, its tensors, what the job says, whether x is handed on, the reference with the optional tensor
CASES: Tuple[Tuple[Any, ...], ...] = (
    ("mhc_sinkhorn", (H_RES,), {"attributes": STEPS, "num_iters": 5}, False, sinkhorn, H_RES),
    ("mhc_post", (X, H_OUT, H_POST), {"absent": ("h_res",)}, True, post, None),
    ("mhc_post", (X, H_RES, H_OUT, H_POST), {}, False, post, H_RES),
    ("mhc_pre", (X, PHI, ALPHA, BIAS), {"absent": ("gamma",), "attributes": EPSILONS}, True, pre, None),
    ("mhc_pre", (X, PHI, ALPHA, BIAS, GAMMA), {"attributes": EPSILONS}, True, pre, GAMMA),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {len(case[1])}")
def test_what_a_distributed_graph_is_made_of_equals_the_reference(case: Tuple[Any, ...]) -> None:
    name, arrays, options, share, formula, optional = case
    job, backend = Job(name, N, **options), Composite()
    forward, backward = backend.kernel(job, FORWARD), backend.kernel(job, BACKWARD)
    joined = Joined(job.operation, forward, backward, share)
    layout = Layout((1,), ("dp",))("dp", "None", "None")
    placed = Distributed(joined, forward, {"I": 5} if job.num_iters else {}, layout)
    function, gradients = placed.morph.__morph_fn__, placed.morph.__morph_bprop_fn__
    tensors = tuple(map(Tensor, arrays))

    out = function(*tensors)
    row = out if isinstance(out, tuple) else (out,)
    results = row[: job.operation.results]
    assert not share or row[-1] is tensors[0]
    cotangents = tuple(RNG.normal(size=r.shape).astype(np.float32) for r in results)
    handed_on = RNG.normal(size=X.shape).astype(np.float32) if share else None
    want, want_back = formula(cotangents, optional, handed_on)
    for index, (got, right) in enumerate(zip(results, want)):
        assert_close(f"result {index}", got, right)

    zeros = [np.zeros(r.shape, np.float32) for r in row[len(results) : len(row) - share]]
    given = tuple(map(Tensor, (*cotangents, *zeros, *([handed_on] if share else []))))
    found = gradients(*tensors, out, given if isinstance(out, tuple) else given[0])
    assert len(found) == len(arrays)
    for index, (got, right) in enumerate(zip(found, want_back)):
        assert_close(f"gradient {index}", got, right)


class Fused:
    """Stands for a kernel that takes one batch and puts streams and hidden size of a result into one dimension."""

    operator = MHC_PRE

    def __call__(self, *arguments: Any) -> Tuple[Tensor, ...]:
        self.given = arguments
        x = arguments[0]
        return x * 2.0, x.reshape(1, T, N * D), x[:, :, 0]


def test_a_kernel_that_wants_a_batch_gets_one_and_its_results_lose_it() -> None:
    kernel = Fused()
    places, batched = (0, 1, aclnn.ONES), (True, False)
    shapes = ((aclnn.STREAMS, aclnn.HIDDEN), (aclnn.HIDDEN,), None)
    call = aclnn._Call(kernel, 0, places, (EPS,), (1, 2, 0), batched, shapes)
    whole, first, unshaped = call(Tensor(X), Tensor(PHI))
    x, phi, ones, eps = kernel.given
    np.testing.assert_array_equal(x.asnumpy(), X[None])
    np.testing.assert_array_equal(phi.asnumpy(), PHI)
    np.testing.assert_array_equal(ones.asnumpy(), np.ones((N, D)))
    assert eps == EPS
    np.testing.assert_array_equal(whole.asnumpy(), X)
    np.testing.assert_array_equal(first.asnumpy(), X[:, 0])
    np.testing.assert_array_equal(unshaped.asnumpy(), 2 * X[None])


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize(
    ("recipe", "eps", "spread"), [("deepseek_v4", EPS, 1), ("deepseek_v4", 1e-30, 20), ("paper", EPS, 20)]
)
def test_flat_matrices_and_others_give_the_numbers_of_the_reference(
    monkeypatch: pytest.MonkeyPatch, flat: bool, recipe: str, eps: float, spread: float
) -> None:
    num_iters = 3
    monkeypatch.setattr(small, "_flat", lambda: flat)
    monkeypatch.setattr(scaling, "_blocks", lambda n, num_iters: ((0, 1), (1, num_iters)))
    h = (np.random.default_rng(0).normal(size=(7, N, N)) * spread).astype(np.float32)
    grad = np.random.default_rng(1).normal(size=h.shape).astype(np.float32)
    out, saved = scaling.forward(Tensor(h), eps, num_iters, recipe)
    got = scaling.backward(Tensor(grad), Tensor(h), out, saved, eps, num_iters, recipe)
    want = reference.mhc_sinkhorn(h, num_iters=num_iters, eps=eps, recipe=recipe)
    want_grad = reference.mhc_sinkhorn_backward(grad, h, num_iters=num_iters, eps=eps, recipe=recipe)
    np.testing.assert_allclose(out.asnumpy(), want, atol=2e-5)
    np.testing.assert_allclose(got.asnumpy(), want_grad, atol=2e-5 * np.abs(want_grad).max())


def test_what_a_branch_returns_beside_its_output_is_handed_on_and_none_refused() -> None:
    one, other = Tensor(1.0), Tensor(2.0)
    assert missing((one, None)) == (False, True)
    assert _Rest().construct((one, other)) == (one, other)
    with pytest.raises(ValueError, match="branch returned None beside its output"):
        _Rest().construct((one, None))


def test_two_axes_may_split_one_dimension() -> None:
    layout = Layout((2, 2, 2), ("dp", "sp", "tp"))(("dp", "sp"), "None", "None")
    assert axes_of(layout) == (("dp", "sp"), "None", "None")
