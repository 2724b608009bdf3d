"""What holds for every input: properties that Hypothesis tries to break.

Few examples, always the same ones; CONTRIBUTING.md names the command for a long search.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import mindspore as ms
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mindspore import Tensor, ops

from ms_mhc import checks, mhc_head, mhc_post, mhc_pre, mhc_pre_backward, mhc_pre_sinkhorn, mhc_sinkhorn, reference
from ms_mhc.accuracy import error_ratio, unit_in_last_place
from tests.compare import as_numpy, assert_close

Arrays = Dict[str, np.ndarray]
Blur = Callable[..., np.ndarray]

DTYPES = {"float32": ms.float32, "bfloat16": ms.bfloat16, "float16": ms.float16}
EPS = (0.0, 1e-12, 1e-6, 1e-2)
VALUES = ("normal", "small", "large", "spread", "one stands out", "equal", "repeated", "zeros", "denormal")
GATES = ("h_in", "h_post", "h_res")
POISONS = (np.nan, np.inf, -np.inf)
LEAST_NORMAL = 1e-37


@pytest.fixture(autouse=True, scope="module")
def _called_eagerly() -> Iterator[None]:
    before = ms.get_context("mode")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    yield
    ms.set_context(mode=before)


@dataclass(frozen=True)
class Case:
    """Sizes, layout, dtype and the kind of values of each token; the numbers themselves follow from a seed."""

    tokens: Tuple[int, ...]
    n: int
    d: int
    dtype: str
    values: Tuple[str, ...]  # of each token
    seed: int
    gamma: bool
    norm_eps: float
    hc_eps: float

    @property
    def kind(self) -> Any:
        return DTYPES[self.dtype]

    @property
    def count(self) -> int:
        return int(np.prod(self.tokens))

    def rng(self, stream: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, stream])

    def array(self, stream: int, *shape: int) -> np.ndarray:
        """Standard normal."""
        return self.rng(stream).normal(size=shape).astype(np.float32)

    def stream_like(self, stream: int, *shape: int) -> np.ndarray:
        """Of the tokens' kinds, with values that the dtype has."""
        rows = [_token(self.rng(stream * 1000 + i), kind, shape, self.dtype) for i, kind in enumerate(self.values)]
        return _as_dtype(np.stack(rows).reshape(*self.tokens, *shape), self.dtype)


def _token(rng: np.random.Generator, kind: str, shape: Sequence[int], dtype: str) -> np.ndarray:
    x = rng.normal(size=shape)
    if kind == "small":
        x *= 1e-3
    elif kind == "large":
        x *= 1e2
    elif kind == "spread":
        x *= 10.0 ** rng.uniform(-4, 0, size=shape)
    elif kind == "one stands out":
        x.flat[rng.integers(x.size)] *= 1e4 if dtype != "float16" else 1e3
    elif kind == "equal":
        x = np.full(shape, rng.uniform(0.1, 1.0))
    elif kind == "repeated":  # every stream the same
        x = np.broadcast_to(x[:1], shape).copy()
    elif kind == "zeros":
        x = np.zeros(shape)
    elif kind == "denormal":
        x *= 1e-7 if dtype == "float16" else 1e-39
    return x


def _as_dtype(values: np.ndarray, dtype: str) -> np.ndarray:
    return as_numpy(Tensor(values.astype(np.float32)).astype(DTYPES[dtype])).astype(np.float32)


