"""The reference against central differences, and against the mistakes that others made."""

from __future__ import annotations

from typing import Any, Callable, Dict

import numpy as np
import pytest

from ms_mhc import reference

EPS = 1e-2  # large enough that an eps in the wrong place shows
STEP = 1e-5


def central_differences(function: Callable[..., float], arguments: Dict[str, np.ndarray], name: str) -> np.ndarray:
    gradient = np.zeros_like(arguments[name])
    for index in np.ndindex(gradient.shape):
        values = []
        for step in (STEP, -STEP):
            moved = {key: value.copy() for key, value in arguments.items()}
            moved[name][index] += step
            values.append(function(**moved))
        gradient[index] = (values[0] - values[1]) / (2 * STEP)
    return gradient


def relative_error(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.abs(got - want).max() / max(np.abs(want).max(), 1e-3))


@pytest.mark.parametrize("layout", ["BSND", "TND"])
@pytest.mark.parametrize("n", [1, 2, 4, 6, 8])
@pytest.mark.parametrize("used", ["h_in", "h_post", "h_res", "all", "all and grad_x_post", "all without gamma"])
def test_gradients_of_mhc_pre_agree_with_central_differences(n: int, layout: str, used: str) -> None:
    rng = np.random.default_rng(n)
    tokens, d, f = ((2, 1) if layout == "BSND" else (2,)), 3, n * n + 2 * n
    arguments = {
        "x": rng.normal(size=(*tokens, n, d)),
        "phi": rng.normal(size=(f, n * d)),
        "alpha": rng.normal(size=3),
        "bias": rng.normal(size=f),
    }
    if used != "all without gamma":
        arguments["gamma"] = rng.normal(size=(n, d))
    shapes = {"h_in": (*tokens, d), "h_post": (*tokens, n), "h_res": (*tokens, n, n)}
    grads = {k: rng.normal(size=s) * (used == k or used.startswith("all")) for k, s in shapes.items()}
    share = rng.normal(size=(*tokens, n, d)) if used == "all and grad_x_post" else None

    def loss(**moved: Any) -> float:
        out = reference.mhc_pre(**moved, norm_eps=EPS, hc_eps=EPS)
        value = sum(np.sum(grads[name] * getattr(out, name)) for name in grads)
        return float(value if share is None else value + np.sum(share * moved["x"]))

    out = reference.mhc_pre(**arguments, norm_eps=EPS, hc_eps=EPS)
    got = reference.mhc_pre_backward(
        arguments["x"],
        arguments["phi"],
        arguments["alpha"],
        grads["h_in"],
        grads["h_post"],
        grads["h_res"],
        out.inv_rms,
        out.h_mix,
        out.h_pre,
        out.h_post,
        arguments.get("gamma"),
        share,
        hc_eps=EPS,
    )
    for name in arguments:
        want = central_differences(loss, arguments, name)
        assert relative_error(getattr(got, "grad_" + name), want) < 1e-7, name


@pytest.mark.parametrize("recipe", ["deepseek_v4", "paper"])
@pytest.mark.parametrize("num_iters", [1, 3, 20])
@pytest.mark.parametrize("scale", [1.0, 50.0])
def test_gradient_of_sinkhorn_agrees_with_central_differences(recipe: str, num_iters: int, scale: float) -> None:
    rng = np.random.default_rng(num_iters)
    logits = rng.uniform(-scale, scale, size=(3, 4, 4))
    grad = rng.normal(size=logits.shape)
    options = {"num_iters": num_iters, "eps": EPS, "recipe": recipe}

    def loss(h_res: np.ndarray) -> float:
        return float(np.sum(grad * reference.mhc_sinkhorn(h_res, **options)))

    want = central_differences(loss, {"h_res": logits}, "h_res")
    got = reference.mhc_sinkhorn_backward(grad, logits, **options)
    assert relative_error(got, want) < 1e-6


@pytest.mark.parametrize("with_h_res", [True, False])
def test_gradients_of_mhc_post_agree_with_central_differences(with_h_res: bool) -> None:
    rng = np.random.default_rng(5)
    arguments = {
        "x": rng.normal(size=(2, 3, 4)),
        "h_res": rng.normal(size=(2, 3, 3)),
        "h_out": rng.normal(size=(2, 4)),
        "h_post": rng.normal(size=(2, 3)),
    }
    grad = rng.normal(size=arguments["x"].shape)

    def loss(**moved: np.ndarray) -> float:
        return float(np.sum(grad * reference.mhc_post(**{**moved, **({} if with_h_res else {"h_res": None})})))

    given = arguments if with_h_res else {**arguments, "h_res": None}
    got = reference.mhc_post_backward(grad, **given)
    for name in arguments:
        if name != "h_res" or with_h_res:
            want = central_differences(loss, arguments, name)
            assert relative_error(getattr(got, "grad_" + name), want) < 1e-7, name


