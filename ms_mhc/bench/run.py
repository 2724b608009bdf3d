"""The rows of the table, one after the other, and our time against T."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from ms_mhc.bench import limits, memory
from ms_mhc.bench.contenders import OURS, Contender, Step, chosen_backend, contenders, disagreement, not_finite
from ms_mhc.bench.measure import Spread, interleaved, ratios
from ms_mhc.bench.task import (
    DTYPES,
    OPERATORS,
    PASSES,
    Shape,
    Task,
    least_bytes,
    least_operations,
    make_inputs,
)
from ms_mhc.selftest.machine import available_bytes

Say = Callable[[str], Any]
Result = Dict[str, Any]

# Results that differ by more, as a fraction of the largest entry, were not computed from the same formulas. A few
# units in the last place: 16-bit gradients of a whole HyperConnection were rounded several times.
ALLOWED = {"float32": 1e-3, "bfloat16": 3e-2}

_COPY, _PRODUCT = "(copy)", "(product)"


@dataclass(frozen=True)
class Plan:
    """What the user asked for."""

    shapes: Tuple[Shape, ...]
    operators: Tuple[str, ...] = OPERATORS
    dtypes: Tuple[str, ...] = DTYPES
    rounds: int = 21
    calls: int = 1  # in a row, in each round
    threads: int = 1
    memory: bool = True
    tokens: Tuple[int, ...] = ()  # for our time against T; none: not measured
    copy_megabytes: int = 64
    product_size: int = 1024
    against: Tuple[Path, ...] = ()  # files and folders of further contenders

    def tasks(self) -> List[Task]:
        """All rows. Sinkhorn is fp32 whatever the streams are, so it has no row in 16 bits."""
        return [
            Task(operator, passes, dtype, shape)
            for shape in self.shapes
            for operator in self.operators
            for passes in PASSES
            for dtype in self.dtypes
            if operator != "mhc_sinkhorn" or dtype == "float32"
        ]


def _reason(error: Exception) -> str:
    # MindSpore's messages have rules and titles between their lines
    lines = [line.strip("- ") for line in str(error).splitlines()]
    said = " ".join([line for line in lines if line][:2])
    return f"{type(error).__name__}: {said or 'no message'}"[:200]


def _prepare(task: Task, field: Sequence[Contender]) -> Tuple[Dict[str, Step], Dict[str, Result]]:
    """The steps of those that can do the task, and of the others why not.

    An entry says ``missing`` where a contender is not here or raises, ``refused`` where it computes something else than
    ours. Without ours there is nothing to compare with.
    """
    inputs = make_inputs(task)
    steps: Dict[str, Step] = {}
    others: Dict[str, Result] = {}
    for contender in field:
        if contender.name != OURS and OURS not in steps:
            others[contender.name] = {"missing": "there is nothing to compare with"}
            continue
        if contender.missing:
            others[contender.name] = {"missing": contender.missing}
            continue
        try:
            step = contender.make(task, inputs)
            wrong = _wrong(steps.get(OURS), step, ALLOWED[task.dtype])
        except Exception as failure:  # whatever another framework raises is the row's entry, not the end of the run
            others[contender.name] = {"missing": _reason(failure)}
            continue
        if wrong:
            others[contender.name] = {"refused": wrong}
        else:
            steps[contender.name] = step
    return steps, others


def _wrong(ours: Optional[Step], step: Step, allowed: float) -> Optional[str]:
    """What is wrong with a step's results, or ``None``."""
    reason = not_finite(step.arrays(step.run()))
    if reason or ours is None:
        return reason
    error = disagreement(ours, step)
    return None if error <= allowed else f"its results differ from ours by {error:.1e} of the largest entry"


