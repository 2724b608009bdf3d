"""The rows of the table, one after the other, and our time against T."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Callable, Dict, List, Sequence, Tuple

from ms_mhc.bench import limits, memory
from ms_mhc.bench.contenders import Contender, Step, chosen_backend, contenders, disagreement
from ms_mhc.bench.environment import available_bytes
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
    threads: int = 1
    memory: bool = True
    tokens: Tuple[int, ...] = ()  # for our time against T; none: not measured
    copy_megabytes: int = 64
    product_size: int = 1024

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


def _prepare(task: Task, field: Sequence[Contender]) -> Tuple[Dict[str, Step], Dict[str, str]]:
    """The steps of those that can do the task, and why the others cannot. Ours must."""
    inputs = make_inputs(task)
    steps: Dict[str, Step] = {}
    missing: Dict[str, str] = {}
    for contender in field:
        if contender.missing:
            missing[contender.name] = contender.missing
            continue
        try:
            step = contender.make(task, inputs)
            error = disagreement(steps["ours"], step) if steps else 0.0
        except Exception as failure:  # whatever another framework raises is the row's entry, not the end of the run
            if contender.name == "ours":
                raise
            missing[contender.name] = _reason(failure)
            continue
        if error <= ALLOWED[task.dtype]:
            steps[contender.name] = step
        else:
            missing[contender.name] = f"its results differ from ours by {error:.1e} of the largest entry"
    return steps, missing


def row(task: Task, plan: Plan) -> Result:
    """One task with all contenders."""
    field = contenders()
    steps, missing = _prepare(task, field)
    runs = {name: step.run for name, step in steps.items()}
    runs[_COPY] = limits.copy(plan.copy_megabytes, plan.threads)
    runs[_PRODUCT] = limits.product(plan.product_size)
    times = interleaved(runs, plan.rounds)
    seconds = {name: Spread.of(values) for name, values in times.items()}

    moved, operations = least_bytes(task), least_operations(task)
    copied = 2 * plan.copy_megabytes * 2**20 / seconds[_COPY].median
    multiplied = 2 * plan.product_size**3 / seconds[_PRODUCT].median
    entries: Dict[str, Result] = {}
    for name in (contender.name for contender in field):
        if name in missing:
            entries[name] = {"missing": missing[name]}
            continue
        step, median = steps[name], seconds[name].median
        entries[name] = {
            "seconds": asdict(seconds[name]),
            "ratio": asdict(ratios(times, name, "ours")),
            "bytes_per_second": moved / median,
            "share_of_copy": moved / median / copied,
            "operations_per_second": operations / median,
            "share_of_product": operations / median / multiplied,
            "saved_bytes_per_token": step.saved_bytes if task.passes == "both" else None,
            "peak_extra_bytes": memory.peak_extra(task, name) if plan.memory else None,
        }
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
    ours = contenders()[0]
    steps: Dict[str, Callable[[], Any]] = {}
    left = available_bytes() * 3 // 4
    for tokens in plan.tokens:
        task = Task(operator, "both", dtype, Shape(tokens, shape.streams, shape.hidden))
        left -= least_bytes(task)  # close to what inputs, gradients and what is between them take
        if left < 0:
            say(f"  {task}: left out, too little memory")
            break
        steps[str(tokens)] = ours.make(task, make_inputs(task)).run
    times = {int(name): Spread.of(v) for name, v in interleaved(steps, max(3, plan.rounds // 3)).items()}
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


def run(plan: Plan, say: Say) -> Result:
    """Everything."""
    rows = []
    tasks = plan.tasks()
    for number, task in enumerate(tasks, 1):
        say(f"{number}/{len(tasks)} {task}")
        rows.append(row(task, plan))
    curves = []
    for operator in plan.operators if plan.tokens else ():
        say(f"time against T: {operator}")
        curves.append(scaling(operator, plan, say))
    return {"rounds": plan.rounds, "memory": plan.memory, "rows": rows, "scaling": curves}