@st.composite
def cases(draw: Any, values: Sequence[str] = VALUES, dtypes: Sequence[str] = tuple(DTYPES)) -> Case:
    tokens = draw(st.one_of(st.tuples(st.integers(1, 40)), st.tuples(st.integers(1, 3), st.integers(1, 5))))
    count = int(np.prod(tokens))
    kinds = draw(st.lists(st.sampled_from(list(values)), min_size=1, max_size=4))
    norm_eps = draw(st.sampled_from(EPS))
    if norm_eps < 1e-6:  # the mean square of such a token is no number that float32 has
        kinds = [k if k not in ("zeros", "denormal") else "normal" for k in kinds]
    return Case(
        tokens=tokens,
        n=draw(st.integers(1, 8)),
        d=draw(st.one_of(st.integers(1, 40), st.sampled_from([63, 64, 65, 128, 250]))),
        dtype=draw(st.sampled_from(list(dtypes))),
        values=tuple((kinds * count)[:count]),
        seed=draw(st.integers(0, 2**16)),
        gamma=draw(st.booleans()),
        norm_eps=norm_eps,
        hc_eps=draw(st.sampled_from(EPS)),
    )


def pre_inputs(case: Case) -> Arrays:
    """With gates away from saturation."""
    n, d, f = case.n, case.d, case.n * case.n + 2 * case.n
    inputs = {
        "x": case.stream_like(0, n, d),
        "phi": case.array(1, f, n * d) / np.float32(np.sqrt(n * d)),
        "alpha": case.array(2, 3),
        "bias": case.array(3, f),
    }
    if case.gamma:
        inputs["gamma"] = case.array(4, n, d)
    return inputs


def post_inputs(case: Case) -> Arrays:
    t, n, d = case.tokens, case.n, case.d
    matrices = {"h_res": case.array(9, *t, n, n)} if case.gamma else {}  # no h_res where there is no gamma
    return {
        "x": case.stream_like(0, n, d),
        **matrices,
        "h_out": _as_dtype(case.array(10, *t, d), case.dtype),
        "h_post": case.array(11, *t, n),
    }


def head_inputs(case: Case) -> Arrays:
    n, d = case.n, case.d
    return {
        "x": case.stream_like(0, n, d),
        "phi": case.array(1, n, n * d) / np.float32(np.sqrt(n * d)),
        "scale": case.array(2, 1),
        "bias": case.array(3, n),
    }


def tensors(case: Case, arrays: Arrays) -> List[Tensor]:
    return [Tensor(v).astype(case.kind if k in ("x", "h_out") else ms.float32) for k, v in arrays.items()]


