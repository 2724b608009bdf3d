"""mHC inside what MindSpore users do: mixed precision, dynamic shapes, recomputation."""

from __future__ import annotations

from typing import Any, Callable

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, amp, nn, ops

from ms_mhc import HyperConnection, MhcHead, MhcPre, MhcSinkhorn, expand_streams, merge_streams, reference
from tests.compare import as_numpy, assert_close

Way = Callable[[Any], Any]


class Typed(nn.Cell):
    """A branch that tells in which dtype it was computed."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.dense = nn.Dense(d, d)

    def construct(self, h: Tensor) -> Tensor:
        return self.dense(h)


class Network(nn.Cell):
    def __init__(self, d: int = 16) -> None:
        super().__init__()
        self.layer = HyperConnection(4, d, Typed(d))

    def construct(self, h: Tensor) -> Tensor:
        x = expand_streams(h, 4)
        x = self.layer(x)
        return merge_streams(x)


class Gates(nn.Cell):
    """The outputs whose precision matters, one by one."""

    def __init__(self, d: int = 16) -> None:
        super().__init__()
        self.pre = MhcPre(4, d)
        self.sinkhorn = MhcSinkhorn()

    def construct(self, x: Tensor) -> Any:
        h_in, h_post, h_res = self.pre(x)
        return ops.cast(h_in, ms.float32), h_post, self.sinkhorn(h_res)


def learnt(network: nn.Cell, seed: int = 0) -> nn.Cell:
    """Gates that matter: the initial values keep them almost shut."""
    rng = np.random.default_rng(seed)
    for parameter in network.trainable_params():
        if parameter.name.rsplit(".", 1)[-1] in ("phi", "alpha", "bias", "scale"):
            parameter.set_data(Tensor(rng.normal(0, 0.5, parameter.shape).astype(np.float32)))
    return network


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_mixed_precision_leaves_the_gates_in_fp32(way: Way, level: str) -> None:
    gates = learnt(Gates())
    parameters = {p.name.rsplit(".", 1)[-1]: p.asnumpy() for p in gates.trainable_params()}
    x = np.random.default_rng(1).normal(size=(2, 3, 4, 16)).astype(np.float16).astype(np.float32)
    mixed = amp.auto_mixed_precision(gates, level, ms.float16)
    h_in, h_post, mixing = way(mixed)(Tensor(x))
    want = reference.mhc_pre(x, **parameters)
    assert_close("h_post", h_post, want.h_post)
    assert_close("mixing", mixing, reference.mhc_sinkhorn(want.h_res))
    low = level in ("O2", "O3")  # these levels cast the network's input, so h_in is rounded to float16
    assert (np.abs(as_numpy(h_in) - as_numpy(h_in).astype(np.float16)).max() == 0) == low
    assert all(p.dtype == ms.float32 for p in mixed.trainable_params())


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_mixed_precision_trains_a_wrapped_cell(way: Way, level: str) -> None:
    network = amp.auto_mixed_precision(learnt(Network()), level, ms.float16)
    h = Tensor(np.random.default_rng(1).normal(size=(2, 3, 16)).astype(np.float32))
    exact = learnt(Network())
    ms.load_param_into_net(exact, {p.name.replace("_backbone.", ""): p for p in network.get_parameters()})
    got, want = way(network)(h), exact(h)
    assert np.abs(as_numpy(got) - as_numpy(want)).max() < 2e-2

    def loss(h: Tensor) -> Tensor:
        return (ops.cast(network(h), ms.float32) ** 2).mean()

    parameters = list(network.trainable_params())
    _, grads = way(ops.value_and_grad(loss, None, parameters))(h)
    for parameter, grad in zip(parameters, grads):
        assert np.isfinite(as_numpy(grad)).all(), parameter.name


class TrainingGraph(nn.Cell):
    """Loss and gradients as one outermost cell: dynamic shapes count only there."""

    def __init__(self, d: int) -> None:
        super().__init__(auto_prefix=False)
        self.layers = nn.SequentialCell([HyperConnection(4, d, nn.Dense(d, d)) for _ in range(2)])
        self.head = MhcHead(4, d)
        self.weights = ms.ParameterTuple(self.trainable_params())
        self.gradient = ops.GradOperation(get_by_list=True)

    def loss(self, h: Tensor) -> Tensor:
        return (self.head(self.layers(expand_streams(h, 4))) ** 2).mean()

    def construct(self, h: Tensor) -> Any:
        return self.loss(h), self.gradient(self.loss, self.weights)(h)


def test_ten_shapes_compile_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from mindspore.graph import api

    d, compilations = 16, []
    original = api._CellGraphExecutor.compile

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        compilations.append(result)
        return result

    before = ms.get_context("mode")
    ms.set_context(mode=ms.GRAPH_MODE)
    fixed = learnt(TrainingGraph(d))
    step = learnt(TrainingGraph(d))
    ms.load_param_into_net(step, {p.name: p for p in fixed.get_parameters()})
    step.set_inputs(Tensor(shape=(None, None, d), dtype=ms.float32))
    monkeypatch.setattr(api._CellGraphExecutor, "compile", counted)
    rng, dynamic = np.random.default_rng(0), {}
    shapes = [(2, 3), (2, 4), (1, 7), (3, 3), (5, 1), (2, 8), (4, 2), (1, 1), (6, 6), (2, 9)]
    inputs = [Tensor(rng.normal(size=(*shape, d)).astype(np.float32)) for shape in shapes]
    for shape, h in zip(shapes, inputs):
        dynamic[shape] = step(h)
    fresh = [c for c in compilations if not (isinstance(c, tuple) and c[1] is False)]
    assert len(fresh) == 1
    monkeypatch.undo()
    for index in (0, 4, 8):
        loss, grads = fixed(inputs[index])
        got_loss, got_grads = dynamic[shapes[index]]
        assert float(got_loss) == pytest.approx(float(loss), rel=1e-5)
        for one, other in zip(grads, got_grads):
            assert_close("gradient", other, as_numpy(one), noise=1e-4)  # of two backends in fp32
    ms.set_context(mode=before)
