"""The ways to compute that are compared. A further one is an entry of :func:`contenders` with its ``make``."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Callable, List, Optional, Tuple

import mindspore as ms
import numpy as np

from ms_mhc.backends import registry
from ms_mhc.backends.registry import Job
from ms_mhc.bench.task import NUM_ITERS, Array, Inputs, Task


@dataclass(frozen=True)
class Step:
    """One thing to time. ``run`` returns when the results are there.

    Results are the outputs of a forward pass, or of both passes the gradients: of the tensors, then of the parameters.
    """

    run: Callable[[], Any]
    arrays: Callable[[Any], List[Array]]
    saved_bytes: Optional[float] = None  # for backward, where it can be counted


@dataclass(frozen=True)
class Contender:
    """One way to compute. ``make`` prepares a step and may raise: then this row has no such contender."""

    name: str
    make: Callable[[Task, Inputs], Step]
    missing: Optional[str] = None  # why it is not here at all


def chosen_backend(task: Task) -> str:
    """What ``backend="auto"`` takes here for a task."""
    n, d, dtype = task.shape.streams, task.shape.hidden, getattr(ms, task.dtype)
    if task.operator == "mhc_sinkhorn":
        return registry.choose("bench", Job(task.operator, n, num_iters=NUM_ITERS, recipe="deepseek_v4"), "auto").name
    operator = "mhc_pre" if task.operator == "hyper_connection" else task.operator
    return registry.choose("bench", Job(operator, n, d, dtype), "auto").name


def contenders() -> Tuple[Contender, ...]:
    """All of them, ours first: the others' times are divided by its."""
    from ms_mhc.bench import kernel_steps, mindspore_steps, torch_steps

    refusal = next(b for b in registry.backends() if b.name == "cpu").refusal(Job("mhc_pre", 1))
    no_torch = None if find_spec("torch") else "PyTorch is not installed"
    return (
        Contender("ours", lambda task, inputs: mindspore_steps.make(task, inputs, "auto")),
        Contender("kernel", kernel_steps.make, refusal.reason if refusal else None),
        Contender("composite", lambda task, inputs: mindspore_steps.make(task, inputs, "composite")),
        Contender("autodiff", lambda task, inputs: mindspore_steps.make(task, inputs, "autodiff")),
        Contender("torch_eager", lambda task, inputs: torch_steps.make(task, inputs, False), no_torch),
        Contender("torch_compile", lambda task, inputs: torch_steps.make(task, inputs, True), no_torch),
    )


def disagreement(step: Step, other: Step) -> float:
    """The largest difference of two steps' results, as a fraction of the largest entry of each result."""
    worst = 0.0
    for got, want in zip(other.arrays(other.run()), step.arrays(step.run())):
        if got.shape != want.shape:
            raise RuntimeError(f"results of shape {got.shape} instead of {want.shape}")
        worst = max(worst, float(np.abs(got - want).max() / max(float(np.abs(want).max()), 1e-30)))
    return worst