def row(task: Task, plan: Plan, field: Sequence[Contender]) -> Result:
    """One task with all contenders."""
    steps, others = _prepare(task, field)
    runs = {name: step.run for name, step in steps.items()}
    runs[_COPY] = limits.copy(plan.copy_megabytes, plan.threads)
    runs[_PRODUCT] = limits.product(plan.product_size)
    times = interleaved(runs, plan.rounds, calls=plan.calls)
    seconds = {name: Spread.of(values) for name, values in times.items()}

    moved, operations = least_bytes(task), least_operations(task)
    copied = 2 * plan.copy_megabytes * 2**20 / seconds[_COPY].median
    multiplied = 2 * plan.product_size**3 / seconds[_PRODUCT].median
    entries: Dict[str, Result] = {}
    for name in (contender.name for contender in field):
        if name in others:
            entries[name] = others[name]
            continue
        step, median = steps[name], seconds[name].median
        entries[name] = {
            "seconds": asdict(seconds[name]),
            "ratio": asdict(ratios(times, name, OURS)),
            "bytes_per_second": moved / median,
            "share_of_copy": moved / median / copied,
            "operations_per_second": operations / median,
            "share_of_product": operations / median / multiplied,
            "saved_bytes_per_token": step.saved_bytes if task.passes == "both" else None,
        }
        if plan.memory:
            extra, reason = memory.peak_extra(task, name, plan.against)
            entries[name]["peak_extra_bytes"] = extra
            if extra is None:
                entries[name]["peak_extra_missing"] = reason
    return {
        "operator": task.operator,
        "passes": task.passes,
        "dtype": task.dtype,
        "shape": [task.shape.tokens, task.shape.streams, task.shape.hidden],
        "backend": chosen_backend(task),
        "copy_bytes_per_second": copied,
        "product_operations_per_second": multiplied,
        "contenders": entries,
    }


def scaling(operator: str, plan: Plan, say: Say) -> Result:
    """Our own forward and backward against T, interleaved like everything else."""
    shape, dtype = plan.shapes[0], plan.dtypes[0]
    if operator == "mhc_sinkhorn":
        dtype = "float32"
    (ours, *_) = contenders()
    steps: Dict[str, Callable[[], Any]] = {}
    left = available_bytes() * 3 // 4
    for tokens in plan.tokens:
        task = Task(operator, "both", dtype, Shape(tokens, shape.streams, shape.hidden))
        left -= least_bytes(task)  # close to what inputs, gradients and what is between them take
        if left < 0:
            say(f"  {task}: left out, too little memory")
            break
        try:
            steps[str(tokens)] = ours.make(task, make_inputs(task)).run
        except Exception as failure:
            say(f"  {task}: left out, {_reason(failure)}")
            break
    times = {
        int(name): Spread.of(v) for name, v in interleaved(steps, max(3, plan.rounds // 3), calls=plan.calls).items()
    }
    result: Result = {
        "operator": operator,
        "dtype": dtype,
        "shape": [None, shape.streams, shape.hidden],
        "tokens": list(times),
        "seconds": [asdict(spread) for spread in times.values()],
    }
    if 4096 in times and 65536 in times:
        result["time_per_token_65536_over_4096"] = times[65536].median / 65536 / (times[4096].median / 4096)
    return result


def run(plan: Plan, result: Result, say: Say, done: Callable[[Result], Any]) -> None:
    """Everything, into ``result``: each row and each curve as soon as it is there. ``done`` is called after each.

    Every row carries the command, the versions and the threads, so that rows of several runs can be put together.
    """
    origin = {
        "command": result["command"],
        "versions": result["machine"]["versions"],
        "threads": plan.threads,
        "calls": plan.calls,
    }
    field = contenders(plan.against)
    tasks = plan.tasks()
    for number, task in enumerate(tasks, 1):
        say(f"{number}/{len(tasks)} {task}")
        result["rows"].append({**row(task, plan, field), **origin})
        done(result["rows"][-1])
    for operator in plan.operators if plan.tokens else ():
        say(f"time against T: {operator}")
        result["scaling"].append({**scaling(operator, plan, say), **origin})
        done(result["scaling"][-1])
