"""The learned collapse against the reference."""

from __future__ import annotations

from typing import Any, Callable, Tuple

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

from ms_mhc import MhcHead, expand_streams, merge_streams, mhc_head, reference
from tests.compare import as_numpy, assert_close

Way = Callable[[Any], Any]
DTYPES = {"float32": ms.float32, "bfloat16": ms.bfloat16, "float16": ms.float16}


@pytest.mark.parametrize(
    ("n", "d", "tokens", "dtype"),
    [(4, 64, (2, 3), "float32"), (3, 10, (5,), "bfloat16"), (1, 7, (1, 1), "float32"), (8, 32, (4,), "float16")],
)
def test_output_equals_the_reference(way: Way, n: int, d: int, tokens: Tuple[int, ...], dtype: str) -> None:
    rng = np.random.default_rng([n, d])
    x = Tensor(rng.normal(size=(*tokens, n, d)).astype(np.float32)).astype(DTYPES[dtype])
    head = MhcHead(n, d, norm_eps=1e-2, hc_eps=3e-2)
    values = {
        "phi": rng.normal(size=(n, n * d)) / np.sqrt(n * d),
        "scale": rng.normal(size=1),
        "bias": rng.normal(size=n),
    }
    for name, value in values.items():
        values[name] = value.astype(np.float32)
        getattr(head, name).set_data(Tensor(values[name]))
    out = way(head)(x)
    assert out.dtype == x.dtype
    assert_close("out", out, reference.mhc_head(as_numpy(x), **values, norm_eps=1e-2, hc_eps=3e-2))


def test_gradients_agree_with_central_differences_of_the_reference(way: Way) -> None:
    rng = np.random.default_rng(0)
    arguments = {
        "x": rng.normal(size=(2, 3, 4)),
        "phi": rng.normal(size=(3, 12)),
        "scale": rng.normal(size=1),
        "bias": rng.normal(size=3),
    }
    weight = rng.normal(size=(2, 4))

    def loss(*tensors: Tensor) -> Tensor:
        return (mhc_head(*tensors) * Tensor(weight.astype(np.float32))).sum()

    grads = way(ms.grad(loss, (0, 1, 2, 3)))(*(Tensor(v.astype(np.float32)) for v in arguments.values()))
    for (name, value), grad in zip(arguments.items(), grads):
        numeric = np.zeros_like(value)
        for index in np.ndindex(value.shape):
            sides = []
            for step in (1e-5, -1e-5):
                moved = {**arguments, name: value.copy()}
                moved[name][index] += step
                sides.append(float(np.sum(weight * reference.mhc_head(**moved))))
            numeric[index] = (sides[0] - sides[1]) / 2e-5
        assert_close("grad_" + name, grad, numeric)


@pytest.mark.parametrize("n", [1, 2, 4, 6, 8])
def test_head_starts_as_the_mean(n: int) -> None:
    h = Tensor(np.random.default_rng(n).normal(size=(2, 3, 16)).astype(np.float32))
    x = expand_streams(h, n)
    assert np.allclose(MhcHead(n, 16)(x).asnumpy(), merge_streams(x).asnumpy(), rtol=1e-4, atol=1e-5)


def test_head_refuses() -> None:
    zeros = [Tensor(np.zeros(s, np.float32)) for s in ((5, 2, 3), (2, 6), (1,), (2,))]
    with pytest.raises(ValueError, match=r"mhc_head: phi has shape \[2, 6\]; expected \[3, 6\]"):
        mhc_head(Tensor(np.zeros((5, 3, 2), np.float32)), *zeros[1:])
    with pytest.raises(ValueError, match=r"mhc_head: scale has shape \[3\]; expected \[1\]"):
        mhc_head(zeros[0], zeros[1], Tensor(np.zeros(3, np.float32)), zeros[3])
    with pytest.raises(ValueError, match="MhcHead: num_streams"):
        MhcHead(0, 4)
