"""Running programs on the host CANN."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Dict, List

import pytest
import vendor_client

from aclnn_adapter.host.build import compiler_problem

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Result:
    """What a program left behind."""

    status: int
    output: str
    errors: str
    trace: List[Dict[str, Any]]

    def calls(self, operator: str, phase: int = 2) -> List[Dict[str, Any]]:
        return [c for c in self.trace if c["operator"] == operator and c["phase"] == phase]


class Host:
    """``python -m aclnn_adapter.host`` in a folder of its own."""

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        self.folder = folder
        self.python = python
        self.environment = dict(os.environ)
        paths = [str(ROOT), str(HERE), os.environ.get("PYTHONPATH", "")]
        self.environment.update(
            PYTHONPATH=os.pathsep.join(filter(None, paths)),
            MS_COMPILER_CACHE_PATH=str(folder / "compiled"),
            GLOG_v="3",
        )

    def command(self, code: str, *options: str) -> List[str]:
        """The command for a program given as text."""
        program = self.folder / "program.py"
        program.write_text(code)
        return [self.python, "-m", "aclnn_adapter.host", *options, str(program)]

    def run(self, code: str, *options: str, expect: int = 0, timeout: int = 300) -> Result:
        """Run a program given as text; ``expect`` is its exit status."""
        trace = self.folder / "trace.jsonl"
        trace.unlink(missing_ok=True)
        command = self.command(code, "--trace", str(trace), *options)
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=timeout, check=False
        )
        assert done.returncode == expect, f"status {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
        lines = trace.read_text().splitlines() if trace.exists() else []
        return Result(done.returncode, done.stdout, done.stderr, [json.loads(line) for line in lines])


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A folder to run programs in; skips where the host CANN cannot be built."""
    return host_in(tmp_path)


def host_in(folder: Path) -> Host:
    """The same in a folder that several tests use."""
    problem = compiler_problem()
    if problem:
        pytest.skip(problem)
    if not metadata.version("mindspore").startswith("2.10."):
        pytest.skip(f"the host CANN is made for MindSpore 2.10, not {metadata.version('mindspore')}")
    _build(sys.executable)
    return Host(folder)


@functools.cache
def _build(python: str) -> None:
    """The host CANN for what this Python has. It may take minutes, which the time limit of a program does not allow."""
    subprocess.run([python, "-m", "aclnn_adapter.host", "--where"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def vendor_host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """The same in the environment that has torch_npu; skips where there is none."""
    problem = compiler_problem() or vendor_client.problem()
    if problem:
        pytest.skip(problem)
    _build(str(vendor_client.interpreter()))
    return Host(tmp_path_factory.mktemp("vendor"), str(vendor_client.interpreter()))
