"""What this machine is, and which backend each operator takes here."""

from __future__ import annotations

import dataclasses
import platform as python_platform
import sys
from importlib import metadata
from typing import Any, Dict, Iterator, List, Optional

import mindspore as ms

from aclnn_adapter import extension, platform
from ms_mhc.backends import registry
from ms_mhc.backends.registry import Backend, Job
from ms_mhc.operation import BACKWARD, FORWARD, OPERATIONS
from ms_mhc.version import __version__

OPERATORS = tuple(OPERATIONS)


class DeviceError(RuntimeError):
    """A device that MindSpore cannot use here."""


def use(device: Optional[str]) -> None:
    """Make it MindSpore's device.

    Raises:
        DeviceError: it cannot be; with the reasons that MindSpore gives.
    """
    if device is None:
        return
    try:
        ms.set_context(device_target=device)
    except (RuntimeError, ValueError) as error:
        said = [line.strip() for line in str(error).splitlines()]
        why = " ".join(
            [said[0].split(". ")[0] + ".", *(line for line in said if line.startswith("Load dynamic library"))]
        )
        raise DeviceError(f"MindSpore cannot use --device {device} here: {why}") from error


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _jobs(num_streams: int, hidden_size: int, dtype: str) -> Iterator[Job]:
    """One for each operator, as :class:`ms_mhc.HyperConnection` asks for it."""
    for name in OPERATORS:
        contract = OPERATIONS[name].contracts[FORWARD]
        known: Dict[str, Any] = {"num_iters": 20, "recipe": "deepseek_v4"}
        given = {key: value for key, value in known.items() if key in {a.snake_name for a in contract.attrs}}
        if any(a.dtype == "x" for a in contract.inputs):
            given.update(hidden_size=hidden_size, dtype=getattr(ms, dtype))
        # with gamma MhcPreSinkhorn has no kernel
        yield Job(name, num_streams, absent=("gamma",), **given)


def lines(num_streams: int, hidden_size: int, dtype: str) -> List[str]:
    """The report, for jobs of these sizes."""
    target = platform.device_target()
    report = [
        f"ms-mhc      {__version__}",
        f"MindSpore   {ms.__version__}",
        f"NumPy       {_version('numpy')}, ml_dtypes {_version('ml_dtypes')}",
        f"Python      {sys.version.split()[0]} on {python_platform.platform()}",
        f"device      {target}",
        f"soc         {platform.soc_version() if target == 'Ascend' else 'none'}",
        f"CANN        {_cann()}",
        *([f"eager calls {extension.about()}"] if target == "Ascend" else []),
        "",
        f"For num_streams={num_streams}, hidden_size={hidden_size}, {dtype}, backend='auto' takes:",
    ]
    for job in _jobs(num_streams, hidden_size, dtype):
        report += _of_operator(job)
    report += [
        "",
        'precision="hf32" changes the kernels of aclnn only; cpu and composite compute in float32 all the same.',
    ]
    return report


def _of_operator(job: Job) -> List[str]:
    """What auto takes for a job, why not the others, and what HF32 would change."""
    taken = _taken(job)
    report = [f"  {job.operator:13s} {taken}"]
    for backend in registry.backends():
        forward, backward = (backend.refusal(job, direction) for direction in (FORWARD, BACKWARD))
        if forward == backward and forward is not None:
            report.append(f"  {'':13s}   not {backend.name}: {forward.reason}")
        else:
            for direction, refusal in ((FORWARD, forward), (BACKWARD, backward)):
                if refusal is not None:
                    report.append(f"  {'':13s}   {direction} not {backend.name}: {refusal.reason}")
    rounded = _taken(dataclasses.replace(job, precision="hf32"))
    if rounded != taken:
        report.append(f'  {"":13s}   with precision="hf32": {rounded}')
    return report


def _taken(job: Job) -> str:
    choice = registry.choose("info", job, registry.AUTO)
    if job.operator == "mhc_pre_sinkhorn" and choice.name == "composite":
        return "in two parts, mhc_pre and mhc_sinkhorn"
    names = [_with_kernel(backend, job, d) for backend, d in ((choice.forward, FORWARD), (choice.backward, BACKWARD))]
    text = names[0] if names[0] == names[1] else f"forward {names[0]}, backward {names[1]}"
    eager = " in compiled graphs, MindSpore ops when called eagerly"
    return text + (eager if "aclnn" in (choice.forward.name, choice.backward.name) else "")


def _with_kernel(backend: Backend, job: Job, direction: str) -> str:
    """A backend's name; where HF32 was asked for, with the kernel that it takes."""
    if backend.name != "aclnn" or job.precision == "float32":
        return backend.name
    return f"aclnn ({backend.contract(job, direction).name})"


def _cann() -> str:
    home = platform.cann_home()
    if home is None:
        return "none (neither ASCEND_OPP_PATH nor ASCEND_HOME_PATH is set)"
    return f"{platform.cann_version() or 'unknown version'} at {home}"
