"""All checks, one after the other, whatever each of them does."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, List, Optional, Sequence

import mindspore as ms

from aclnn_adapter import extension
from ms_mhc import info
from ms_mhc.selftest import machine, networks
from ms_mhc.selftest.covering import Case, covering
from ms_mhc.selftest.machine import WAYS, Machine
from ms_mhc.selftest.programs import PROGRAMS, Program
from ms_mhc.selftest.report import Report, without_names


def cases(program: Program, here: Machine) -> List[Case]:
    """Every pair of the operator's options, the ways to call and the backends among them; ordered by the way."""

    def allowed(case: Case) -> bool:
        return here.fits(case) and program.allowed(case) and machine.taken(program.operator, case) is not None

    found = covering({"way": here.ways, "backend": here.backends, **program.factors(here)}, allowed)
    return sorted(found, key=lambda case: here.ways.index(case["way"]))


def left_out(program: Program, here: Machine) -> List[str]:
    """The sizes that no case can have here."""
    factors = program.factors(here)
    smallest: Case = {name: min(factors[name]) for name in ("num_streams", "tokens", "hidden_size") if name in factors}
    return [
        f"{name}={value}" for name in smallest for value in factors[name] if not here.fits({**smallest, name: value})
    ]


def _say_how_kernels_are_called(report: Report) -> None:
    refused = extension.refusal()  # compiles it where it is not there yet
    report.measured["eager_calls"] = without_names(refused) if refused else "extension"
    report.say(f"kernels are called eagerly through {f'small graphs: {refused}' if refused else 'the extension'}")


def _check_operators(report: Report, here: Machine) -> None:
    for program in PROGRAMS:
        found = cases(program, here)
        report.say(f"{program.operator} against the float64 reference, {len(found)} cases:")
        missing = left_out(program, here)
        if missing:
            report.say(f"  left out, too little memory: {', '.join(missing)}")
            report.measured.setdefault("left_out", {})[program.operator] = missing
        for case in found:
            machine.enter(case["way"])
            backend = machine.taken(program.operator, case)
            report.check(program.operator, {**case, "takes": backend}, lambda: program.compare(case))  # noqa: B023


def _check_networks(report: Report, here: Machine, backend: str) -> None:
    dtype, steps = here.sixteen_bits, 20 if here.quick else networks.STEPS
    for way in here.ways:
        machine.enter(way)
        where = {"way": way, "dtype": dtype, "backend": backend}
        report.check(
            "recompute",
            where,
            lambda: {"difference": networks.recompute_difference(way, dtype, backend) / 1e-6},  # noqa: B023
        )

        def training() -> Any:
            losses, plain = (networks.training_losses(way, dtype, b, steps) for b in (backend, "composite"))  # noqa: B023
            return networks.compare_training(losses, plain, dtype)

        report.check("training", {**where, "steps": steps}, training)


def _measure(report: Report, here: Machine, backend: str) -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    machine.enter("graph")
    nodes = report.measure("kernels_per_step", lambda: networks.kernels_per_step(here.sixteen_bits, backend))
    if nodes is not None:
        listed = ", ".join(f"{count} {name}" for name, count in nodes.items()) or "none"
        report.say(f"kernels in the compiled training step of one MhcPre: {listed}")
    sizes = (256, 4, 128) if here.quick else (1024, 4, 512)
    time = report.measure("time", lambda: networks.times(here.sixteen_bits, sizes, backend))
    if time is not None:
        report.say(
            f"MhcPre forward and backward, T={sizes[0]} N={sizes[1]} D={sizes[2]} {time['dtype']}: "
            f"{time['milliseconds']:.2f} ms; MindSpore ops take {time['composite_over_ours']:.2f} times as long "
            f"({time['quartiles'][0]:.2f} to {time['quartiles'][1]:.2f} in the middle half of {time['pairs']} pairs)"
        )


def run(
    say: Callable[[str], Any],
    ways: Sequence[str] = WAYS,
    backend: str = "auto",
    quick: bool = False,
    file: Optional[Path] = None,
) -> int:
    """All checks on MindSpore's current device. Returns the number of those that failed.

    The context is put back afterwards. ``file`` holds at any time what was found so far.
    """
    here = machine.describe(ways, backend, quick)
    report = Report(say, {"ways": list(ways), "backend": backend, "quick": quick}, file)
    with machine.restored_context():
        example: Case = {"num_streams": 4, "hidden_size": 64, "dtype": here.sixteen_bits, "backend": backend}
        report.say(f"device {here.target}, backend {machine.taken('mhc_pre', example)}")
        if here.target == "Ascend" and "eager" in ways:
            _say_how_kernels_are_called(report)
        _check_operators(report, here)
        report.say("whole networks:")
        _check_networks(report, here, backend)
        if "graph" in ways:
            _measure(report, here, backend)
    report.end()
    return report.failures


def main(device: Optional[str], ways: Sequence[str], backend: str, quick: bool, file: Optional[Path] = None) -> int:
    """Print the report; 0 when all checks passed."""

    def say(line: str) -> None:
        print(line, flush=True)

    with machine.restored_context():
        try:
            info.use(device)
        except info.DeviceError as error:
            Report(say, {"device": device}, file).refuse("device", error)
            return 1
        failures = run(say, ways, backend, quick, file)
    return 1 if failures else 0
