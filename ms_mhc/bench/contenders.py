"""The ways to compute that are compared: our backends, and what files given with ``--against`` add to them.

Such a file defines ``CONTENDERS``, a sequence of :class:`Contender`; see docs/benchmarks.md.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Callable, List, Optional, Sequence, Tuple

import mindspore as ms
import numpy as np

from ms_mhc.backends import registry
from ms_mhc.backends.registry import Job
from ms_mhc.bench.task import NUM_ITERS, Array, Inputs, Task

OURS = "ours"


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
    """One way to compute.

    Attributes:
        name: its column.
        make: prepares a step and may raise: then the row says why this contender is missing.
        package: the distribution that it needs, if any; its version stands in the result.
        warm: whether one run comes before memory is measured: of a step that compiles at its first run, and gives
            back the memory that it took.
    """

    name: str
    make: Callable[[Task, Inputs], Step]
    package: Optional[str] = None
    warm: bool = False

    @property
    def missing(self) -> Optional[str]:
        """Why it is not here at all, or ``None``."""
        return f"{self.package} is not installed" if self.package and version(self.package) is None else None


def version(package: str) -> Optional[str]:
    """Of an installed distribution; ``None`` where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def chosen_backend(task: Task) -> str:
    """What ``backend="auto"`` takes here for a task."""
    n, d, dtype = task.shape.streams, task.shape.hidden, getattr(ms, task.dtype)
    if task.operator == "mhc_sinkhorn":
        return registry.choose("bench", Job(task.operator, n, num_iters=NUM_ITERS, recipe="deepseek_v4"), "auto").name
    operator = "mhc_pre" if task.operator == "hyper_connection" else task.operator
    return registry.choose("bench", Job(operator, n, d, dtype), "auto").name


def contenders(against: Sequence[Path] = ()) -> Tuple[Contender, ...]:
    """All of them, ours first: the others' times are divided by its.

    Raises:
        ValueError: a file without contenders, or a name that occurs twice.
    """
    from ms_mhc.bench import mindspore_steps

    found = [
        Contender(OURS, lambda task, inputs: mindspore_steps.make(task, inputs, "auto")),
        Contender("composite", lambda task, inputs: mindspore_steps.make(task, inputs, "composite")),
    ]
    for path in against:
        for file in sorted(path.glob("*.py")) if path.is_dir() else [path]:
            found += _of_file(file)
        if path.is_dir() and not any(path.glob("*.py")):
            raise ValueError(f"the folder {str(path)!r} has no .py file in it")
    names = [contender.name for contender in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"there is more than one contender called {', '.join(twice)}")
    return tuple(found)


def _of_file(path: Path) -> List[Contender]:
    spec = importlib.util.spec_from_file_location(f"ms_mhc_contenders_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{str(path)!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # MindSpore looks a cell's module up by name when it compiles the cell
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"{str(path)!r} cannot be loaded: {type(error).__name__}: {error}") from error
    found = list(getattr(module, "CONTENDERS", ()))
    if not found or not all(isinstance(contender, Contender) for contender in found):
        raise ValueError(f"{str(path)!r} defines no CONTENDERS, a sequence of ms_mhc.bench.contenders.Contender")
    return found


def not_finite(results: Sequence[Array]) -> Optional[str]:
    """Which result holds NaN or infinity, in words, or ``None``."""
    for index, result in enumerate(results):
        wrong = int(np.count_nonzero(~np.isfinite(result)))
        if wrong:
            return f"result {index} holds {wrong} values that are NaN or infinite"
    return None


def disagreement(step: Step, other: Step) -> float:
    """The largest difference of two steps' results, as a fraction of the largest entry of each result.

    Raises:
        RuntimeError: results of another number or shape, or with NaN or infinity in them.
    """
    want, got = step.arrays(step.run()), other.arrays(other.run())
    if len(got) != len(want):
        raise RuntimeError(f"{len(got)} results instead of {len(want)}")
    for results in (want, got):
        reason = not_finite(results)
        if reason:
            raise RuntimeError(reason)
    worst = 0.0
    for one, target in zip(got, want):
        if one.shape != target.shape:
            raise RuntimeError(f"results of shape {one.shape} instead of {target.shape}")
        worst = max(worst, float(np.abs(one - target).max() / max(float(np.abs(target).max()), 1e-30)))
    return worst
