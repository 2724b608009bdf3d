"""Data-parallel training of two processes on the CPU, over MindSpore's own collective backend."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, List

import numpy as np
import pytest

PROGRAM = Path(__file__).with_name("parallel_program.py")
MSRUN = Path(sys.executable).with_name("msrun")


def losses(text: str) -> List[Any]:
    return [json.loads(found) for found in re.findall(r"^LOSSES (.*)$", text, re.MULTILINE)]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.mark.skipif(not (MSRUN.exists() or shutil.which("msrun")), reason="MindSpore's launcher msrun is not installed")
def test_two_processes_train_like_one(tmp_path: Path) -> None:
    alone = subprocess.run([sys.executable, str(PROGRAM)], capture_output=True, text=True, cwd=tmp_path, check=True)
    (one,) = losses(alone.stdout)
    launcher = str(MSRUN) if MSRUN.exists() else "msrun"
    command = [launcher, "--worker_num=2", "--local_worker_num=2", f"--master_port={free_port()}", "--join=True"]
    command += [f"--log_dir={tmp_path / 'logs'}", str(PROGRAM), "--parallel"]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # msrun starts "python"
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
        timeout=300,
        env={**os.environ, "PATH": path},
    )
    workers = "".join(path.read_text() for path in sorted((tmp_path / "logs").glob("worker_*.log")))
    assert done.returncode == 0, workers[-3000:]
    found = losses(workers)
    assert sorted(w["rank"] for w in found) == [0, 1]
    # each process sees half of the batch, so the mean of their losses is the whole batch's
    together = np.mean([w["losses"] for w in found], axis=0)
    assert found[0]["losses"] != found[1]["losses"]
    assert together == pytest.approx(one["losses"], rel=1e-5)