def cotangents(case: Case) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of h_in, h_post and h_res."""
    n, d, t = case.n, case.d, case.tokens
    return _as_dtype(case.array(5, *t, d), case.dtype), case.array(6, *t, n), case.array(7, *t, n, n)


def gradients(function: Callable[..., Any], inputs: Sequence[Tensor], weights: Any) -> Tuple[Tensor, ...]:
    found = ops.GradOperation(get_all=True, sens_param=True)(function)(*inputs, weights)
    return found if isinstance(found, tuple) else (found,)


def every_row(case: Case, tensor: Tensor) -> np.ndarray:
    """One row a token. NaN equals NaN."""
    return np.nan_to_num(as_numpy(tensor), nan=12345.0).reshape(case.count, -1)


# ---- every backend agrees with the reference ----


def exact(values: np.ndarray, beside: Any = None) -> np.ndarray:
    return values


def agree(got: Sequence[Tensor], wanted: Callable[[Blur], Arrays]) -> None:
    """By the yardstick; where terms cancel, as near as inputs and intermediates in float32 can tell.

    ``wanted`` computes in float64. It is asked again with inputs and intermediates that are off by a unit of float32,
    or by one of what they are differences of, ``beside``: by how much its result moves, and 16 times as much, no
    float32 arithmetic knows.
    """
    rng = np.random.default_rng(0)

    def blurred(values: np.ndarray, beside: Any = None) -> np.ndarray:
        return values + rng.choice([-1, 1], size=values.shape) * 2.0**-23 * (values if beside is None else beside)

    want = wanted(exact)
    others = [wanted(blurred) for _ in range(3)]
    assert len(got) == len(want)
    for value, (name, target) in zip(got, want.items()):
        ratio = error_ratio(value, target)
        if np.all(ratio <= 1):
            if np.abs(target).max() > LEAST_NORMAL:  # MindSpore's threads may take denormal numbers for zero
                assert_close(name, value, target)
            continue
        unknown = 16 * max(np.abs(other[name] - target).max() for other in others)
        if value.dtype != ms.float32:
            unknown = unknown + unit_in_last_place(target, value.dtype)
        error = np.nan_to_num(np.abs(as_numpy(value) - target), nan=np.inf)
        worst = np.unravel_index(np.argmax(np.where(error > unknown, ratio, 0)), ratio.shape)
        assert np.all((ratio <= 1) | (error <= unknown)), (
            f"{name} at {worst}: got {as_numpy(value)[worst]!r}, expected {target[worst]!r}, "
            f"{ratio[worst]:.3g} times the error that is allowed"
        )


def wanted_of_pre(case: Case, inputs: Arrays, given_back: Sequence[np.ndarray], blur: Blur, **sinkhorn: Any) -> Arrays:
    """Results and gradients of mhc_pre, or of mhc_pre_sinkhorn."""
    inputs = {name: blur(value.astype(np.float64)) for name, value in inputs.items()}
    given_back = [blur(value.astype(np.float64)) for value in given_back]
    eps = {"norm_eps": case.norm_eps, "hc_eps": case.hc_eps}
    saved = {name: blur(value) for name, value in reference.mhc_pre(**inputs, **eps)._asdict().items()}
    back = [*given_back, *(saved[k] for k in ("inv_rms", "h_mix", "h_pre", "h_post")), inputs.get("gamma")]
    named = [inputs[k] for k in ("x", "phi", "alpha")]
    found = saved
    if sinkhorn:
        back[2] = sinkhorn_backward(back[2], saved["h_res"], blur, **sinkhorn)
        found = {**{name: saved[name] for name in GATES}, "h_res": reference.mhc_sinkhorn(saved["h_res"], **sinkhorn)}
    grads = reference.mhc_pre_backward(*named, *back, hc_eps=case.hc_eps)
    return {**found, **{k: v for k, v in grads._asdict().items() if v is not None}}


def sinkhorn_backward(grad: np.ndarray, h_res: np.ndarray, blur: Blur, **options: Any) -> np.ndarray:
    """Every step of it takes a difference."""
    found = reference.mhc_sinkhorn_backward(grad, h_res, **options)
    return blur(found, beside=np.abs(grad).max(axis=(-1, -2), keepdims=True))


@given(cases())
def test_mhc_pre_equals_the_reference(backend: str, case: Case) -> None:
    inputs, given_back = pre_inputs(case), cotangents(case)
    weights = (Tensor(given_back[0]).astype(case.kind), Tensor(given_back[1]), Tensor(given_back[2]))

    def pre(*arguments: Tensor) -> Tuple[Tensor, ...]:
        return mhc_pre(*arguments, norm_eps=case.norm_eps, hc_eps=case.hc_eps, backend=backend)

    given_tensors = tensors(case, inputs)
    grads = gradients(lambda *arguments: pre(*arguments)[:3], given_tensors, weights)
    agree(pre(*given_tensors) + grads, lambda blur: wanted_of_pre(case, inputs, given_back, blur))


SINKHORN = st.fixed_dictionaries(
    {"num_iters": st.integers(1, 4) | st.just(20), "recipe": st.sampled_from(["deepseek_v4", "paper"])}
)


@given(cases(), SINKHORN, st.sampled_from(EPS))
def test_mhc_pre_sinkhorn_equals_the_reference(
    backend: str, case: Case, steps: Dict[str, Any], sinkhorn_eps: float
) -> None:
    inputs, given_back = pre_inputs(case), cotangents(case)
    weights = (Tensor(given_back[0]).astype(case.kind), Tensor(given_back[1]), Tensor(given_back[2]))
    options = {**steps, "norm_eps": case.norm_eps, "hc_eps": case.hc_eps, "sinkhorn_eps": sinkhorn_eps}

    def both(*arguments: Tensor) -> Tuple[Tensor, ...]:
        return mhc_pre_sinkhorn(*arguments, **options, backend=backend)

    given_tensors = tensors(case, inputs)
    grads = gradients(both, given_tensors, weights)
    agree(
        both(*given_tensors) + grads,
        lambda blur: wanted_of_pre(case, inputs, given_back, blur, **steps, eps=sinkhorn_eps),
    )


LOGITS = ("normal", "spread", "zeros", "equal", "a row stands out", "a column is low", "far apart")


def logits(case: Case) -> np.ndarray:
    """Of kinds of their own."""
    n, found = case.n, []
    for i in range(case.count):
        rng, kind = case.rng(8000 + i), LOGITS[(case.seed + i) % len(LOGITS)]
        h = rng.normal(size=(n, n))
        if kind in ("zeros", "equal"):
            h = np.full((n, n), 0.0 if kind == "zeros" else 3.0)
        elif kind == "spread":
            h *= 10.0 ** rng.uniform(-4, 0, size=h.shape)
        elif kind == "a row stands out":
            h[rng.integers(n)] += 50
        elif kind == "a column is low":
            h[:, rng.integers(n)] -= 130
        elif kind == "far apart":
            h *= 30
        found.append(h)
    return np.stack(found).reshape(*case.tokens, n, n).astype(np.float32)


@given(cases(), SINKHORN)
def test_mhc_sinkhorn_equals_the_reference(backend: str, case: Case, steps: Dict[str, Any]) -> None:
    h_res, given_back = logits(case), case.array(7, *case.tokens, case.n, case.n)

    def sinkhorn(h: Tensor) -> Tensor:
        return mhc_sinkhorn(h, **steps, eps=case.hc_eps, backend=backend)

    def wanted(blur: Blur) -> Arrays:
        h, back = blur(h_res.astype(np.float64)), blur(given_back.astype(np.float64))
        options = {**steps, "eps": case.hc_eps}
        return {"out": reference.mhc_sinkhorn(h, **options), "grad_h_res": sinkhorn_backward(back, h, blur, **options)}

    agree((sinkhorn(Tensor(h_res)), *gradients(sinkhorn, [Tensor(h_res)], Tensor(given_back))), wanted)


@given(cases())
def test_mhc_post_equals_the_reference(backend: str, case: Case) -> None:
    inputs, back = post_inputs(case), _as_dtype(case.array(12, *case.tokens, case.n, case.d), case.dtype)

    def post(*arguments: Tensor) -> Tensor:
        if "h_res" in inputs:
            return mhc_post(*arguments, backend=backend)
        return mhc_post(arguments[0], None, *arguments[1:], backend=backend)

    def wanted(blur: Blur) -> Arrays:
        given_arrays = {"h_res": None, **{name: blur(value.astype(np.float64)) for name, value in inputs.items()}}
        grads = reference.mhc_post_backward(blur(back.astype(np.float64)), **given_arrays)._asdict()
        return {"out": reference.mhc_post(**given_arrays), **{f"grad_{k}": grads[f"grad_{k}"] for k in inputs}}

    arguments = tensors(case, inputs)
    agree((post(*arguments), *gradients(post, arguments, Tensor(back).astype(case.kind))), wanted)


@given(cases())
def test_mhc_head_equals_the_reference(case: Case) -> None:
    """It is MhcPre with nothing but its first gates."""
    inputs, back = head_inputs(case), _as_dtype(case.array(5, *case.tokens, case.d), case.dtype)
    n, t = case.n, case.tokens
    eps = {"norm_eps": case.norm_eps, "hc_eps": case.hc_eps}
    more = n * n + n

    def head(*arguments: Tensor) -> Tensor:
        return mhc_head(*arguments, **eps)

    def wanted(blur: Blur) -> Arrays:
        whole = {
            "x": inputs["x"],
            "phi": np.concatenate([inputs["phi"], np.zeros((more, n * case.d), np.float32)]),
            "alpha": np.concatenate([inputs["scale"], np.zeros(2, np.float32)]),
            "bias": np.concatenate([inputs["bias"], np.zeros(more, np.float32)]),
        }
        of_gates = (back, np.zeros((*t, n), np.float32), np.zeros((*t, n, n), np.float32))
        found = wanted_of_pre(case, whole, of_gates, blur)
        grads = {name: found[name] for name in ("grad_x", "grad_phi", "grad_alpha", "grad_bias")}
        return {
            "out": found["h_in"],
            "grad_x": grads["grad_x"],
            "grad_phi": grads["grad_phi"][:n],
            "grad_scale": grads["grad_alpha"][:1],
            "grad_bias": grads["grad_bias"][:n],
        }

    arguments = tensors(case, inputs)
    agree((head(*arguments), *gradients(head, arguments, Tensor(back).astype(case.kind))), wanted)


# ---- what one token does to another: nothing ----


def results_of_pre(case: Case, backend: str, inputs: Arrays, given_back: Sequence[np.ndarray]) -> Dict[str, Tensor]:
    """The results, and the gradient of x."""
    weights = (Tensor(given_back[0]).astype(case.kind), Tensor(given_back[1]), Tensor(given_back[2]))

    def pre(*arguments: Tensor) -> Tuple[Tensor, ...]:
        return mhc_pre(*arguments, norm_eps=case.norm_eps, hc_eps=case.hc_eps, backend=backend)[:3]

    arguments = tensors(case, inputs)
    return {**dict(zip(GATES, pre(*arguments))), "grad_x": gradients(pre, arguments, weights)[0]}


def results_of_sinkhorn(case: Case, backend: str, inputs: Arrays, recipe: str) -> Dict[str, Tensor]:
    def sinkhorn(h: Tensor) -> Tensor:
        return mhc_sinkhorn(h, num_iters=2, eps=case.hc_eps, recipe=recipe, backend=backend)

    weights = Tensor(case.array(7, *inputs["h_res"].shape))
    arguments = [Tensor(inputs["h_res"])]
    return {"out": sinkhorn(*arguments), "grad_h_res": gradients(sinkhorn, arguments, weights)[0]}


def results_of_post(case: Case, backend: str, inputs: Arrays) -> Dict[str, Tensor]:
    def post(*arguments: Tensor) -> Tensor:
        return mhc_post(*arguments, backend=backend)

    weights = Tensor(case.array(12, *case.tokens, case.n, case.d)).astype(case.kind)
    arguments = tensors(case, inputs)
    return {"out": post(*arguments), **dict(zip(inputs, gradients(post, arguments, weights)))}


def assert_only_one_token_changed(case: Case, run: Callable[[Arrays], Dict[str, Tensor]], inputs: Arrays) -> None:
    """``run`` with one number of one token that is not finite, against ``run`` without."""
    names = [name for name, value in inputs.items() if value.shape[: len(case.tokens)] == case.tokens]
    rng = case.rng(30)
    name, poison, place = rng.choice(names), rng.choice(POISONS), rng.integers(case.count)
    spoilt = inputs[name].copy().reshape(case.count, -1)
    spoilt[place, rng.integers(spoilt.shape[1])] = poison
    got, clean = run({**inputs, name: spoilt.reshape(inputs[name].shape)}), run(inputs)
    for result, value in got.items():
        changed = np.any(every_row(case, value) != every_row(case, clean[result]), axis=1)
        changed[place] = False
        assert not changed.any(), f"{poison} in {name} of token {place} changes {result} of {np.flatnonzero(changed)}"
    first, *_ = got.values()
    lost = np.isfinite(as_numpy(first).reshape(case.count, -1)[place]).all()
    assert not lost or np.isneginf(poison), f"{poison} in {name} of token {place} gives finite numbers"


@given(cases())
def test_what_is_not_finite_stays_in_its_token(backend: str, case: Case) -> None:
    inputs, given_back = pre_inputs(case), cotangents(case)
    only_x = {"x": inputs.pop("x")}
    assert_only_one_token_changed(case, lambda x: results_of_pre(case, backend, {**x, **inputs}, given_back), only_x)
    post = {"h_res": case.array(9, *case.tokens, case.n, case.n), **post_inputs(case)}
    post = {name: post[name] for name in ("x", "h_res", "h_out", "h_post")}
    assert_only_one_token_changed(case, lambda changed: results_of_post(case, backend, changed), post)


@given(cases(), st.sampled_from(checks.RECIPES))
def test_what_is_not_finite_stays_in_its_matrix(backend: str, case: Case, recipe: str) -> None:
    inputs = {"h_res": case.array(9, *case.tokens, case.n, case.n)}
    assert_only_one_token_changed(case, lambda h: results_of_sinkhorn(case, backend, h, recipe), inputs)


@given(cases())
def test_what_is_not_finite_stays_in_its_token_of_the_head(case: Case) -> None:
    inputs = head_inputs(case)
    only_x = {"x": inputs.pop("x")}
    weights = Tensor(case.array(5, *case.tokens, case.d)).astype(case.kind)

    def head(*arguments: Tensor) -> Tensor:
        return mhc_head(*arguments, norm_eps=case.norm_eps, hc_eps=case.hc_eps)

    def run(x: Arrays) -> Dict[str, Tensor]:
        arguments = tensors(case, {**x, **inputs})
        return {"out": head(*arguments), "grad_x": gradients(head, arguments, weights)[0]}

    assert_only_one_token_changed(case, run, only_x)


@given(cases(), st.integers(0, 999), st.integers(0, 999))
def test_results_do_not_depend_on_the_batch_a_token_is_in(backend: str, case: Case, first: int, length: int) -> None:
    """Bit for bit on the cpu backend. MindSpore's products group their terms by the number of rows."""
    inputs, given_back = pre_inputs(case), cotangents(case)
    begin = first % case.count
    end = begin + 1 + length % (case.count - begin)

    def cut(values: np.ndarray) -> np.ndarray:
        return values.reshape(case.count, *values.shape[len(case.tokens) :])[begin:end]

    whole = results_of_pre(case, backend, inputs, given_back)
    part = results_of_pre(case, backend, {**inputs, "x": cut(inputs["x"])}, [cut(g) for g in given_back])
    for name, value in part.items():
        want = cut(as_numpy(whole[name]))
        if backend == "cpu":
            assert np.array_equal(as_numpy(value), want), name
        else:
            assert np.all(error_ratio(value, want) <= 2), name

    post = {"h_res": case.array(9, *case.tokens, case.n, case.n), **post_inputs(case)}
    post = {name: post[name] for name in ("x", "h_res", "h_out", "h_post")}
    whole = mhc_post(*tensors(case, post), backend=backend)
    part = mhc_post(*tensors(case, {name: cut(value) for name, value in post.items()}), backend=backend)
    assert np.array_equal(as_numpy(part), cut(as_numpy(whole)))


