"""The numbers of the README that are not in the benchmark's tables: ``python benchmarks/readme_numbers.py``.

Each is measured in a process of its own, because MindSpore keeps the memory that it once took.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, List

MODES = {"graph": 0, "pynative": 1}


def connections(layers: int, hidden: int, recompute: bool) -> Any:
    """A network of connections around dense layers, with a loss."""
    from mindspore import Tensor, nn

    from ms_mhc import HyperConnection

    class Network(nn.Cell):
        """The streams through all connections, then a mean."""

        def __init__(self) -> None:
            super().__init__()
            blocks = [HyperConnection(4, hidden, nn.Dense(hidden, hidden)) for _ in range(layers)]
            for block in blocks if recompute else ():
                block.recompute()
            self.blocks = nn.SequentialCell(blocks)

        def construct(self, x: Tensor) -> Tensor:
            x = self.blocks(x)
            return (x * x).mean()

    return Network()


def gradient_of(network: Any, tokens: int, hidden: int) -> Any:
    """A function that computes all gradients once, and returns the loss as a number."""
    import numpy as np
    from mindspore import Tensor, ops

    step = ops.value_and_grad(network, None, list(network.trainable_params()))
    x = Tensor(np.random.default_rng(0).standard_normal((tokens, 4, hidden), dtype=np.float32))
    return lambda: float(step(x)[0])


def peak(mode: str, recompute: bool) -> float:
    """MiB of resident memory at its highest, of a whole process."""
    import resource

    gradient_of(connections(8, 1024, recompute), 4096, 1024)()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def compilation(layers: int) -> float:
    """Seconds of the first step of a network of so many layers, of two connections each. The second is taken off."""
    step = gradient_of(connections(2 * layers, 64, False), 16, 64)
    times = []
    for _ in range(2):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return times[0] - times[1]


def _child(words: List[str]) -> None:
    import mindspore as ms

    what, mode, value = words
    ms.set_context(mode=MODES[mode])
    print(compilation(int(value)) if what == "compile" else peak(mode, value == "recompute"))


def measured(*words: str) -> float:
    """A number that a child process prints."""
    command = [sys.executable, str(Path(__file__).resolve()), "--child", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return float(done.stdout.split()[-1])


def main() -> None:
    """Print the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", choices=["recompute", "compile", []], help="default: both")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        _child(options.child)
        return
    if "recompute" in (options.what or ["recompute"]):
        print(
            "Eight connections around dense layers, x of 64 MiB (4096, 4, 1024), on the CPU; peak of the whole process:"
        )
        for mode in MODES:
            without, with_it = (measured("peak", mode, value) for value in ("plain", "recompute"))
            print(f"  {mode:9s} {without:5.0f} MiB, with recompute() {with_it:5.0f} MiB", flush=True)
    if "compile" in (options.what or ["compile"]):
        cores = len(os.sched_getaffinity(0))
        seconds = measured("compile", "graph", "24")
        print(f"24 layers with two connections each, compiled with their gradients on {cores} cores: {seconds:.0f} s")


if __name__ == "__main__":
    main()
