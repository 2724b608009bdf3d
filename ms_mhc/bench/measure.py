"""Time, interleaved, and memory, each in a process of its own."""

from __future__ import annotations

import gc
import random
import statistics
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple


@dataclass(frozen=True)
class Spread:
    """Lower quartile, median and upper quartile."""

    low: float
    median: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        if len(values) < 2:
            return Spread(values[0], values[0], values[0])
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        return Spread(low, middle, high)


def interleaved(
    steps: Mapping[str, Callable[[], Any]], rounds: int, warm_up: int = 2, calls: int = 1
) -> Dict[str, List[float]]:
    """Seconds of every step in every round.

    A round takes each step once, so a disturbance meets all of them, in an order that changes from round to round, so
    that no step always finds the caches that the same other one left. Results are dropped outside the time taken, but
    for those of ``calls`` in a row, whose mean time counts: the caches are then the step's own, as in a loop.
    """
    for _ in range(warm_up):
        for step in steps.values():
            step()
    names: Tuple[str, ...] = tuple(steps)
    times: Dict[str, List[float]] = {name: [] for name in names}
    gc.collect()
    gc.disable()
    try:
        for turn in range(rounds):
            for name in random.Random(turn).sample(names, len(names)):
                start = time.perf_counter()
                for _ in range(calls):
                    result = steps[name]()
                times[name].append((time.perf_counter() - start) / calls)
                del result
    finally:
        gc.enable()
    return times


def ratios(times: Mapping[str, Sequence[float]], name: str, base: str) -> Spread:
    """Of one step's time to another's, round by round."""
    return Spread.of([a / b for a, b in zip(times[name], times[base])])