# ---- what the formulas say ----


@given(cases(values=("normal", "small", "large", "equal")), st.integers(0, 999))
def test_permuted_streams_give_permuted_results(backend: str, case: Case, seed: int) -> None:
    n, d = case.n, case.d
    order = np.random.default_rng(seed).permutation(n)
    inputs, given_back = pre_inputs(case), cotangents(case)
    rows = np.concatenate([order, n + order, 2 * n + (order[:, None] * n + order).reshape(-1)])
    columns = (order[:, None] * d + np.arange(d)).reshape(-1)
    moved = {
        **inputs,
        "x": inputs["x"][..., order, :],
        "phi": inputs["phi"][rows][:, columns],
        "bias": inputs["bias"][rows],
    }
    if case.gamma:
        moved["gamma"] = inputs["gamma"][order]
    h_in, h_post, h_res = given_back
    got = results_of_pre(case, backend, moved, (h_in, h_post[..., order], h_res[..., order, :][..., order]))
    plain = {name: as_numpy(value) for name, value in results_of_pre(case, backend, inputs, given_back).items()}
    want = {
        "h_in": plain["h_in"],
        "h_post": plain["h_post"][..., order],
        "h_res": plain["h_res"][..., order, :][..., order],
        "grad_x": plain["grad_x"][..., order, :],
    }
    # what no float32 arithmetic knows is left to the comparison with the reference
    agree(
        list(got.values()), lambda blur: {name: blur(value, beside=np.abs(value).max()) for name, value in want.items()}
    )


