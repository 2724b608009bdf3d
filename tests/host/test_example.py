"""The example on the host CANN, in graph mode: the losses that it has on the CPU, through the kernels' entry points."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

import pytest
from conftest import Host

from tests.example import column
from tests.example_losses import expected, flags


def train(host: Host, config: str, *more: str) -> List[Dict[str, Any]]:
    """Run the program; returns the trace of its aclnn calls."""
    trace = host.folder / "trace.jsonl"
    command = [sys.executable, "-m", "aclnn_adapter.host", "--trace", str(trace), "-m", "model_zoo_example.train"]
    done = subprocess.run(
        [*command, *flags(config), "--device", "Ascend", *more],
        cwd=host.folder,
        env=host.environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()]


def test_float32_gives_the_losses_of_the_cpu(host: Host) -> None:
    train(host, "tiny", "--stop_at", "4")
    assert column(host.folder / "tiny") == pytest.approx(expected("tiny")[:4], abs=2e-3)


def test_bfloat16_takes_the_kernels_and_trains_as_float32_does(host: Host) -> None:
    calls = train(host, "ascend", "--dtype", "bfloat16", "--stop_at", "4", "--save_every", "2")
    steps, parts, connections = 4, 2, 4
    forward = [call for call in calls if call["operator"] == "aclnnMhcPre" and call["phase"] == 2]
    backward = [call for call in calls if call["operator"] == "aclnnMhcPreBackward" and call["phase"] == 2]
    assert len(backward) == steps * parts * connections
    assert len(forward) >= len(backward)
    # a bfloat16 has 8 bits, and 16-bit rounding grows over the steps
    assert column(host.folder / "ascend") == pytest.approx(expected("ascend")[:4], abs=2e-2)
    assert len(list(Path(host.folder / "ascend").glob("step-*.safetensors"))) == 2
