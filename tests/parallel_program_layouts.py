"""Trains a small network under semi_auto_parallel, as one rank of several, or as one that is only compiled.

MindSpore gets the whole batch in every process and takes its part of it. The tokens are split over the ranks of a
stage, the parameters are replicated. A connection is told so once, with ``layout``, and so are the beginning and the
end of the streams; the operators of the branch get strategies of their own. ``--cell`` puts a cell with a ``bprop`` in
the place of the network, to show what becomes of its parameter.

    --batch 2 --sequence 2 + --batch 4    first the one, then the other
"""

from __future__ import annotations

import argparse
import sys
from typing import List, Tuple

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.communication import get_group_size, get_rank, init
from mindspore.nn.wrap.cell_wrapper import _TrainGradAccuStepCell

from tests.launch import cases
from tests.parallel_network import (
    BATCH,
    MICRO_BATCHES,
    SIZE,
    STEPS,
    TOKENS,
    Embedding,
    Network,
    Split,
    batch,
    initialise,
    optimizer_of,
    report,
)


class Scale(nn.Cell):
    """h * weight, with its backward written out as a cell's."""

    def __init__(self, split: Split) -> None:
        super().__init__()
        self.mul = split(ops.Mul(), 3, 1)

    def construct(self, h: Tensor, weight: Tensor) -> Tensor:
        return self.mul(h, weight)

    def bprop(self, h: Tensor, weight: Tensor, out: Tensor, dout: Tensor) -> Tuple[Tensor, Tensor]:
        return mint.mul(dout, weight), mint.sum(mint.mul(dout, h), (0, 1))


class Scaled(nn.Cell):
    """Where the backward is a cell's."""

    def __init__(self, split: Split) -> None:
        super().__init__()
        self.embedding = Embedding(split, ms.float32)
        self.weight = Parameter(Tensor(np.zeros(SIZE, np.float32)), name="weight")
        self.scale = Scale(split)
        self.sub = split(ops.Sub(), 3, 3)
        self.square = split(ops.Square(), 3)
        self.sum = split(ops.ReduceSum(), 3)

    def construct(self, h: Tensor, target: Tensor) -> Tensor:
        return self.sum(self.square(self.sub(self.scale(self.embedding(h), self.weight), target))) / TOKENS


def parser() -> argparse.ArgumentParser:
    """Of one case."""
    made = argparse.ArgumentParser()
    made.add_argument("--batch", type=int, default=1, help="ranks along the batch")
    made.add_argument("--sequence", type=int, default=1, help="ranks along the sequence")
    made.add_argument("--same", type=int, default=1, help="ranks with the same tokens, as in tensor parallel")
    made.add_argument("--stages", type=int, default=1)
    made.add_argument("--recompute", action="store_true")
    made.add_argument("--shard-optimizer", action="store_true")
    made.add_argument("--search", action="store_true", help="auto_parallel with sharding_propagation")
    made.add_argument("--cell", action="store_true")
    made.add_argument("--flat", action="store_true", help="the second layer has streams [T, N, D]")
    made.add_argument("--bfloat16", action="store_true", help="streams in bfloat16, which the kernels take")
    made.add_argument("--graphs", help="folder for the compiled graphs")
    made.add_argument(
        "--parameters", help="folder for the trained parameters and the last gradients, as a rank has them"
    )
    return made


def train(number: int, options: argparse.Namespace) -> None:
    """One case, from new weights."""
    if options.graphs:
        ms.set_context(save_graphs=2, save_graphs_path=options.graphs)
    assert get_group_size() == options.batch * options.sequence * options.same * options.stages
    ms.reset_auto_parallel_context()
    ms.set_auto_parallel_context(
        parallel_mode="auto_parallel" if options.search else "semi_auto_parallel",
        search_mode="sharding_propagation",
        full_batch=True,
        pipeline_stages=options.stages,
        enable_parallel_optimizer=options.shard_optimizer,
        parallel_optimizer_config={"parallel_optimizer_threshold": 0},
    )
    split = Split(options.batch, options.sequence, options.same)
    micro_batches = MICRO_BATCHES if options.stages > 1 else 1
    dtype = ms.bfloat16 if options.bfloat16 else ms.float32
    network = (
        Scaled(split) if options.cell else Network(split, None, TOKENS // micro_batches, "auto", dtype, options.flat)
    )
    initialise(network)
    if options.recompute:
        network.first.recompute()
        network.second.recompute()
    optimizer = optimizer_of(network)
    if options.stages > 1:
        network.embedding.pipeline_stage = network.first.pipeline_stage = 0
        network.second.pipeline_stage = network.head.pipeline_stage = options.stages - 1
        step = _TrainGradAccuStepCell(nn.PipelineCell(network, micro_batches), optimizer)
    else:
        step = nn.TrainOneStepCell(network, optimizer)
    step.set_train()
    h, target = map(Tensor, batch())
    assert h.shape[0] == BATCH
    losses = []
    for _ in range(1 if options.graphs else STEPS):
        loss = step(h, target)
        losses.append(float(loss.asnumpy()) if isinstance(loss, Tensor) else None)  # nothing where it only compiles
    report(number, get_rank(), losses, optimizer, options.parameters)


def main(arguments: List[str]) -> None:
    ms.set_context(mode=ms.GRAPH_MODE, device_target="Ascend", jit_config={"jit_level": "O0"})
    init()
    for number, case in enumerate(cases(arguments)):
        train(number, parser().parse_args(case))


if __name__ == "__main__":
    main(sys.argv[1:])
