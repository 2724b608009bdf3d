"""MhcPost on the backends of this machine: numbers against the reference, and the orientation of h_res."""

from __future__ import annotations

from typing import Any, Callable, Optional

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from ms_mhc import MhcPost, expand_streams, merge_streams, mhc_post, reference
from tests.compare import as_numpy, assert_close, in_turn

Way = Callable[[Any], Any]
DTYPES = {"float32": ms.float32, "bfloat16": ms.bfloat16, "float16": ms.float16}


class Post(nn.Cell):
    """``None`` cannot be an input whose gradient is taken, so the identity is a choice of the cell."""

    def __init__(self, backend: str, identity: bool) -> None:
        super().__init__()
        self.post = MhcPost(backend)
        self.identity = identity

    def construct(self, x: Tensor, h_res: Tensor, h_out: Tensor, h_post: Tensor) -> Tensor:
        return self.post(x, None if self.identity else h_res, h_out, h_post)


@pytest.mark.parametrize("identity", [False, True])
@pytest.mark.parametrize(
    ("way", "n", "d", "tokens", "dtype"),
    in_turn(
        (4, 64, (2, 3), "float32"),
        (4, 64, (5,), "bfloat16"),
        (6, 33, (2, 1), "float16"),
        (1, 1, (1,), "float32"),
        (3, 10, (7,), "bfloat16"),
        (16, 8, (3,), "float32"),
    ),
    indirect=["way"],
)
def test_streams_and_gradients_equal_the_reference(
    way: Way, backend: str, n: int, d: int, tokens: Any, dtype: str, identity: bool
) -> None:
    rng, kind = np.random.default_rng([n, d]), DTYPES[dtype]
    shapes = ((*tokens, n, d), (*tokens, n, n), (*tokens, d), (*tokens, n), (*tokens, n, d))
    kinds = (kind, ms.float32, kind, ms.float32, kind)
    tensors = [Tensor(rng.normal(size=s).astype(np.float32)).astype(k) for s, k in zip(shapes, kinds)]
    x, h_res, h_out, h_post, grad = map(as_numpy, tensors)
    mixing: Optional[np.ndarray] = None if identity else h_res

    cell = Post(backend, identity)
    out = way(cell)(*tensors[:4])
    grads = way(ops.GradOperation(get_all=True, sens_param=True)(cell))(*tensors)
    assert_close("out", out, reference.mhc_post(x, mixing, h_out, h_post))
    want = reference.mhc_post_backward(grad, x, mixing, h_out, h_post)
    for position, (name, got) in enumerate(zip(want._fields, grads)):
        if position == 1 and identity:
            assert np.all(got.asnumpy() == 0), "an h_res that is not used has no gradient"
        else:
            assert_close(name, got, want[position])


def test_first_index_of_h_res_is_read_and_the_second_is_written(way: Way, backend: str) -> None:
    """The most repeated bug of public implementations: H_res the wrong way round."""
    x = Tensor(np.array([[[1.0, 2.0], [10.0, 20.0], [100.0, 200.0]]], np.float32))
    to_the_next = Tensor(np.array([[[0, 1, 0], [0, 0, 1], [1, 0, 0]]], np.float32))
    nothing = Tensor(np.zeros((1, 2), np.float32)), Tensor(np.zeros((1, 3), np.float32))
    out = way(MhcPost(backend))(x, to_the_next, *nothing)
    assert out.asnumpy()[0].tolist() == [[100, 200], [1, 2], [10, 20]]


def test_h_res_that_is_not_symmetric(way: Way, backend: str) -> None:
    x = Tensor(np.array([[[1.0], [10.0]]], np.float32))
    h_res = Tensor(np.array([[[0.5, 0.25], [0.0, 2.0]]], np.float32))
    h_out, h_post = Tensor(np.array([[1000.0]], np.float32)), Tensor(np.array([[1.0, 2.0]], np.float32))
    out = way(MhcPost(backend))(x, h_res, h_out, h_post)
    assert out.asnumpy().ravel().tolist() == [1000 + 0.5, 2000 + 0.25 + 20]


def test_swapping_streams_swaps_them(backend: str) -> None:
    rng = np.random.default_rng(5)
    x = Tensor(rng.normal(size=(2, 4, 8)).astype(np.float32))
    swap = np.eye(4, dtype=np.float32)[[1, 0, 2, 3]]
    h_res = Tensor(np.tile(swap, (2, 1, 1)))
    out = mhc_post(
        x, h_res, Tensor(np.zeros((2, 8), np.float32)), Tensor(np.zeros((2, 4), np.float32)), backend=backend
    )
    assert np.array_equal(out.asnumpy(), x.asnumpy()[:, [1, 0, 2, 3]])


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_streams_start_as_copies_and_end_as_their_mean(way: Way, dtype: str) -> None:
    kind = DTYPES[dtype]
    h = Tensor(np.random.default_rng(6).normal(size=(2, 3, 5)).astype(np.float32)).astype(kind)

    def there(h: Tensor) -> Tensor:
        return expand_streams(h, 4)

    x = way(there)(h)
    assert x.shape == (2, 3, 4, 5)
    assert x.dtype == kind
    assert np.array_equal(as_numpy(x), np.repeat(as_numpy(h)[..., None, :], 4, axis=-2))
    back = way(merge_streams)(x)
    assert back.dtype == kind
    assert np.array_equal(as_numpy(back), as_numpy(h))
