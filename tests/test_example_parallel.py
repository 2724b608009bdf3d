"""The example on two processes, on the CPU: losses as with one, checkpoints that either goes on from."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.example import TIMEOUT, call, column, environment, train
from tests.test_parallel import free_port

MSRUN = Path(sys.executable).with_name("msrun")
STEPS = ("--steps", "12", "--warmup_steps", "2", "--accumulation", "2")


@pytest.mark.skipif(not (MSRUN.exists() or shutil.which("msrun")), reason="MindSpore's launcher msrun is not installed")
def test_two_processes_train_like_one_and_go_on_from_its_checkpoint(tmp_path: Path) -> None:
    alone = train(tmp_path, "alone", *STEPS)
    train(tmp_path, "half", *STEPS, "--stop_at", "5")
    launcher = str(MSRUN) if MSRUN.exists() else "msrun"
    launch = [launcher, "--worker_num=2", "--local_worker_num=2", f"--master_port={free_port()}", "--join=True"]
    launch += ["--log_dir=logs", "-m", "model_zoo_example.train", "--resume", "half"]
    done = subprocess.run(
        launch, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    logs = [path.read_text() for path in sorted((tmp_path / "logs").glob("worker_*.log"))]
    assert done.returncode == 0, "".join(logs)[-3000:]
    assert column(tmp_path / "half") == pytest.approx(alone, abs=1e-5)
    assert "processes: 1 -> 2" in logs[0]
    assert "tokens/s" not in logs[1]  # one of them shows and writes
    call(tmp_path, "evaluate", "half")
