"""Thousands of training steps, watched from outside: does the process grow?

    python -m tests.endurance --backend cpu --mode graph
    python -m aclnn_adapter.host -m tests.endurance --backend aclnn --mode pynative

Every step has the next of a few numbers of tokens. Counted are anonymous pages of the process (``Anonymous`` in
/proc/self/smaps_rollup: the heap and what stands beside it, without the pages of files that happen to be cached), open
files, and Python's objects after a garbage collection. From step ``--settled`` on none of them may
grow, pages by less than ``--percent``. The exit status is 1 where something grew.

MindSpore 2.10 keeps one or two kilobytes for every matrix product and every sum that is called eagerly. Therefore pages
do not count with ``--mode pynative``: what this package could keep shows in the other two, and in graph mode.
``--backend none`` trains a network of the same shape without this package, and shows what MindSpore does.
"""

from __future__ import annotations

import argparse
import gc
import re
import sys
from pathlib import Path
from typing import Any, Callable, List, NamedTuple, Optional, Sequence

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from ms_mhc import HyperConnection

STREAMS, SIZE = 4, 128
TOKENS = (24, 3, 40, 1, 17)  # of one step after the other, from the first again
PLAIN = "none"
FEW = 20  # objects that come and go
MODES = {"graph": ms.GRAPH_MODE, "pynative": ms.PYNATIVE_MODE}


class Sample(NamedTuple):
    """A process after a step: anonymous pages in bytes, open files, objects of Python."""

    step: int
    memory: int
    files: int
    objects: int

    @staticmethod
    def after(step: int) -> Sample:
        """This process now."""
        gc.collect()
        kilobytes = re.search(r"^Anonymous:\s+(\d+) kB$", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE)
        assert kilobytes is not None
        files = len(list(Path("/proc/self/fd").iterdir()))
        return Sample(step, 1024 * int(kilobytes[1]), files, len(gc.get_objects()))


class Plain(nn.Cell):
    """Streams around a branch without mHC."""

    def __init__(self, branch: nn.Cell) -> None:
        super().__init__()
        self.branch = branch

    def construct(self, x: Tensor) -> Tensor:
        return x + self.branch(x.sum(-2) * 0.25).expand_dims(-2)


class Network(nn.Cell):
    """One connection; the result is a loss."""

    def __init__(self, backend: str, dtype: Any) -> None:
        super().__init__()
        branch = nn.Dense(SIZE, SIZE).to_float(dtype)
        plain = backend == PLAIN
        self.layer = Plain(branch) if plain else HyperConnection(STREAMS, SIZE, branch, num_iters=3, backend=backend)

    def construct(self, x: Tensor, target: Tensor) -> Tensor:
        return ((self.layer(x).astype(ms.float32) - target) ** 2).mean()


def training(backend: str, mode: str, dtype: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """A training step: it takes x and the target, and gives the loss."""
    network = Network(backend, dtype)
    update = nn.Adam(network.trainable_params(), 1e-4)
    gradients = ms.value_and_grad(network, None, update.parameters)

    class Step(nn.Cell):
        def construct(self, x: Tensor, target: Tensor) -> Tensor:
            loss, grads = gradients(x, target)
            return ops.depend(loss, update(grads))

    def eagerly(x: Tensor, target: Tensor) -> Tensor:
        loss, grads = gradients(x, target)
        update(grads)
        return loss

    return Step() if mode == "graph" else eagerly


def train(step: Callable[[Tensor, Tensor], Tensor], steps: int, every: int, dtype: Any) -> List[Sample]:
    """A sample after every ``every`` steps."""
    rng = np.random.default_rng(0)
    samples = []
    for number in range(1, steps + 1):
        shape = (TOKENS[number % len(TOKENS)], STREAMS, SIZE)
        x, target = (Tensor(rng.standard_normal(shape, np.float32)) for _ in range(2))
        loss = float(step(x.astype(dtype), target))
        assert np.isfinite(loss), f"step {number}: loss {loss}"
        if number % every == 0:
            samples.append(Sample.after(number))
    return samples


def growth(samples: Sequence[Sample], settled: int, percent: Optional[float]) -> Optional[str]:
    """What grew after step ``settled``, or ``None``. ``percent`` is what memory may grow by; ``None``: anything."""
    first, *rest = [sample for sample in samples if sample.step >= settled]
    memory = 100 * (max(sample.memory for sample in rest) / first.memory - 1)
    files = max(sample.files for sample in rest) - first.files
    objects = rest[-1].objects - first.objects - len(rest)  # the samples themselves
    found = []
    if percent is not None and memory > percent:
        found.append(f"memory grew by {memory:.2f} percent")
    if files > 0:
        found.append(f"{files} more files are open")
    if objects > FEW:
        found.append(f"Python keeps {objects} more objects")
    return "; ".join(found) or None


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Print the samples and what grew."""
    parser = argparse.ArgumentParser(prog="python -m tests.endurance", description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", default="cpu", help="cpu, composite, aclnn (on Ascend or the host CANN), or none")
    parser.add_argument("--mode", default="graph", choices=MODES)
    parser.add_argument("--device", default="CPU")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--settled", type=int, default=200)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--percent", type=float, default=1.0)
    given = parser.parse_args(arguments)
    ms.set_context(device_target=given.device, mode=MODES[given.mode], jit_config={"jit_level": "O0"})
    dtype = ms.float16 if given.device == "Ascend" else ms.float32  # what the kernels take
    samples = train(training(given.backend, given.mode, dtype), given.steps, given.every, dtype)
    for sample in samples:
        megabytes = sample.memory / 2**20
        print(f"step {sample.step:5}: {megabytes:8.1f} MiB, {sample.files} files, {sample.objects} objects")
    grew = growth(samples, given.settled, given.percent if given.mode == "graph" else None)
    print(f"{given.backend}, {given.mode}: {grew or 'nothing grew'}")
    return int(grew is not None)


if __name__ == "__main__":
    sys.exit(main())
