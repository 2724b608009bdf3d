"""Trains a small network under semi_auto_parallel, alone, as one rank of several, or as one that is only compiled.

MindSpore gets the whole batch in every process and takes its part of it. The tokens are split over the ranks of a
stage, the parameters are replicated. A connection is told so once, with ``layout``; the operators of its branch get
strategies of their own. ``--cell`` puts a cell with a ``bprop`` in the place of the connections, to show what becomes
of its parameters.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Tuple

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.communication import get_group_size, get_rank, init
from mindspore.nn.wrap.cell_wrapper import _TrainGradAccuStepCell
from mindspore.parallel import Layout

from ms_mhc import HyperConnection

BATCH, SEQUENCE, STREAMS, SIZE, LAYERS, MICRO_BATCHES = 4, 8, 4, 64, 2, 2


class Split:
    """How many ranks there are along the batch and along the sequence, and how many have the same tokens."""

    def __init__(self, batch: int, sequence: int, same: int) -> None:
        self.batch, self.sequence, self.same = batch, sequence, same

    def layout(self) -> Layout:
        """Of the streams, [B, S, N, D]."""
        return Layout((self.batch, self.sequence, self.same), ("dp", "sp", "tp"))("dp", "sp", "None", "None")

    def __call__(self, primitive: Any, rank: int, others: Tuple[Tuple[int, ...], ...] = ()) -> Any:
        """An operator whose first input has this rank and begins with B and S."""
        if self.batch * self.sequence * self.same == 1:
            return primitive
        return primitive.shard(((self.batch, self.sequence, *[1] * (rank - 2)), *others))


class Branch(nn.Cell):
    """tanh(h * weight), computed in float32."""

    def __init__(self, split: Split) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.zeros(SIZE, np.float32)), name="weight")
        self.cast = split(ops.Cast(), 3)
        self.mul = split(ops.Mul(), 3, ((1,),))
        self.tanh = split(ops.Tanh(), 3)

    def construct(self, h: Tensor) -> Tensor:
        return self.tanh(self.mul(self.cast(h, ms.float32), self.weight))


class Scale(nn.Cell):
    """x * weight, with its backward written out as a cell's."""

    def __init__(self, split: Split) -> None:
        super().__init__()
        self.mul = split(ops.Mul(), 4, ((1,),))

    def construct(self, x: Tensor, weight: Tensor) -> Tensor:
        return self.mul(x, weight)

    def bprop(self, x: Tensor, weight: Tensor, out: Tensor, dout: Tensor) -> Tuple[Tensor, Tensor]:
        return mint.mul(dout, weight), mint.sum(mint.mul(dout, x), (0, 1, 2))


class Scaled(nn.Cell):
    def __init__(self, split: Split) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.zeros(SIZE, np.float32)), name="weight")
        self.scale = Scale(split)

    def construct(self, x: Tensor) -> Tensor:
        return self.scale(x, self.weight)


class Embedding(nn.Cell):
    """Stands for what makes the streams. MindSpore wants a parameter of plain operators in front of the first stage."""

    def __init__(self, split: Split, dtype: Any) -> None:
        super().__init__()
        self.scale = Parameter(Tensor(np.zeros(SIZE, np.float32)), name="scale")
        self.mul = split(ops.Mul(), 4, ((1,),))
        self.cast = split(ops.Cast(), 4)
        self.dtype = dtype

    def construct(self, x: Tensor) -> Tensor:
        return self.cast(self.mul(x, self.scale), self.dtype)


class Loss(nn.Cell):
    def __init__(self, split: Split, options: argparse.Namespace) -> None:
        super().__init__()
        self.embedding = Embedding(split, ms.bfloat16 if options.bfloat16 else ms.float32)

        def layer() -> nn.Cell:
            if options.cell:
                return Scaled(split)
            branch = Branch(split)
            return HyperConnection(STREAMS, SIZE, branch, backend=options.backend, layout=split.layout())

        self.layers = nn.CellList([layer() for _ in range(LAYERS)])
        self.cast = split(ops.Cast(), 4)
        self.square = split(ops.Square(), 4)
        self.mean = split(ops.ReduceMean(), 4)
        if options.recompute:
            for cell in self.layers:
                cell.recompute()
        if options.stages > 1:
            self.embedding.pipeline_stage = 0
            for number, cell in enumerate(self.layers):
                cell.pipeline_stage = number * options.stages // LAYERS

    def construct(self, x: Tensor) -> Tensor:
        x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return self.mean(self.square(self.cast(x, ms.float32)))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=1, help="ranks along the batch")
    parser.add_argument("--sequence", type=int, default=1, help="ranks along the sequence")
    parser.add_argument("--same", type=int, default=1, help="ranks with the same tokens, as in tensor parallel")
    parser.add_argument("--stages", type=int, default=1)
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--shard-optimizer", action="store_true")
    parser.add_argument("--search", action="store_true", help="auto_parallel with sharding_propagation")
    parser.add_argument("--cell", action="store_true")
    parser.add_argument("--bfloat16", action="store_true", help="streams in bfloat16, which the kernels take")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--mode", choices=("graph", "pynative"), default="graph")
    parser.add_argument("--device", default="Ascend")
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--graphs", help="folder for the compiled graphs")
    parser.add_argument("--parameters", help="folder for the trained parameters, as this rank has them")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    ms.set_context(mode=ms.GRAPH_MODE if options.mode == "graph" else ms.PYNATIVE_MODE, device_target=options.device)
    if options.device == "Ascend":
        ms.set_context(jit_config={"jit_level": "O0"})
    if options.graphs:
        ms.set_context(save_graphs=2, save_graphs_path=options.graphs)
    rank, ranks = 0, options.batch * options.sequence * options.same * options.stages
    if ranks > 1:
        init()
        rank = get_rank()
        assert get_group_size() == ranks
        ms.set_auto_parallel_context(
            parallel_mode="auto_parallel" if options.search else "semi_auto_parallel",
            search_mode="sharding_propagation",
            full_batch=True,
            pipeline_stages=options.stages,
            enable_parallel_optimizer=options.shard_optimizer,
            parallel_optimizer_config={"parallel_optimizer_threshold": 0},
        )
    network = Loss(Split(options.batch, options.sequence, options.same), options)
    rng = np.random.default_rng(0)
    for parameter in network.trainable_params():
        parameter.set_data(Tensor(rng.normal(0.3, 0.3, parameter.shape).astype(np.float32)))
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    if options.stages > 1:
        step = _TrainGradAccuStepCell(nn.PipelineCell(network, MICRO_BATCHES), optimizer)
    else:
        step = nn.TrainOneStepCell(network, optimizer)
    step.set_train()
    losses = []
    for _ in range(options.steps):
        loss = step(Tensor(rng.normal(size=(BATCH, SEQUENCE, STREAMS, SIZE)).astype(np.float32)))
        losses.append(float(loss.asnumpy()) if isinstance(loss, Tensor) else None)  # nothing where it only compiles
    if options.parameters:
        values = {parameter.name: parameter.asnumpy() for parameter in network.trainable_params()}
        np.savez(Path(options.parameters) / f"{rank}.npz", **values)
    print("LOSSES", json.dumps({"rank": rank, "losses": losses}), flush=True)


if __name__ == "__main__":
    main()
