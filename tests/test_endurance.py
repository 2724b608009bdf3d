"""A training that goes on for thousands of steps keeps neither memory nor files, on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.endurance import Sample, growth
from tests.launch import with_root

LIMIT = 3600  # seconds; on a busy machine MindSpore's threads wait for one another


def _train(folder: Path, *arguments: str) -> str:
    """What the program prints; its status is 1 where something grew."""
    command = [sys.executable, "-m", "tests.endurance", *arguments]
    environment = {**with_root(os.environ), "OMP_NUM_THREADS": "1", "GLOG_v": "3"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize(("mode", "steps"), [("graph", 250), ("pynative", 60)])
def test_a_short_training_keeps_nothing(tmp_path, mode, steps):
    options = ["--settled", str(steps // 3), "--every", str(steps // 10), "--percent", "0.5"]
    assert "nothing grew" in _train(tmp_path, "--backend", "cpu", "--mode", mode, "--steps", str(steps), *options)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["graph", "pynative"])
@pytest.mark.parametrize("backend", ["composite", "cpu"])
def test_a_long_training_keeps_nothing(tmp_path, backend, mode):
    assert "nothing grew" in _train(tmp_path, "--backend", backend, "--mode", mode)


def test_what_grows_is_named():
    before = Sample(step=200, memory=1000, files=6, objects=500)
    same = Sample(step=300, memory=1009, files=6, objects=501)
    assert growth([Sample(100, 1, 1, 1), before, same], 200, 1.0) is None
    assert growth([before, same._replace(memory=1011)], 200, 1.0) == "memory grew by 1.10 percent"
    assert growth([before, same._replace(memory=1011), same], 200, 1.0) is not None
    assert growth([before, same._replace(memory=1011)], 200, None) is None
    assert growth([before, same._replace(files=7)], 200, 1.0) == "1 more files are open"
    assert growth([before, same._replace(objects=600)], 200, 1.0) == "Python keeps 99 more objects"
