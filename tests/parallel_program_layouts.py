"""Trains a small network under semi_auto_parallel, alone, as one rank of several, or as one that is only compiled.

The operator in its layers is written in one of several ways, which differ in what MindSpore makes of them:

    plain   MindSpore operators, each with its strategy
    morph   one ``Morph`` with a written backward and layouts
    cell    a cell with a ``bprop``: its replicated parameters get no gradient AllReduce
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Tuple

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.communication import get_group_size, get_rank, init
from mindspore.nn.wrap.cell_wrapper import _TrainGradAccuStepCell
from mindspore.ops.operations.debug_ops import Morph
from mindspore.parallel.shard import Layout

BATCH, SEQUENCE, STREAMS, SIZE, LAYERS, MICRO = 4, 8, 4, 64, 4, 2


class Layouts:
    """Tokens split over the ranks of a stage, streams and hidden size whole."""

    def __init__(self, batch: int, sequence: int) -> None:
        self.split = (batch, sequence)
        self.layout = Layout(self.split, ("batch", "sequence"))

    def strategy(self, trailing: int) -> Tuple[int, ...]:
        return self.split + (1,) * trailing

    def tokens(self, trailing: int) -> Layout:
        return self.layout("batch", "sequence", *["None"] * trailing)

    def replicated(self, rank: int) -> Layout:
        return self.layout(*["None"] * rank)


class Plain(nn.Cell):
    """y = x * weight + bias, z = sum of x * weight over the hidden size."""

    def __init__(self, layouts: Layouts) -> None:
        super().__init__()
        x = layouts.strategy(2)
        self.mul = ops.Mul().shard((x, (1,)))
        self.add = ops.Add().shard((x, (1, 1)))
        self.sum = ops.ReduceSum().shard((x,))

    def construct(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tuple[Tensor, Tensor]:
        scaled = self.mul(x, weight)
        return self.add(scaled, bias), self.sum(scaled, -1)


class Written(nn.Cell):
    """The same with its backward written out."""

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tuple[Tensor, Tensor]:
        scaled = mint.mul(x, weight)
        return mint.add(scaled, bias), mint.sum(scaled, -1)

    def backward(self, x, weight, bias, out, dout):  # type: ignore[no-untyped-def]
        d_scaled = mint.add(dout[0], mint.unsqueeze(dout[1], -1))
        return mint.mul(d_scaled, weight), mint.sum(mint.mul(d_scaled, x), (0, 1, 2)), mint.sum(dout[0], (0, 1))


class AsMorph(Written):
    def __init__(self, layouts: Layouts) -> None:
        super().__init__()
        self.morph = Morph(self.forward, self.shapes, self.dtypes, self.backward)
        self.morph.add_prim_attr("self_define_shard", True)
        for name in ("side_effect_mem", "side_effect_io", "side_effect_backprop"):
            self.morph.del_prim_attr(name)  # it has none, and with them pipeline stages do not compile
        inputs = layouts.tokens(2), layouts.replicated(1), layouts.replicated(2)
        self.morph.shard(inputs, (layouts.tokens(2), layouts.tokens(1)))

    def shapes(self, x, weight, bias):  # type: ignore[no-untyped-def]
        return x, x[:-1]

    def dtypes(self, x, weight, bias):  # type: ignore[no-untyped-def]
        return x, x

    def construct(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tuple[Tensor, Tensor]:
        return self.morph(x, weight, bias)


class AsCell(Plain):
    def construct(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tuple[Tensor, Tensor]:
        scaled = self.mul(x, weight)
        return self.add(scaled, bias), self.sum(scaled, -1)

    def bprop(self, x, weight, bias, out, dout):  # type: ignore[no-untyped-def]
        d_scaled = mint.add(dout[0], mint.unsqueeze(dout[1], -1))
        return mint.mul(d_scaled, weight), mint.sum(mint.mul(d_scaled, x), (0, 1, 2)), mint.sum(dout[0], (0, 1))


class Layer(nn.Cell):
    def __init__(self, kind: str, layouts: Layouts) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.zeros(SIZE, np.float32)), name="weight")
        self.bias = Parameter(Tensor(np.zeros((STREAMS, SIZE), np.float32)), name="bias")
        self.operator = {"plain": Plain, "morph": AsMorph, "cell": AsCell}[kind](layouts)
        self.expand = ops.ExpandDims().shard((layouts.strategy(1),))
        self.tanh = ops.Tanh().shard((layouts.strategy(2),))
        self.mul = ops.Mul().shard((layouts.strategy(2), layouts.strategy(2)))

    def construct(self, x: Tensor) -> Tensor:
        y, z = self.operator(x, self.weight, self.bias)
        return self.mul(y, self.tanh(self.expand(z, -1)))


class Embedding(nn.Cell):
    def __init__(self, layouts: Layouts) -> None:
        super().__init__()
        self.scale = Parameter(Tensor(np.zeros(SIZE, np.float32)), name="scale")
        self.mul = ops.Mul().shard((layouts.strategy(2), (1,)))

    def construct(self, x: Tensor) -> Tensor:
        return self.mul(x, self.scale)


class Network(nn.Cell):
    """The loss."""

    def __init__(self, kind: str, layouts: Layouts, stages: int, recompute: bool) -> None:
        super().__init__()
        self.embedding = Embedding(layouts)
        self.layers = nn.CellList([Layer(kind, layouts) for _ in range(LAYERS)])
        self.square = ops.Square().shard((layouts.strategy(2),))
        self.mean = ops.ReduceMean().shard((layouts.strategy(2),))
        if recompute:
            for layer in self.layers:
                layer.recompute()
        if stages > 1:
            self.embedding.pipeline_stage = 0
            for number, layer in enumerate(self.layers):
                layer.pipeline_stage = number * stages // LAYERS

    def construct(self, x: Tensor) -> Tensor:
        x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return self.mean(self.square(x))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("plain", "morph", "cell"))
    parser.add_argument("--batch", type=int, default=1, help="ranks along the batch")
    parser.add_argument("--sequence", type=int, default=1, help="ranks along the sequence")
    parser.add_argument("--stages", type=int, default=1)
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--shard-optimizer", action="store_true")
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--graphs", help="folder for the compiled graphs")
    parser.add_argument("--parameters", help="folder for the trained parameters, as this rank has them")
    options = parser.parse_args()
    ms.set_context(mode=ms.GRAPH_MODE, device_target="Ascend", jit_config={"jit_level": "O0"})
    if options.graphs:
        ms.set_context(save_graphs=2, save_graphs_path=options.graphs)
    rank, ranks = 0, options.batch * options.sequence * options.stages
    if ranks > 1:
        init()
        rank = get_rank()
        assert get_group_size() == ranks
        ms.set_auto_parallel_context(
            parallel_mode="semi_auto_parallel",
            full_batch=True,
            pipeline_stages=options.stages,
            enable_parallel_optimizer=options.shard_optimizer,
            parallel_optimizer_config={"parallel_optimizer_threshold": 0},
        )
    layouts = Layouts(options.batch, options.sequence)
    network = Network(options.kind, layouts, options.stages, options.recompute)
    rng = np.random.default_rng(0)
    for parameter in network.trainable_params():
        parameter.set_data(Tensor(rng.normal(0.5, 0.3, parameter.shape).astype(np.float32)))
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    if options.stages > 1:
        step = _TrainGradAccuStepCell(nn.PipelineCell(network, MICRO), optimizer)
    else:
        step = nn.TrainOneStepCell(network, optimizer)
    step.set_train()
    losses = []
    for _ in range(options.steps):
        x = rng.normal(size=(BATCH, SEQUENCE, STREAMS, SIZE)).astype(np.float32)
        loss = step(Tensor(x))
        losses.append(float(loss.asnumpy()) if isinstance(loss, Tensor) else None)
    if options.parameters:
        values = {parameter.name: parameter.asnumpy() for parameter in network.trainable_params()}
        np.savez(Path(options.parameters) / f"{rank}.npz", **values)
    print("LOSSES", json.dumps({"rank": rank, "losses": losses}), flush=True)


if __name__ == "__main__":
    main()
