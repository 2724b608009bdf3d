"""HyperConnection around cells that it does not know."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Callable, List, Tuple

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from ms_mhc import HyperConnection, expand_streams, merge_streams, reference
from tests.compare import JIT_IS_SLOW, as_numpy, in_turn

Way = Callable[[Any], Any]


class Branch(nn.Cell):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm((d,))
        self.dense = nn.Dense(d, d, activation="tanh")

    def construct(self, h: Tensor) -> Tensor:
        return self.dense(self.norm(h))


class Network(nn.Cell):
    def __init__(self, n: int, d: int, layers: int = 2, backend: str = "auto") -> None:
        super().__init__()
        self.n = n
        self.layers = nn.SequentialCell(
            [HyperConnection(n, d, Branch(d), num_iters=4, backend=backend) for _ in range(layers)]
        )

    def construct(self, h: Tensor) -> Tensor:
        return merge_streams(self.layers(expand_streams(h, self.n)))


@pytest.mark.parametrize(("way", "n"), in_turn((1,), (2,), (4,), (6,), (8,)), indirect=["way"])
def test_network_starts_as_the_plain_residual_network(way: Way, n: int) -> None:
    network = Network(n, 32)
    h = Tensor(np.random.default_rng(n).normal(size=(2, 5, 32)).astype(np.float32))
    plain = h
    for layer in network.layers:
        plain = plain + layer.branch(plain)
    got, want = way(network)(h).asnumpy(), plain.asnumpy()
    assert np.abs(got - want).max() / np.abs(want).max() < 1e-4


class Attention(nn.Cell):
    """Takes a mask and a flag, returns a cache and None beside its output."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.dense = nn.Dense(d, d)

    def construct(self, h: Tensor, mask: Tensor, scale: float) -> Tuple[Tensor, Tensor]:
        out = self.dense(h * mask) * scale
        return out, out * 2


@pytest.mark.parametrize("by_name", [(), ("scale",), ("mask", "scale")], ids=" ".join)
def test_branch_may_take_and_return_more(way: Way, by_name: Tuple[str, ...]) -> None:
    layer = HyperConnection(4, 16, Attention(16))
    rng = np.random.default_rng(0)
    x = Tensor(rng.normal(size=(2, 3, 4, 16)).astype(np.float32))
    mask = Tensor(rng.normal(size=(2, 3, 1)).astype(np.float32))
    given = {"mask": mask, "scale": 0.5}
    named = {name: given.pop(name) for name in by_name}
    x_next, cache = way(layer)(x, *given.values(), **named)
    assert x_next.shape == x.shape
    assert cache.shape == (2, 3, 16)

    pre = reference.mhc_pre(x.asnumpy(), layer.pre.phi.asnumpy(), layer.pre.alpha.asnumpy(), layer.pre.bias.asnumpy())
    h_out = layer.branch(Tensor(pre.h_in.astype(np.float32)), mask, 0.5)[0].asnumpy()
    want = reference.mhc_post(x.asnumpy(), reference.mhc_sinkhorn(pre.h_res), h_out, pre.h_post)
    assert np.abs(x_next.asnumpy() - want).max() < 5e-6 * np.abs(want).max()


def test_mixing_really_happens(way: Way) -> None:
    """H_res computed and never applied still trains (tokenbender/mHC #3): swap the streams and look."""
    layer = HyperConnection(2, 4, nn.Dense(4, 4))
    layer.pre.bias.set_data(Tensor(np.array([0, 0, -30, -30, -30, 30, 30, -30], np.float32)))
    x = np.random.default_rng(1).normal(size=(1, 3, 2, 4)).astype(np.float32)
    out = way(layer)(Tensor(x)).asnumpy()
    assert np.allclose(out, x[:, :, ::-1], atol=1e-4)


def test_gradients_of_a_network_agree_with_central_differences(way: Way) -> None:
    network = Network(4, 8)
    rng = np.random.default_rng(2)
    for parameter in network.trainable_params():
        if parameter.name.rsplit(".", 1)[-1] in ("phi", "alpha", "bias"):
            parameter.set_data(Tensor(rng.normal(0, 0.5, parameter.shape).astype(np.float32)))
    h = rng.normal(size=(2, 3, 8)).astype(np.float32)
    weight = Tensor(rng.normal(size=h.shape).astype(np.float32))

    def loss(h: Tensor) -> Tensor:
        return (network(h) * weight).sum()

    grad = way(ms.grad(loss))(Tensor(h)).asnumpy()
    direction = rng.normal(size=h.shape).astype(np.float32)
    step = 1e-2
    up, down = (float(loss(Tensor(h + s * step * direction))) for s in (1, -1))
    terms = grad * direction
    assert (up - down) / (2 * step) == pytest.approx(float(terms.sum()), abs=5e-3 * float(np.abs(terms).sum()))


def _forward_passes_of_mhc_pre(folder: Path) -> int:
    """In the newest of the compiled graphs that were saved there: kernels, or what MindSpore ops have instead."""
    graph = max(folder.rglob("*execute*.ir"), key=lambda path: path.stat().st_mtime).read_text(errors="replace")
    kernels = re.findall(r'func_name: "[^"]*:MhcPre(?:Sinkhorn)?"', graph)
    return len(kernels) or len(re.findall(r"= \w*Sigmoid\(", graph)) // 2


