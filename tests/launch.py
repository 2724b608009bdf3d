"""Starts several processes of one program with MindSpore's launcher, and reads what they print."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

import numpy as np

MSRUN = Path(sys.executable).with_name("msrun")
LIMIT = 600  # seconds


def missing() -> bool:
    """Whether MindSpore's launcher is not installed."""
    return not (MSRUN.exists() or shutil.which("msrun"))


def losses(text: str) -> List[Dict[str, Any]]:
    """What a program printed: one entry for every process, by rank."""
    found = [json.loads(line) for line in re.findall(r"^LOSSES (.*)$", text, re.MULTILINE)]
    return sorted(found, key=lambda entry: entry["rank"])


def parameters(folder: Path, rank: int) -> Dict[str, np.ndarray]:
    """What a process saved."""
    with np.load(folder / f"{rank}.npz") as saved:
        return dict(saved)


def alone(
    command: Sequence[str], folder: Path, environment: Optional[Mapping[str, str]] = None, under: Sequence[str] = ()
) -> List[float]:
    """The losses of one process. ``under`` is what a Python program runs under."""
    done = subprocess.run(
        [sys.executable, *under, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    (entry,) = losses(done.stdout)
    return list(entry["losses"])


def together(
    processes: int,
    command: Sequence[str],
    folder: Path,
    environment: Optional[Mapping[str, str]] = None,
    under: Sequence[str] = (),
) -> List[List[float]]:
    """The losses of every process, by rank."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = int(found.getsockname()[1])
    logs = folder / "logs"
    launcher = str(MSRUN) if MSRUN.exists() else str(shutil.which("msrun"))
    options = [f"--worker_num={processes}", f"--local_worker_num={processes}", f"--master_port={port}", "--join=True"]
    environment = dict(os.environ if environment is None else environment)
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])  # for "python"
    launched = subprocess.Popen(
        [sys.executable, *under, launcher, *options, f"--log_dir={logs}", *command],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,  # the workers' logs have what they say
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        status = launched.wait(LIMIT)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(launched.pid, signal.SIGKILL)  # whatever is left of the launcher and its workers
    workers = "".join(path.read_text() for path in sorted(logs.glob("worker_*.log")))
    assert status == 0, workers[-4000:]
    entries = losses(workers)
    assert [entry["rank"] for entry in entries] == list(range(processes))
    return [list(entry["losses"]) for entry in entries]
