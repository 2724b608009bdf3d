"""Trains a small mHC network for a few steps and prints the losses; alone, or as one of several processes.

    --batch 2                every process takes its share of the batch (data parallel)
    --sequence 2             every process takes its share of the sequence (sequence or context parallel)
    --batch 2 --sequence 2   both
    --batch 2 + --sequence 2 first the one, then the other

The parameters are replicated. The loss of a process is its tokens' part of the whole batch's mean, so the gradients are
summed over all processes. Only the branch looks at other tokens: it gathers the keys of the whole sequence, which are D
wide. The N streams of a token never leave its process.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any, Callable, List

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.communication import create_group, get_group_size, get_rank, init

from tests.launch import cases
from tests.parallel_network import BATCH, SEQUENCE, STEPS, Network, Split, batch, initialise, optimizer_of, report


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
        rows, _, size = part.shape
        return self.sum(part.expand_dims(1) * self.place).reshape(rows, -1, size)


def one_step(network: nn.Cell, optimizer: nn.Optimizer, way: str, several: bool) -> Callable[..., Any]:
    """A step of training, in one of the ways that MindSpore has for it."""
    if way == "graph":
        return nn.TrainOneStepCell(network, optimizer)  # sums the gradients itself
    parameters = network.trainable_params()
    total = nn.DistributedGradReducer(parameters, mean=False) if several else tuple
    if way == "backward":
        return backward_step(network, optimizer, total)
    gradients = ms.value_and_grad(network, None, parameters)

    def step(h: Tensor, target: Tensor) -> Tensor:
        loss, grads = gradients(h, target)
        optimizer(total(grads))
        return loss

    return ms.jit(step) if way == "jit" else step


def backward_step(network: nn.Cell, optimizer: nn.Optimizer, total: Callable[..., Any]) -> Callable[..., Any]:
    """By ``loss.backward()``. MindSpore 2.10 has the engine; libraries over it add these lines."""
    from mindspore._c_expression import TensorPy, run_backward
    from mindspore.graph.api import _pynative_executor

    TensorPy.requires_grad = property(lambda s: s._requires_grad, lambda s, v: setattr(s, "_requires_grad", v))
    TensorPy.grad = property(lambda s: s._grad, lambda s, v: setattr(s, "_grad", v))

    def step(h: Tensor, target: Tensor) -> Tensor:
        _pynative_executor.set_grad_flag(True)
        for parameter in optimizer.parameters:
            parameter.requires_grad, parameter.grad = True, None
        loss = network(h, target)
        run_backward((loss,), (ops.ones_like(loss),), False, False, (), allow_unreachable=True, accumulate_grad=True)
        _pynative_executor.set_grad_flag(False)
        optimizer(total(tuple(parameter.grad for parameter in optimizer.parameters)))
        return loss

    return step


def train(number: int, options: argparse.Namespace) -> None:
    """One case, from new weights."""
    ms.set_context(mode=ms.GRAPH_MODE if options.way == "graph" else ms.PYNATIVE_MODE)
    rank, gather = 0, None
    processes = 1 if options.alone else options.batch * options.sequence
    if processes > 1:
        rank = get_rank()
        assert get_group_size() == processes
    row, column = divmod(rank, options.sequence)
    if options.sequence > 1:
        group = f"row {row} of parts in {options.sequence}"
        create_group(group, list(range(row * options.sequence, (row + 1) * options.sequence)))
        gather = Gather(group, options.sequence, column)
    rows, columns = BATCH // options.batch, SEQUENCE // options.sequence
    mine = (slice(row * rows, (row + 1) * rows), slice(column * columns, (column + 1) * columns))
    h, target = (Tensor(values[mine]) for values in batch())

    network = Network(Split(), gather, backend=options.backend, dtype=ms.bfloat16 if options.bfloat16 else ms.float32)
    initialise(network)
    optimizer = optimizer_of(network)
    step = one_step(network, optimizer, options.way, processes > 1)
    losses = [float(step(h, target).asnumpy()) for _ in range(STEPS)]
    report(number, rank, losses, optimizer, options.parameters)


def main(arguments: List[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=1, help="processes along the batch")
    parser.add_argument("--sequence", type=int, default=1, help="processes along the sequence")
    parser.add_argument(
        "--alone", action="store_true", help="only the first process of a split batch, without the others"
    )
    parser.add_argument("--way", choices=("graph", "jit", "value_and_grad", "backward"), default="graph")
    parser.add_argument("--device", default="CPU")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--bfloat16", action="store_true", help="streams in bfloat16")
    parser.add_argument("--parameters", help="folder for the trained parameters and the last gradients")
    wanted = [parser.parse_args(case) for case in cases(arguments)]
    ms.set_context(device_target=wanted[0].device)
    if wanted[0].device == "Ascend":
        ms.set_context(jit_config={"jit_level": "O0"})
    if not wanted[0].alone and wanted[0].batch * wanted[0].sequence > 1:
        ms.set_context(mode=ms.GRAPH_MODE)
        init()
        ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=False)
    for number, options in enumerate(wanted):
        train(number, options)


if __name__ == "__main__":
    main(sys.argv[1:])
