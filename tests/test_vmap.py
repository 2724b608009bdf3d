"""``ms.vmap`` over the operators: what each batch gets alone."""

from __future__ import annotations

from typing import Any, Callable, Dict, Tuple

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

import ms_mhc

N, D, BATCHES, TOKENS = 4, 32, 3, 5
RNG = np.random.default_rng(0)


def _random(*shape: int) -> Tensor:
    return Tensor(RNG.standard_normal(shape).astype(np.float32))


PHI, ALPHA, BIAS = _random(N * N + 2 * N, N * D) / 12, _random(3), _random(N * N + 2 * N)


def _pre(x: Tensor, backend: str) -> Tuple[Tensor, ...]:
    return ms_mhc.mhc_pre(x, PHI, ALPHA, BIAS, backend=backend)


def _sinkhorn(x: Tensor, backend: str) -> Tensor:
    return ms_mhc.mhc_sinkhorn(x[..., :N], backend=backend)


def _post(x: Tensor, backend: str) -> Tensor:
    return ms_mhc.mhc_post(x, x[..., :N], x[..., 0, :], x[..., 0], backend=backend)


OPERATORS: Dict[str, Callable[..., Any]] = {"mhc_pre": _pre, "mhc_sinkhorn": _sinkhorn, "mhc_post": _post}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("backend", ["composite", "cpu"])
@pytest.mark.parametrize("mode", [ms.GRAPH_MODE, ms.PYNATIVE_MODE], ids=["graph", "pynative"])
def test_each_batch_gets_what_it_gets_alone(name: str, backend: str, mode: int) -> None:
    ms.set_context(mode=mode)
    operator = OPERATORS[name]

    def call(x: Tensor) -> Any:
        out = operator(x, backend)
        return out if isinstance(out, tuple) else (out,)

    x = _random(TOKENS, BATCHES, N, D)
    together = ms.vmap(call, 1, 1)(x)
    alone = [call(part) for part in ms.mint.unbind(x, 1)]
    for index, got in enumerate(together):
        want = np.stack([out[index].asnumpy() for out in alone], 1)
        assert np.abs(got.asnumpy() - want).max() <= 5e-6 * np.abs(want).max()
