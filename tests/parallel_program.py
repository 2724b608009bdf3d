"""Trains a small mHC network for a few steps and prints the losses; alone, or as one of several processes.

With ``--parallel`` every process takes its share of the batch and MindSpore averages the gradients.
"""

from __future__ import annotations

import argparse
import json

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from mindspore.communication import get_group_size, get_rank, init

from ms_mhc import HyperConnection, expand_streams, merge_streams

BATCH, SEQUENCE, SIZE, STEPS = 4, 3, 8, 5


class Loss(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.SequentialCell([HyperConnection(4, SIZE, nn.Dense(SIZE, SIZE)) for _ in range(2)])

    def construct(self, h: Tensor, target: Tensor) -> Tensor:
        out = merge_streams(self.layers(expand_streams(h, 4)))
        return ((out - target) ** 2).mean()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parallel", action="store_true")
    parallel = parser.parse_args().parallel
    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    rank, size = 0, 1
    if parallel:
        init("mccl")
        rank, size = get_rank(), get_group_size()
        ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True, device_num=size)
    ms.set_seed(1)
    network = Loss()
    rng = np.random.default_rng(0)
    for parameter in network.trainable_params():
        parameter.set_data(Tensor(rng.normal(0, 0.3, parameter.shape).astype(np.float32)))
    step = nn.TrainOneStepCell(network, nn.SGD(network.trainable_params(), 0.1))
    losses = []
    for _ in range(STEPS):
        h, target = (rng.normal(size=(BATCH, SEQUENCE, SIZE)).astype(np.float32) for _ in range(2))
        mine = slice(rank * BATCH // size, (rank + 1) * BATCH // size)
        losses.append(float(step(Tensor(h[mine]), Tensor(target[mine]))))
    print("LOSSES", json.dumps({"rank": rank, "size": size, "losses": losses}), flush=True)


if __name__ == "__main__":
    main()
