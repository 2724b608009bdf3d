"""Trains a small mHC network for a few steps and prints the losses; alone, or as one of several processes.

    --batch 2                every process takes its share of the batch (data parallel)
    --sequence 2             every process takes its share of the sequence (sequence or context parallel)
    --batch 2 --sequence 2   both

The parameters are replicated. The loss of a process is its tokens' part of the whole batch's mean, so the gradients are
summed over all processes. Only the branch looks at other tokens: it gathers the keys of the whole sequence, which are D
wide. The N streams of a token never leave its process.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Optional

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn, ops
from mindspore.communication import create_group, get_group_size, get_rank, init

from ms_mhc import HyperConnection, expand_streams, merge_streams

BATCH, SEQUENCE, STREAMS, STEPS = 4, 4, 4, 10


class Gather(nn.Cell):
    """Joins the parts of a sequence [B, S/P, D] that P processes hold.

    Each puts its part at its place among zeros, and they add up. ``ops.AllGather`` moves half as much, but its gradient
    is a ReduceScatter, which MindSpore has on Ascend and not on the CPU.
    """

    def __init__(self, group: str, parts: int, mine: int) -> None:
        super().__init__()
        self.sum = ops.AllReduce(group=group)
        self.place = Tensor((np.arange(parts) == mine).astype(np.float32).reshape(1, parts, 1, 1))

    def construct(self, part: Tensor) -> Tensor:
        batch, _, size = part.shape
        return self.sum(part.expand_dims(1) * self.place).reshape(batch, -1, size)


class Attention(nn.Cell):
    """One head; the keys are the values too."""

    def __init__(self, size: int, gather: Optional[Gather]) -> None:
        super().__init__()
        self.query = nn.Dense(size, size)
        self.key = nn.Dense(size, size)
        self.gather = gather

    def construct(self, h: Tensor) -> Tensor:
        keys = self.key(h)
        if self.gather is not None:
            keys = self.gather(keys)
        scores = mint.matmul(self.query(h), keys.swapaxes(1, 2)) / h.shape[-1] ** 0.5
        return mint.matmul(mint.softmax(scores, -1), keys)


class Loss(nn.Cell):
    def __init__(self, size: int, gather: Optional[Gather]) -> None:
        super().__init__()
        self.layers = nn.SequentialCell([HyperConnection(STREAMS, size, Attention(size, gather)) for _ in range(2)])

    def construct(self, h: Tensor, target: Tensor) -> Tensor:
        out = merge_streams(self.layers(expand_streams(h, STREAMS)))
        return ((out - target) ** 2).sum() / (BATCH * SEQUENCE * h.shape[-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=1, help="processes along the batch")
    parser.add_argument("--sequence", type=int, default=1, help="processes along the sequence")
    parser.add_argument("--mode", choices=("graph", "pynative"), default="graph")
    parser.add_argument("--device", default="CPU")
    parser.add_argument("--size", type=int, default=8, help="D")
    parser.add_argument("--parameters", help="folder for the trained parameters")
    options = parser.parse_args()
    ms.set_context(mode=ms.GRAPH_MODE if options.mode == "graph" else ms.PYNATIVE_MODE, device_target=options.device)
    if options.device == "Ascend":
        ms.set_context(jit_config={"jit_level": "O0"})

    rank, processes, gather = 0, options.batch * options.sequence, None
    if processes > 1:
        init()
        rank = get_rank()
        assert get_group_size() == processes
        ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=False)
    row, column = divmod(rank, options.sequence)
    if options.sequence > 1:
        group = f"sequence of row {row}"
        create_group(group, list(range(row * options.sequence, (row + 1) * options.sequence)))
        gather = Gather(group, options.sequence, column)

    network = Loss(options.size, gather)
    rng = np.random.default_rng(0)
    for parameter in network.trainable_params():
        parameter.set_data(Tensor(rng.normal(0, 0.3, parameter.shape).astype(np.float32)))
    step = nn.TrainOneStepCell(network, nn.Momentum(network.trainable_params(), 1e-6, 0.9))
    rows, columns = BATCH // options.batch, SEQUENCE // options.sequence
    mine = (slice(row * rows, (row + 1) * rows), slice(column * columns, (column + 1) * columns))
    losses = []
    for _ in range(STEPS):
        h, target = (rng.normal(size=(BATCH, SEQUENCE, options.size)).astype(np.float32) for _ in range(2))
        losses.append(float(step(Tensor(h[mine]), Tensor(target[mine])).asnumpy()))
    if options.parameters:
        values = {parameter.name: parameter.asnumpy() for parameter in network.trainable_params()}
        np.savez(Path(options.parameters) / f"{rank}.npz", **values)
    print("LOSSES", json.dumps({"rank": rank, "losses": losses}), flush=True)


if __name__ == "__main__":
    main()
