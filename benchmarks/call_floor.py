"""What MindSpore's call of a compiled graph costs on this machine, whatever the graph computes.

A graph of three additions of eight numbers, called from Python in graph mode and through ``ms.jit``::

    python benchmarks/call_floor.py
"""

from __future__ import annotations

import statistics
import time
from typing import Any, Callable, Tuple

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

CALLS = 1000


class Additions(nn.Cell):
    """Three outputs, as MhcPre has."""

    def construct(self, x: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        return x + 1, x + 2, x + 3


def milliseconds(call: Callable[[], Any]) -> float:
    """The median."""
    for _ in range(CALLS // 10):
        call()
    times = []
    for _ in range(CALLS):
        start = time.perf_counter()
        call()[0].asnumpy()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def main() -> None:
    """Prints both."""
    x = Tensor(np.ones(8, np.float32))
    cell = Additions()
    ms.set_context(mode=ms.GRAPH_MODE)
    print(f"graph mode: {milliseconds(lambda: cell(x)):.2f} ms")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    jitted = ms.jit(cell.construct)
    print(f"ms.jit:     {milliseconds(lambda: jitted(x)):.2f} ms")


if __name__ == "__main__":
    main()