def test_post_reads_rows_and_writes_columns() -> None:
    x = np.array([[[1.0], [10.0], [100.0]]])
    h_res = np.array([[[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]])  # stream i goes to stream i + 1
    out = reference.mhc_post(x, h_res, np.zeros((1, 1)), np.zeros((1, 3)))
    assert out.ravel().tolist() == [100.0, 1.0, 10.0]


def test_seeds_formula_for_the_inv_rms_term_is_wrong_when_gamma_is_not_one() -> None:
    """The aclnn document multiplies that term by x * gamma. The corrected formula multiplies x."""
    rng = np.random.default_rng(7)
    x, gamma = rng.normal(size=(1, 2, 3)), rng.normal(size=(2, 3))
    phi, alpha, bias = rng.normal(size=(8, 6)), np.ones(3), np.zeros(8)
    grads = np.zeros((1, 3)), np.zeros((1, 2)), rng.normal(size=(1, 2, 2))

    def loss(x: np.ndarray) -> float:
        return float(np.sum(grads[2] * reference.mhc_pre(x, phi, alpha, bias, gamma).h_res))

    out = reference.mhc_pre(x, phi, alpha, bias, gamma)
    saved = out.inv_rms, out.h_mix, out.h_pre, out.h_post
    want = central_differences(loss, {"x": x}, "x")
    right = reference.mhc_pre_backward(x, phi, alpha, *grads, *saved, gamma).grad_x
    h_mix_tmp_grad = np.concatenate([np.zeros((1, 4)), grads[2].reshape(1, 4)], -1)
    term = -np.sum(h_mix_tmp_grad * out.h_mix, -1) * out.inv_rms**3 / 6
    seeds = right + term[:, None, None] * (x * gamma - x)
    assert relative_error(right, want) < 1e-7
    assert relative_error(seeds, want) > 1e-2


def test_sinkhorn_recipes_differ_in_where_eps_enters() -> None:
    logits = np.random.default_rng(0).normal(size=(1, 4, 4))
    with_eps = [reference.mhc_sinkhorn(logits, num_iters=3, eps=EPS, recipe=r) for r in ("deepseek_v4", "paper")]
    without = [reference.mhc_sinkhorn(logits, num_iters=3, eps=0.0, recipe=r) for r in ("deepseek_v4", "paper")]
    assert np.abs(with_eps[0] - with_eps[1]).max() > 1e-3
    assert np.abs(without[0] - without[1]).max() < 1e-12


@pytest.mark.parametrize("recipe", ["deepseek_v4", "paper"])
def test_sinkhorn_adds_eps_to_every_sum_before_it_divides(recipe: str) -> None:
    """Number by number, as the two definitions say it, with an eps that no rounding hides."""
    n, num_iters, eps = 3, 2, 0.1
    logits = np.random.default_rng(3).normal(0, 2, size=(n, n))
    y = [[float(np.exp(logits[i, j] - logits[i].max())) for j in range(n)] for i in range(n)]

    def rows(plus: float) -> None:
        for i in range(n):
            total = y[i][0] + y[i][1] + y[i][2] + plus
            y[i] = [value / total for value in y[i]]

    def columns() -> None:
        for j in range(n):
            total = y[0][j] + y[1][j] + y[2][j] + eps
            for i in range(n):
                y[i][j] /= total

    if recipe == "deepseek_v4":
        rows(0.0)  # a softmax
        y = [[value + eps for value in row] for row in y]
    else:
        rows(eps)
    columns()
    for _ in range(num_iters - 1):
        rows(eps)
        columns()
    got = reference.mhc_sinkhorn(logits, num_iters=num_iters, eps=eps, recipe=recipe)
    assert np.abs(got - np.array(y)).max() < 1e-15


def test_sinkhorn_converges_to_a_doubly_stochastic_matrix() -> None:
    logits = np.random.default_rng(0).normal(size=(1, 4, 4))
    matrix = reference.mhc_sinkhorn(logits, num_iters=200, eps=0.0)
    assert np.allclose(matrix.sum(-1), 1)
    assert np.allclose(matrix.sum(-2), 1)


def test_nan_in_one_token_stays_in_that_token() -> None:
    logits = np.zeros((3, 4, 4))
    logits[1, 2, 3] = np.nan
    out = reference.mhc_sinkhorn(logits)
    assert np.isnan(out[1]).all()
    assert np.isfinite(out[[0, 2]]).all()


def test_head_adds_its_eps_to_every_gate() -> None:
    rng = np.random.default_rng(0)
    x, phi, bias = rng.normal(size=(3, 4, 8)), rng.normal(size=(4, 32)), rng.normal(size=4)
    more = reference.mhc_head(x, phi, [0.3], bias, hc_eps=0.25) - reference.mhc_head(x, phi, [0.3], bias, hc_eps=0.0)
    np.testing.assert_allclose(more, 0.25 * x.sum(-2), rtol=1e-12)
