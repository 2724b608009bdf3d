"""Reading a residual stream out of the middle of a network."""

from __future__ import annotations

import os
from typing import Any, Callable

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from ms_mhc import HyperConnection, MhcPost, expand_streams, merge_streams
from ms_mhc.probe import mixing_matrices, residual_stream

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


class Mixes(nn.Cell):
    """Two MhcPost: one with matrices that are not symmetric, one with the identity."""

    def __init__(self, h_res: Tensor) -> None:
        super().__init__()
        self.one, self.other = MhcPost(), MhcPost()
        self.h_res = h_res

    def construct(self, x: Tensor, h_out: Tensor, h_post: Tensor) -> Tensor:
        return self.other(self.one(x, self.h_res, h_out, h_post), None, h_out, h_post)


def test_the_matrices_are_those_that_were_given_the_right_way_round() -> None:
    rng = np.random.default_rng(2)
    x, h_res, h_out, h_post = (rng.normal(size=s).astype(np.float32) for s in ((5, 3, 8), (5, 3, 3), (5, 8), (5, 3)))
    found = mixing_matrices(Mixes(Tensor(h_res)), *map(Tensor, (x, h_out, h_post)))
    assert [name for name, _ in found] == ["one", "other"]
    assert np.array_equal(found[0][1], h_res)
    assert np.array_equal(found[1][1], np.broadcast_to(np.eye(3), (5, 3, 3)))


def test_layer_that_is_not_there_is_named_with_those_that_are() -> None:
    h = Tensor(np.zeros((1, 1, 8), np.float32))
    with pytest.raises(ValueError, match=r"no layer 'blocks.7'; the network has blocks.0, blocks.1, blocks.2"):
        residual_stream(Network(), "blocks.7", h)


def test_an_error_before_the_network_runs_is_the_one_that_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MS_JIT", raising=False)
    h = Tensor(np.zeros((1, 1, 8), np.float32))
    original = ms.set_context

    def refuse(**options: Any) -> None:
        if options.get("mode") == ms.PYNATIVE_MODE:
            raise RuntimeError("the mode cannot be changed here")
        original(**options)

    mode = ms.get_context("mode")
    ms.set_context(mode=ms.GRAPH_MODE)
    monkeypatch.setattr(ms, "set_context", refuse)
    with pytest.raises(RuntimeError, match="the mode cannot be changed here"):
        residual_stream(Network(), "blocks.0", h)
    monkeypatch.undo()
    ms.set_context(mode=mode)
    assert "MS_JIT" not in os.environ


def test_hooks_are_gone_where_one_of_them_could_not_be_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network()
    h = Tensor(np.zeros((1, 1, 8), np.float32))

    def refuse(hook: Any) -> Any:
        raise RuntimeError("no more hooks")

    monkeypatch.setattr(network.blocks[2].post, "register_forward_pre_hook", refuse)
    with pytest.raises(RuntimeError, match="no more hooks"):
        mixing_matrices(network, h)
    assert not any(block.post._forward_pre_hook for block in network.blocks)


class DeletesTheVariable(nn.Cell):
    """A branch that does what only a careless program does."""

    def construct(self, h: Tensor) -> Tensor:
        os.environ.pop("MS_JIT", None)
        raise ValueError("the branch failed")


def test_an_error_of_the_network_is_the_one_that_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MS_JIT", raising=False)
    network = HyperConnection(4, 8, DeletesTheVariable())
    with pytest.raises(ValueError, match="the branch failed"):
        mixing_matrices(network, Tensor(np.zeros((1, 1, 4, 8), np.float32)))


class LeavesOut(nn.Cell):
    """A network that uses only the first of its two layers."""

    def __init__(self, used: int) -> None:
        super().__init__()
        self.layers = nn.CellList([HyperConnection(4, 8, nn.Dense(8, 8)) for _ in range(2)])
        self.used = used

    def construct(self, x: Tensor) -> Tensor:
        for index in range(self.used):
            x = self.layers[index](x)
        return x


def test_layers_that_did_not_run_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MS_JIT", "1")
    x = Tensor(np.zeros((1, 1, 4, 8), np.float32))
    with pytest.raises(ValueError, match=r"none of layers.0, layers.1 ran on the probe"):
        mixing_matrices(LeavesOut(0), x)
    with pytest.raises(ValueError, match=r"the layer 'layers.1' did not run on these inputs"):
        residual_stream(LeavesOut(1), "layers.1", x)
    assert [name for name, _ in mixing_matrices(LeavesOut(1), x)] == ["layers.0"]
    assert os.environ["MS_JIT"] == "1"
