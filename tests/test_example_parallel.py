"""The example on two processes, on the CPU: losses as with one, and an end that all of them agree on."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from model_zoo_example import evaluate, train
from tests import launch
from tests.example import SHORT, TIMEOUT, column, environment

STEPS = ("--steps", "5000", "--warmup_steps", "2", "--accumulation", "2")
START, COMPARED = 3, 10


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def worker(parent: int, rank: int) -> int:
    """The process that msrun started for a rank."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            of = int((folder / "stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[1])
            command, variables = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
        except OSError:  # it has ended meanwhile
            continue
        if of == parent and b"model_zoo_example.train" in command and b"RANK_ID=%d\0" % rank in variables:
            return int(folder.name)
    raise AssertionError(f"there is no worker {rank}")


def ended(process: int) -> bool:
    """Whether a process is over, whether or not its parent has noticed."""
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0]
    except OSError:
        return True
    return state == "Z"


@pytest.mark.skipif(launch.missing(), reason="MindSpore's launcher msrun is not installed")
def test_two_processes_train_like_one_and_stop_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They go on from a checkpoint of one process; then one of the two gets a SIGTERM."""
    alone, run = tmp_path / "alone", tmp_path / "run"
    flags = [*SHORT, *STEPS, "--stop_at", str(COMPARED), "--save_every", str(START)]
    assert train.main([*flags, "--keep", "9", "--output", str(alone)]) == 0
    run.mkdir()
    shutil.copy(alone / f"step-{START:08d}.safetensors", run)
    command = ["msrun", "--worker_num=2", "--local_worker_num=2", f"--master_port={free_port()}", "--join=True"]
    command += ["--log_dir=logs", "python", "-m", "model_zoo_example.train", "--resume", "run"]
    msrun = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    metrics, limit = run / "metrics.csv", time.monotonic() + TIMEOUT
    while not (metrics.exists() and len(column(run)) >= COMPARED - START):
        assert msrun.poll() is None
        assert time.monotonic() < limit
        time.sleep(0.05)
    workers = [worker(msrun.pid, rank) for rank in (0, 1)]
    os.kill(workers[1], signal.SIGTERM)
    while not all(map(ended, workers)):
        assert time.monotonic() < limit
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(msrun.pid, signal.SIGKILL)  # it waits half a minute for its scheduler
    msrun.wait(timeout=TIMEOUT)
    logs = [path.read_text() for path in sorted((tmp_path / "logs").glob("worker_*.log"))]
    losses = column(run)
    assert losses[: COMPARED - START] == pytest.approx(column(alone)[START:], abs=1e-5), "".join(logs)[-3000:]
    last = START + len(losses)
    assert f"stopped after step {last} of 5000" in logs[0]
    assert "processes: 1 -> 2" in logs[0]
    assert f"to go on: python -m model_zoo_example.train --resume {run.name}" in logs[0]
    assert "tokens/s" not in logs[1]  # one of them shows and writes
    capsys.readouterr()
    assert evaluate.main([str(run), "--mode", "pynative"]) == 0
    assert f"step {last}," in capsys.readouterr().out
