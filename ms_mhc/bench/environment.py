"""The same threads for everyone, and none that spins while another one's turn is measured."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any, Dict, Iterable, Sequence

import mindspore as ms

from ms_mhc.bench.contenders import version


def variables(threads: int) -> Dict[str, str]:
    """What the thread pools of OpenMP (two copies, PyTorch brings its own) and of BLAS read when they are loaded.

    By default a pool's threads spin for a while after each parallel region: on all cores, into the next contender's
    turn.
    """
    return {
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "passive",
        "KMP_BLOCKTIME": "0",
        "MKL_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": str(threads),
        "OPENBLAS_THREAD_TIMEOUT": "4",  # the exponent of 2 of the cycles that its threads spin; 4 is the least
    }


def enter(words: Sequence[str], threads: int) -> None:
    """Start ``python -m ms_mhc bench`` anew if this process's pools were loaded with other settings."""
    wanted = variables(threads)
    if all(os.environ.get(name) == value for name, value in wanted.items()):
        return
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", "ms_mhc", "bench", *words], {**os.environ, **wanted})


def use(threads: int) -> None:
    """Graph mode, and the number of threads of those who do not read it from the environment."""
    ms.set_context(mode=ms.GRAPH_MODE, runtime_num_threads=threads)


def describe(threads: int, packages: Iterable[str] = ()) -> Dict[str, Any]:
    """What a reader needs to compare results. ``packages`` are those that contenders use."""
    return {
        "versions": {
            package: version(package) or "not installed"
            for package in dict.fromkeys(("ms-mhc", "mindspore", "numpy", *packages))
        },
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": _processor(),
        "threads": threads,
        "load_at_start": os.getloadavg()[0],
        "environment": variables(threads),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
