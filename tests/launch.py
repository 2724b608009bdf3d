"""Starts one or several processes of a program, and reads what they leave behind."""

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
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
MSRUN = Path(sys.executable).with_name("msrun")
LIMIT = 600  # seconds


class Trained(NamedTuple):
    """What a process has after a case: its losses, the parameters, and the gradients of the last step."""

    losses: List[float]
    values: Dict[str, np.ndarray]


def missing() -> bool:
    """Whether MindSpore's launcher is not installed."""
    return not (MSRUN.exists() or shutil.which("msrun"))


def cases(arguments: Sequence[str]) -> List[List[str]]:
    """The arguments of a program that does one case after the other, with a plus between them."""
    found: List[List[str]] = [[]]
    for argument in arguments:
        if argument == "+":
            found.append([])
        else:
            found[-1].append(argument)
    return found


def joined(wanted: Sequence[Sequence[str]], folder: Path) -> List[str]:
    """The arguments for these cases; every case saves what it has trained."""
    found: List[str] = []
    for case in wanted:
        found += ["+", *case, "--parameters", str(folder)]
    return found[1:]


def alone(program: str, wanted: Sequence[Sequence[str]], folder: Path) -> List[Trained]:
    """One process. What it has after each of these cases."""
    done = subprocess.run(
        [sys.executable, program, *joined(wanted, folder)],
        cwd=folder,
        env=with_root(os.environ),
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    return [of_ranks[0] for of_ranks in trained(done.stdout, folder, len(wanted), 1)]


def together(
    processes: int,
    program: str,
    wanted: Sequence[Sequence[str]],
    folder: Path,
    environment: Optional[Mapping[str, str]] = None,
    under: Sequence[str] = (),
) -> List[List[Trained]]:
    """Several processes. For each of these cases what every rank has.

    ``under`` is what the launcher itself, a Python program, runs under.
    """
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = int(found.getsockname()[1])
    logs = folder / "logs"
    launcher = str(MSRUN) if MSRUN.exists() else str(shutil.which("msrun"))
    options = [f"--worker_num={processes}", f"--local_worker_num={processes}", f"--master_port={port}", "--join=True"]
    environment = with_root(os.environ if environment is None else environment)
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])  # for "python"
    said = folder / "launcher.log"  # the workers' own logs have what they say
    with said.open("wb") as output:
        launched = subprocess.Popen(
            [sys.executable, *under, launcher, *options, f"--log_dir={logs}", program, *joined(wanted, folder)],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        status = launched.wait(LIMIT)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(launched.pid, signal.SIGKILL)  # whatever is left of the launcher and its workers
    workers = "".join(path.read_text() for path in sorted(logs.glob("worker_*.log")))
    # The status is the scheduler's, too, MindSpore's own process. On a busy machine it may miss the end of a worker, or
    # fail at its own, after all is done: what every rank printed and saved is what counts.
    if status:
        assert len(re.findall("^LOSSES ", workers, re.MULTILINE)) == len(wanted) * processes, workers[-4000:]
        ends = said.read_text()
        assert re.search("Scheduler process .* exit with exception", ends), f"status {status}: {ends[-4000:]}"
        assert not re.search("Worker process .* exit with exception", ends), ends[-4000:]
    return trained(workers, folder, len(wanted), processes)


def with_root(environment: Mapping[str, str]) -> Dict[str, str]:
    """An environment in which programs find the packages of this repository."""
    paths = [str(ROOT), environment.get("PYTHONPATH", "")]
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def unmeasured(environment: Mapping[str, str]) -> Dict[str, str]:
    """An environment in which ``make coverage`` does not follow a program that cannot write what it would find."""
    return {name: value for name, value in environment.items() if not name.startswith("COVERAGE_PROCESS_")}


def trained(text: str, folder: Path, number: int, processes: int) -> List[List[Trained]]:
    """What processes printed and saved, by case and rank."""
    printed: Dict[Any, List[float]] = {}
    for line in re.findall(r"^LOSSES (.*)$", text, re.MULTILINE):
        entry = json.loads(line)
        printed[entry["case"], entry["rank"]] = entry["losses"]
    assert sorted(printed) == [(case, rank) for case in range(number) for rank in range(processes)]
    found: List[List[Trained]] = []
    for case in range(number):
        found.append([])
        for rank in range(processes):
            with np.load(folder / f"{case}.{rank}.npz") as saved:
                found[case].append(Trained(printed[case, rank], dict(saved)))
    return found
