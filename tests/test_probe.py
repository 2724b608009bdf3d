"""Reading a residual stream out of the middle of a network."""

from __future__ import annotations

from typing import Any, Callable

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from ms_mhc import HyperConnection, expand_streams, merge_streams
from ms_mhc.probe import residual_stream

Way = Callable[[Any], Any]


class Network(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.CellList([HyperConnection(4, 8, nn.Dense(8, 8)) for _ in range(3)])
        rng = np.random.default_rng(0)
        for parameter in self.trainable_params():
            parameter.set_data(Tensor(rng.normal(0, 0.3, parameter.shape).astype(np.float32)))

    def construct(self, h: Tensor) -> Tensor:
        x = expand_streams(h, 4)
        for block in self.blocks:
            x = block(x)
        return merge_streams(x)


def test_stream_is_the_one_behind_the_layer(way: Way) -> None:
    network = Network()
    h = Tensor(np.random.default_rng(1).normal(size=(2, 3, 8)).astype(np.float32))
    whole = way(network)(h).asnumpy()
    mode = ms.get_context("mode")
    x = expand_streams(h, 4)
    for index, block in enumerate(network.blocks):
        x = block(x)
        read = residual_stream(network, f"blocks.{index}", h)
        assert read.shape == h.shape
        assert np.allclose(read.asnumpy(), merge_streams(x).asnumpy(), atol=1e-5)
    assert np.allclose(residual_stream(network, "blocks.2", h).asnumpy(), whole, atol=1e-5)
    assert ms.get_context("mode") == mode
    assert np.array_equal(way(network)(h).asnumpy(), whole)


def test_layer_that_is_not_there_is_named_with_those_that_are() -> None:
    h = Tensor(np.zeros((1, 1, 8), np.float32))
    with pytest.raises(ValueError, match=r"no layer 'blocks.7'; the network has blocks.0, blocks.1, blocks.2"):
        residual_stream(Network(), "blocks.7", h)
