"""MhcPre and Sinkhorn in one, on the backends of this machine."""

from __future__ import annotations

from typing import Any, Callable, Tuple

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from ms_mhc import mhc_pre_sinkhorn, reference
from ms_mhc.dispatch import Options, present, specs
from ms_mhc.operators.pre_sinkhorn import pre_sinkhorn
from tests.compare import as_numpy, assert_close, in_turn, pre_cotangents, pre_inputs
from tests.test_reference import central_differences, relative_error

Way = Callable[[Any], Any]
STEPS = {"num_iters": 5, "norm_eps": 1e-2, "hc_eps": 3e-2, "sinkhorn_eps": 2e-2}


@pytest.mark.parametrize("recipe", ["deepseek_v4", "paper"])
@pytest.mark.parametrize("gamma", [True, False])
def test_reference_agrees_with_central_differences(recipe: str, gamma: bool) -> None:
    rng = np.random.default_rng(5)
    n, d, tokens = 3, 4, (2,)
    arguments = {name: value.astype(np.float64) for name, value in pre_inputs(rng, n, d, tokens, gamma).items()}
    grads = [g.astype(np.float64) for g in pre_cotangents(rng, n, d, tokens)]

    def loss(**moved: Any) -> float:
        out = reference.mhc_pre_sinkhorn(**moved, **STEPS, recipe=recipe)
        return float(sum(np.sum(g * o) for g, o in zip(grads, (*out[:3], moved["x"]))))

    out = reference.mhc_pre_sinkhorn(**arguments, **STEPS, recipe=recipe)
    got = reference.mhc_pre_sinkhorn_backward(
        *(arguments[name] for name in ("x", "phi", "alpha", "bias")), *grads[:3], out.inv_rms, out.h_mix, out.h_pre,
        out.h_post, arguments.get("gamma"), grads[3], num_iters=5, hc_eps=3e-2, sinkhorn_eps=2e-2, recipe=recipe,
    )  # fmt: skip
    for name in arguments:
        want = central_differences(loss, arguments, name)
        assert relative_error(getattr(got, "grad_" + name), want) < 1e-7, name


class Operator(nn.Cell):
    """What HyperConnection calls, with x handed on."""

    def __init__(self, backend: str, recipe: str) -> None:
        super().__init__()
        self.options = Options(backend, "float32", True)
        self.attributes = (1e-2, 3e-2, 2e-2, 5, recipe)

    def construct(self, *tensors: Tensor) -> Tuple[Tensor, ...]:
        out = pre_sinkhorn("test", specs(tensors), self.attributes, self.options)(present(tensors))
        return out[0], out[1], out[2], out[len(out) - 1]


@pytest.mark.parametrize("recipe", ["deepseek_v4", "paper"])
@pytest.mark.parametrize(
    ("way", "n", "d", "tokens", "dtype", "gamma"),
    in_turn(
        (4, 64, (2, 3), "float32", True),
        (4, 64, (5,), "bfloat16", False),
        (3, 40, (2, 2), "float16", True),
        (8, 16, (33,), "float32", False),
    ),
    indirect=["way"],
)
def test_outputs_and_gradients_equal_the_reference(
    way: Way, backend: str, n: int, d: int, tokens: Tuple[int, ...], dtype: str, gamma: bool, recipe: str
) -> None:
    rng = np.random.default_rng([n, d])
    kind = getattr(ms, dtype)
    inputs = pre_inputs(rng, n, d, tokens, gamma)
    cast = lambda value: as_numpy(Tensor(value).astype(kind)).astype(np.float32)  # noqa: E731
    inputs["x"] = cast(inputs["x"])
    cotangents = [c if i in (1, 2) else cast(c) for i, c in enumerate(pre_cotangents(rng, n, d, tokens))]
    want = reference.mhc_pre_sinkhorn(**inputs, **STEPS, recipe=recipe)
    want_grads = reference.mhc_pre_sinkhorn_backward(
        *(inputs[name] for name in ("x", "phi", "alpha", "bias")), *cotangents[:3], want.inv_rms, want.h_mix,
        want.h_pre, want.h_post, inputs.get("gamma"), cotangents[3], num_iters=5, hc_eps=3e-2, sinkhorn_eps=2e-2,
        recipe=recipe,
    )  # fmt: skip

    operator = Operator(backend, recipe)
    arguments = (Tensor(inputs["x"]).astype(kind), *(Tensor(v) for k, v in inputs.items() if k != "x"))
    sens = tuple(Tensor(c).astype(kind if i in (0, 3) else ms.float32) for i, c in enumerate(cotangents))
    for name, value, target in zip(want._fields[:3], way(operator)(*arguments), want):
        assert_close(name, value, target)
    grads = way(ops.GradOperation(get_all=True, sens_param=True)(operator))(*arguments, sens)
    for name, value, target in zip(inputs, grads, want_grads):
        assert_close("grad_" + name, value, target)


def test_one_piece_and_two_operators_agree(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    from ms_mhc.operators import pre_sinkhorn as module

    inputs = [Tensor(v) for v in pre_inputs(np.random.default_rng(1), 4, 32, (2, 3), False).values()]
    fused = way(mhc_pre_sinkhorn)(*inputs)
    monkeypatch.setattr(module, "has_kernel", lambda *_: False)
    parts = way(mhc_pre_sinkhorn)(*inputs)
    for one, other in zip(fused, parts):
        assert np.abs(one.asnumpy() - other.asnumpy()).max() <= 1e-6


@pytest.mark.parametrize(
    ("change", "error", "parts"),
    [
        ({"num_iters": 0}, ValueError, "num_iters must be a positive int, but got 0"),
        ({"recipe": "v4"}, ValueError, "recipe must be one of deepseek_v4, paper, but got 'v4'"),
        ({"sinkhorn_eps": -1.0}, ValueError, "sinkhorn_eps must be a finite number >= 0"),
        ({"precision": "tf32"}, ValueError, "precision must be one of float32, hf32, but got 'tf32'"),
        ({"bias": None}, TypeError, "bias must be a mindspore Tensor, but got None"),
        ({"phi": Tensor(np.zeros((24, 31), np.float32))}, ValueError, "phi has shape [24, 31]"),
    ],
)
def test_wrong_arguments_are_named(change: Any, error: Any, parts: str) -> None:
    given: Any = {name: Tensor(v) for name, v in pre_inputs(np.random.default_rng(1), 4, 8, (2,), False).items()}
    with pytest.raises(error) as caught:
        mhc_pre_sinkhorn(**{**given, **change})
    assert f"mhc_pre_sinkhorn: {parts}" in str(caught.value)
