"""A hyper-connection of MindSpore Transformers 2.1.0, theirs and ours: forward and backward, called eagerly on the CPU.

The connection stands around nothing and starts from a given gradient, so that it is what is measured. The two take
turns, so that both see the same machine::

    make zoo
    build/mindformers/venv/bin/python docs/programs/mindformers_speed.py [TOKENS HIDDEN_SIZE [TURNS]]
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from ms_mhc.integrations import mindformers
from tests import mindformers_packages
from tests.mindformers_side_by_side import Alone, Bench, N, theirs_importable


def step(bench: Bench, tokens: int, hidden_size: int) -> Callable[[], Any]:
    """A training step of one connection."""
    network = Alone(bench.build("module", bench.config(hidden_size=hidden_size)).hc)
    rng = np.random.default_rng(0)
    x, given = (Tensor(rng.normal(size=(tokens, 1, N * hidden_size)).astype(np.float32)) for _ in range(2))
    gradient = ops.GradOperation(get_all=True, get_by_list=True, sens_param=True)
    function = gradient(network, network.trainable_params())

    def run() -> None:
        of_x, of_parameters = function(x, given)
        for found in (*of_x, *of_parameters):
            found.asnumpy()

    return run


def main(tokens: int = 1024, hidden_size: int = 512, turns: int = 10) -> None:
    """Prints the times in milliseconds: median, fastest and slowest, and the ratio of the medians."""
    problem = mindformers_packages.problem("2.1.0")
    if problem:
        raise SystemExit(problem)
    theirs_importable(mindformers_packages.package("2.1.0"))
    ms.set_context(mode=ms.PYNATIVE_MODE)
    bench = Bench("CPU")
    steps = {"theirs": step(bench, tokens, hidden_size)}
    mindformers.apply(head=False)
    steps["ours"] = step(bench, tokens, hidden_size)
    times: Dict[str, List[float]] = {whose: [] for whose in steps}
    for turn in range(turns + 2):
        for whose, run in steps.items():
            start = time.perf_counter()
            run()
            if turn >= 2:
                times[whose].append(1e3 * (time.perf_counter() - start))
    print(f"T={tokens}, n={N}, H={hidden_size}, float32, {turns} turns, milliseconds: median (fastest to slowest)")
    for whose, found in times.items():
        print(f"{whose:8s}{statistics.median(found):9.1f} ({min(found):.1f} to {max(found):.1f})")
    print(f"ours is {statistics.median(times['theirs']) / statistics.median(times['ours']):.1f} times as fast")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