@given(cases(), st.floats(-4, 4, width=16))
def test_h_in_is_linear_in_x_given_h_pre(backend: str, case: Case, factor: float) -> None:
    inputs = pre_inputs(case)
    eps = {"norm_eps": case.norm_eps, "hc_eps": case.hc_eps}
    h_in, *_, h_pre = mhc_pre(*tensors(case, inputs), **eps, backend=backend)

    def wanted(blur: Blur) -> Arrays:
        gates, x = blur(as_numpy(h_pre)), blur(inputs["x"].astype(np.float64))
        return {"h_in": np.sum(gates[..., None] * x, axis=-2)}

    agree([h_in], wanted)

    # with phi 0 the gates are those of the bias, whatever x is
    one, other = (case.array(stream, *case.tokens, case.n, case.d) for stream in (20, 21))

    def read(x: np.ndarray) -> np.ndarray:
        fixed = {**inputs, "x": x, "phi": np.zeros_like(inputs["phi"])}
        out = mhc_pre(*map(Tensor, fixed.values()), norm_eps=1e-6, hc_eps=case.hc_eps, backend=backend)
        return as_numpy(out[0])

    scale = np.abs(one).max() * abs(factor) + np.abs(other).max()
    off = read(np.float32(factor) * one + other) - (factor * read(one) + read(other))
    assert np.abs(off).max() <= 1e-6 * case.n * scale
    assert np.array_equal(read(2 * one), 2 * read(one))


