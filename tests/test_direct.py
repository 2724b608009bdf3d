"""Small eager calls go straight to the C++ function: the same bits as through MindSpore, wherever the tensors lie."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint
from mindspore.common.initializer import One, initializer

import ms_mhc
from ms_mhc import csrc
from ms_mhc.backends import direct
from tests.compare import pre_inputs

N, D, TOKENS = 4, 32, 6

pytestmark = pytest.mark.skipif(csrc.refusal() is not None, reason=f"no C++ library: {csrc.refusal()}")


@pytest.fixture(autouse=True)
def _eagerly() -> Iterator[None]:
    before = ms.get_context("mode")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    yield
    ms.set_context(mode=before)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> List[str]:
    """The names of the functions that are called directly."""
    names: List[str] = []
    call = direct.Direct.__call__

    def counted(self: direct.Direct, *tensors: Tensor) -> Optional[Tuple[Tensor, ...]]:
        results = call(self, *tensors)
        if results is not None:
            names.append(self._name)
        return results

    monkeypatch.setattr(direct.Direct, "__call__", counted)
    return names


def _inputs(dtype: Any = ms.float32) -> Dict[str, Tensor]:
    given = pre_inputs(np.random.default_rng(0), N, D, (TOKENS,))
    return {name: Tensor(value, dtype if name == "x" else ms.float32) for name, value in given.items()}


def _pre(x: Tensor, phi: Tensor, alpha: Tensor, bias: Tensor, gamma: Tensor) -> Tuple[Tensor, ...]:
    return ms_mhc.mhc_pre(x, phi, alpha, bias, gamma, backend="cpu")


def _pre_sinkhorn(x: Tensor, phi: Tensor, alpha: Tensor, bias: Tensor) -> Tuple[Tensor, ...]:
    return ms_mhc.mhc_pre_sinkhorn(x, phi, alpha, bias, backend="cpu")


def _sinkhorn(h_res: Tensor) -> Tuple[Tensor, ...]:
    return (ms_mhc.mhc_sinkhorn(h_res, backend="cpu"),)


def _post(x: Tensor, h_res: Tensor, h_out: Tensor, h_post: Tensor) -> Tuple[Tensor, ...]:
    return (ms_mhc.mhc_post(x, h_res, h_out, h_post, backend="cpu"),)


def _post_inputs(dtype: Any) -> Tuple[Tensor, ...]:
    rng = np.random.default_rng(1)
    shapes = ((TOKENS, N, D), (TOKENS, N, N), (TOKENS, D), (TOKENS, N))
    return tuple(
        Tensor(rng.normal(size=shape).astype(np.float32), dtype if place in (0, 2) else ms.float32)
        for place, shape in enumerate(shapes)
    )


OPERATORS: Dict[str, Tuple[Callable[..., Tuple[Tensor, ...]], Callable[[Any], Tuple[Tensor, ...]]]] = {
    "MhcPre": (_pre, lambda dtype: tuple(_inputs(dtype).values())),
    "MhcPreSinkhorn": (_pre_sinkhorn, lambda dtype: tuple(_inputs(dtype).values())[:4]),
    "MhcSinkhorn": (_sinkhorn, lambda dtype: _post_inputs(dtype)[1:2]),
    "MhcPost": (_post, _post_inputs),
}


def _bits(tensors: Any) -> List[bytes]:
    return [tensor.astype(ms.float32).asnumpy().tobytes() for tensor in tensors]


@pytest.mark.parametrize("dtype", [ms.float32, ms.bfloat16, ms.float16], ids=str)
@pytest.mark.parametrize("name", OPERATORS)
def test_the_bits_of_results_and_gradients_are_those_of_a_call_through_mindspore(
    name: str, dtype: Any, calls: List[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    function, make = OPERATORS[name]
    tensors = make(dtype)

    def loss(*tensors: Tensor) -> Tensor:
        return sum(((out.astype(ms.float32) * (place + 1)).sum() for place, out in enumerate(function(*tensors)[:3])))

    def both() -> List[bytes]:
        return _bits(function(*tensors)) + _bits(ms.grad(loss, tuple(range(len(tensors))))(*tensors))

    directly = both()
    assert calls == [name, name, f"{name}Backward"]
    monkeypatch.setattr(direct, "MOST_BYTES", 0)
    assert both() == directly
    assert len(calls) == 3


def test_large_results_go_through_mindspore(calls: List[str], monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = _post_inputs(ms.float32)
    size = TOKENS * N * D * 4
    monkeypatch.setattr(direct, "MOST_BYTES", size)
    _post(*tensors)
    assert calls == ["MhcPost"]
    monkeypatch.setattr(direct, "MOST_BYTES", size - 1)
    _post(*tensors)
    assert calls == ["MhcPost"]


def _of_a_long_computation(x: np.ndarray) -> Tensor:
    """x, by way of a product that is not finished when the call is made."""
    square = Tensor(np.eye(1500, dtype=np.float32))
    flat = np.zeros((1500, N * D), np.float32)
    flat[:TOKENS] = x.reshape(TOKENS, -1)
    return mint.matmul(mint.matmul(square, square), Tensor(flat))[:TOKENS].reshape(TOKENS, N, D)


PLACES: Dict[str, Callable[[np.ndarray], Tensor]] = {
    "behind an offset": lambda x: Tensor(np.concatenate([x, x]))[TOKENS:],
    "every second": lambda x: Tensor(np.repeat(x, 2, axis=0))[::2],
    "transposed": lambda x: mint.transpose(Tensor(np.ascontiguousarray(x.transpose(0, 2, 1))), 1, 2),
    "a parameter": lambda x: Parameter(x, name="x"),
    "in NumPy's memory": Tensor.from_numpy,
    "not computed yet": _of_a_long_computation,
}


@pytest.mark.parametrize("place", PLACES)
def test_tensors_may_lie_anywhere(place: str, calls: List[str]) -> None:
    given = _inputs()
    want = _bits(_pre(*given.values()))
    x = given["x"].asnumpy()
    assert _bits(_pre(PLACES[place](x), *list(given.values())[1:])) == want
    assert calls == ["MhcPre"] * 2


def test_results_outlive_the_call_and_are_tensors_like_others(calls: List[str]) -> None:
    given = _inputs()
    kept = [_pre(*given.values()) for _ in range(20)]
    want = _bits(kept[0])
    assert all(_bits(out) == want for out in kept[1:])
    h_in = kept[0][0]
    h_in[0] = 7.0
    assert _bits(kept[1]) == want
    assert np.array_equal(h_in.asnumpy(), np.concatenate([np.full((1, D), 7.0, np.float32), kept[1][0].asnumpy()[1:]]))
    assert np.array_equal((h_in[:2] * 2).asnumpy(), h_in.asnumpy()[:2] * 2)


def test_a_failing_function_is_an_error(calls: List[str]) -> None:
    function = direct.Direct("MhcSinkhorn", np.zeros(1, np.float32), list)
    with pytest.raises(RuntimeError, match=r"MhcSinkhorn: the C\+\+ function failed with status 3"):
        function(_post_inputs(ms.float32)[1])


@pytest.mark.parametrize("backend", ["cpu", "composite"])
def test_a_tensor_without_values_yet_is_refused(backend: str) -> None:
    given = list(_inputs().values())
    empty = initializer(One(), (TOKENS, N, D), ms.float32)
    with pytest.raises(ValueError, match=r"mhc_pre: x has no values yet; call its init_data\(\) first"):
        ms_mhc.mhc_pre(empty, *given[1:], backend=backend)
    x, h_res, h_out, h_post = _post_inputs(ms.float32)
    empty_h_res = initializer(One(), h_res.shape, ms.float32)
    with pytest.raises(ValueError, match=r"mhc_post: h_res has no values yet"):
        ms_mhc.mhc_post(x, empty_h_res, h_out, h_post, backend=backend)
    want = _bits(ms_mhc.mhc_pre(mint.ones((TOKENS, N, D)), *given[1:], backend=backend))
    assert _bits(ms_mhc.mhc_pre(empty.init_data(), *given[1:], backend=backend)) == want
