"""What this machine is, and which backend each operator takes here."""

from __future__ import annotations

import platform as python_platform
import sys
from importlib import metadata
from typing import Iterator, List

import mindspore as ms

from aclnn_adapter import platform
from ms_mhc.backends import registry
from ms_mhc.backends.registry import Job
from ms_mhc.version import __version__

OPERATORS = ("mhc_pre", "mhc_sinkhorn", "mhc_post")


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _jobs(num_streams: int, hidden_size: int, dtype: str) -> Iterator[Job]:
    for operator in OPERATORS:
        if operator == "mhc_sinkhorn":
            yield Job(operator, num_streams, num_iters=20, recipe="deepseek_v4")
        else:
            yield Job(operator, num_streams, hidden_size, getattr(ms, dtype))


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
        "",
        f"For num_streams={num_streams}, hidden_size={hidden_size}, {dtype}, backend='auto' takes:",
    ]
    for job in _jobs(num_streams, hidden_size, dtype):
        refusals = [(b.name, b.refusal(job)) for b in registry.backends()]
        taken = next(name for name, refusal in refusals if refusal is None)
        report.append(f"  {job.operator:13s} {taken}{_eagerly(taken)}")
        for name, refusal in refusals:
            if refusal is not None:
                report.append(f"  {'':13s}   not {name}: {refusal.reason}")
    return report


def _eagerly(taken: str) -> str:
    return " in compiled graphs, MindSpore ops when called eagerly" if taken == "aclnn" else ""


def _cann() -> str:
    home = platform.cann_home()
    if home is None:
        return "none (neither ASCEND_OPP_PATH nor ASCEND_HOME_PATH is set)"
    return f"{platform.cann_version() or 'unknown version'} at {home}"