@JIT_IS_SLOW
def test_recompute_runs_the_forward_once_more_and_gives_the_same_bits(way: Way, tmp_path: Path) -> None:
    h = Tensor(np.random.default_rng(3).normal(size=(2, 3, 16)).astype(np.float32))
    plain, recomputed = Network(4, 16), Network(4, 16)
    ms.load_param_into_net(recomputed, {p.name: p for p in plain.get_parameters()})
    for layer in recomputed.layers:
        layer.recompute()
    eagerly = ms.get_context("mode") == ms.PYNATIVE_MODE and way is not ms.jit
    runs: List[int] = []
    if eagerly:
        for network in (plain, recomputed):
            network.layers[0].branch.register_forward_pre_hook(lambda cell, inputs: runs.append(1))

    def gradients(network: nn.Cell, folder: Path) -> Any:
        def loss(h: Tensor) -> Tensor:
            return (network(h) ** 2).sum()

        runs.clear()
        ms.set_context(save_graphs=2, save_graphs_path=str(folder))
        try:
            loss_value, (grad_h, grads) = way(ops.value_and_grad(loss, 0, list(network.trainable_params())))(h)
        finally:
            ms.set_context(save_graphs=0)
        passes = len(runs) if eagerly else _forward_passes_of_mhc_pre(folder) / len(network.layers)
        return passes, [tensor.asnumpy() for tensor in (loss_value, grad_h, *grads)]

    (once, ones), (twice, twos) = gradients(plain, tmp_path / "plain"), gradients(recomputed, tmp_path / "recomputed")
    # compiled, MindSpore recomputes only where that frees memory: not the layer whose gradient comes first
    assert (once, twice) == ((1, 2) if eagerly else (1, 1.5))
    for one, two in zip(ones, twos):
        assert np.abs(one).max() > 0
        assert np.array_equal(one, two)


@JIT_IS_SLOW
def test_every_parameter_gets_its_own_gradient(way: Way, backend: str) -> None:
    """Two equal layers: a framework that confuses their tensors gives one layer the other's gradient."""

    def gradients(run: Way, name: str) -> Any:
        network = Network(4, 8, backend=name)
        rng = np.random.default_rng(5)
        for parameter in network.trainable_params():
            parameter.set_data(Tensor(rng.normal(0, 0.5, parameter.shape).astype(np.float32)))
        h = Tensor(rng.normal(size=(2, 3, 8)).astype(np.float32))

        def loss(h: Tensor) -> Tensor:
            return (network(h) ** 2).mean()

        parameters = list(network.trainable_params())
        _, grads = run(ops.value_and_grad(loss, None, parameters))(h)
        return {p.name: g.asnumpy() for p, g in zip(parameters, grads)}

    got = gradients(way, backend)
    mode = ms.get_context("mode")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    want = gradients(lambda function: function, "composite")
    ms.set_context(mode=mode)
    assert not np.allclose(want["layers.0.pre.bias"], want["layers.1.pre.bias"])
    for name, value in want.items():
        assert np.abs(got[name] - value).max() <= 1e-4 * np.abs(value).max(), name


class InFloat32(nn.Cell):
    def construct(self, h: Tensor) -> Tensor:
        return ops.cast(h, ms.float32) * 0.5


def test_a_branch_may_return_another_dtype(way: Way) -> None:
    x = Tensor(np.random.default_rng(0).normal(size=(3, 4, 8)).astype(np.float32)).astype(ms.bfloat16)
    out = way(HyperConnection(4, 8, InFloat32()))(x)
    assert out.dtype == ms.bfloat16
    want = as_numpy(x) + 0.5 * as_numpy(x).mean(axis=-2, keepdims=True)  # the initial values are the plain residual
    assert np.abs(as_numpy(out) - want).max() < 0.02 * np.abs(want).max()


class ReturnsNone(nn.Cell):
    def construct(self, h: Tensor) -> Any:
        return h * 0.5, None


def test_branch_that_returns_none_beside_its_output_is_refused_in_graphs(way: Way, backend: str) -> None:
    cell = HyperConnection(4, 8, ReturnsNone(), backend=backend)
    x = Tensor(np.ones((2, 4, 8), np.float32))
    if way is not ms.jit and ms.get_context("mode") == ms.PYNATIVE_MODE:
        out = cell(x)
        assert out[0].shape == (2, 4, 8)
        assert out[1] is None
        return
    with pytest.raises(ValueError, match="HyperConnection: branch returned None beside its output"):
        way(cell)(x)


@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE, ms.GRAPH_MODE], ids=["pynative", "graph"])
def test_each_eps_goes_where_it_belongs(mode: int) -> None:
    """Three that differ, and are large: exchanged, they would give other numbers."""
    before = ms.get_context("mode")
    ms.set_context(mode=mode)
    try:
        eps = {"norm_eps": 0.5, "hc_eps": 0.1, "sinkhorn_eps": 0.02}
        connection = HyperConnection(4, 16, nn.Identity(), num_iters=2, **eps)
        rng = np.random.default_rng(0)
        for parameter in connection.trainable_params():
            parameter.set_data(Tensor(rng.normal(0, 0.3, parameter.shape).astype(np.float32)))
        x = rng.normal(size=(5, 4, 16)).astype(np.float32)
        out = connection(Tensor(x)).asnumpy()
    finally:
        ms.set_context(mode=before)
    parameters = [p.asnumpy() for p in (connection.pre.phi, connection.pre.alpha, connection.pre.bias)]
    pre = reference.mhc_pre(x, *parameters, norm_eps=0.5, hc_eps=0.1)
    matrices = reference.mhc_sinkhorn(pre.h_res, num_iters=2, eps=0.02)
    want = reference.mhc_post(x, matrices, pre.h_in, pre.h_post)
    np.testing.assert_allclose(out, want, atol=1e-5 * np.abs(want).max())
