"""Two Python threads call one cell, on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ms_mhc.operators.precision import run_eagerly
from tests.launch import with_root

# Eager calls of ours take turns; MindSpore's graphs and gradients need a lock.
EAGER = ("--mode", "pynative", "--new-shapes", "40")
EAGER_GRADIENTS = ("--mode", "pynative", "--gradients", "--locked")
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


def test_eager_calls_take_turns():
    """At its first operator MindSpore starts threads, twice where two callers meet: it aborts then, or hangs."""
    inside = []

    def call(number):
        inside.append(number)
        time.sleep(0.05)
        together = len(inside)
        inside.remove(number)
        return together

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda number: run_eagerly(call, number), range(4))) == [1, 1, 1, 1]


def test_a_call_may_call_another():
    found = []
    thread = threading.Thread(target=lambda: found.append(run_eagerly(run_eagerly, int, "3")), daemon=True)
    thread.start()
    thread.join(20)
    assert found == [3]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_does_not_wait_for_a_thread_that_it_lacks():
    def in_the_child():
        found = []
        thread = threading.Thread(target=lambda: found.append(run_eagerly(int, "3")), daemon=True)
        thread.start()
        thread.join(20)
        return int(found != [3])

    def fork():
        child = os.fork()
        if child == 0:
            code = 2
            try:
                code = in_the_child()
            finally:
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert run_eagerly(fork) == 0