@given(cases(), SINKHORN, st.sampled_from(EPS))
def test_columns_of_sinkhorn_sum_to_one_within_eps(backend: str, case: Case, steps: Dict[str, Any], eps: float) -> None:
    """The last step divides by column sums plus eps: as much of one is missing as eps is of that."""
    h_res = logits(case)
    out = as_numpy(mhc_sinkhorn(Tensor(h_res), **steps, eps=eps, backend=backend))
    _, divisor, _ = reference._sinkhorn_steps(h_res.astype(np.float64), steps["num_iters"], eps, steps["recipe"])[1][-1]
    assert out.min() >= 0
    np.testing.assert_allclose(out.sum(axis=-2), 1 - eps / divisor[..., 0, :], rtol=0, atol=2e-6)


@given(cases())
def test_grad_x_post_adds_exactly(backend: str, case: Case) -> None:
    """In fp32, before the one rounding to the dtype of x."""
    inputs, given_back = pre_inputs(case), cotangents(case)
    eps = {"norm_eps": case.norm_eps, "hc_eps": case.hc_eps}
    _, h_post, _, *saved = mhc_pre(*tensors(case, inputs), **eps, backend=backend)
    share = _as_dtype(case.array(12, *case.tokens, case.n, case.d), case.dtype)

    def grad_x(kind: Any, added: Optional[np.ndarray]) -> np.ndarray:
        x, grad_h_in = (Tensor(v).astype(kind) for v in (inputs["x"], given_back[0]))
        named = (x, Tensor(inputs["phi"]), Tensor(inputs["alpha"]), grad_h_in, *map(Tensor, given_back[1:]))
        optional = (
            Tensor(inputs["gamma"]) if case.gamma else None,
            None if added is None else Tensor(added).astype(kind),
        )
        return as_numpy(mhc_pre_backward(*named, *saved, h_post, *optional, hc_eps=case.hc_eps, backend=backend)[0])

    want = grad_x(ms.float32, None).astype(np.float32) + share
    assert np.array_equal(grad_x(ms.float32, share), want)
    assert np.array_equal(grad_x(case.kind, share), _as_dtype(want, case.dtype))
