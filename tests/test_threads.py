"""Two Python threads call one cell, on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.launch import with_root

# What MindSpore itself can do: eager calls at once; graphs and gradients one after the other.
EAGER = ("--mode", "pynative")
EAGER_GRADIENTS = (*EAGER, "--gradients", "--locked")
GRAPH_GRADIENTS = ("--mode", "graph", "--gradients", "--locked")


@pytest.mark.parametrize(
    ("backend", "case"),
    [
        ("composite", EAGER),
        ("cpu", EAGER),
        ("cpu", GRAPH_GRADIENTS),
        pytest.param("cpu", EAGER_GRADIENTS, marks=pytest.mark.slow),
        pytest.param("composite", EAGER_GRADIENTS, marks=pytest.mark.slow),
        pytest.param("composite", GRAPH_GRADIENTS, marks=pytest.mark.slow),
    ],
)
def test_each_thread_gets_its_own_answers(tmp_path, backend, case):
    command = [sys.executable, "-m", "tests.threads", "--backend", backend, *case]
    environment = {**with_root(os.environ), "GLOG_v": "3"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
