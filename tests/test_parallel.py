"""Training with several processes on the CPU, over MindSpore's own collective backend."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List, Tuple

import numpy as np
import pytest

from tests import launch

PROGRAM = str(Path(__file__).with_name("parallel_program.py"))

pytestmark = pytest.mark.skipif(launch.missing(), reason="MindSpore's launcher msrun is not installed")


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Tuple[List[float], Dict[str, np.ndarray]]:
    """One process in PyNative mode: its losses and what it trained."""
    folder = tmp_path_factory.mktemp("one")
    command = [PROGRAM, "--mode", "pynative", "--parameters", str(folder)]
    return launch.alone(command, folder), launch.parameters(folder, 0)


@pytest.mark.parametrize(
    "split",
    [["--batch", "2"], ["--sequence", "2"], ["--batch", "2", "--sequence", "2"]],
    ids=["data parallel", "sequence split", "both"],
)
def test_several_processes_train_like_one(
    one: Tuple[List[float], Dict[str, np.ndarray]], split: List[str], tmp_path: Path
) -> None:
    processes = 2 ** (len(split) // 2)
    found = launch.together(processes, [PROGRAM, *split, "--parameters", str(tmp_path)], tmp_path)
    losses, trained = one
    assert len({tuple(entry) for entry in found}) == processes  # each has tokens of its own
    assert np.sum(found, axis=0) == pytest.approx(losses, rel=1e-5)
    for rank in range(processes):
        for name, value in launch.parameters(tmp_path, rank).items():
            assert np.allclose(value, trained[name], rtol=1e-4, atol=1e-5), (rank, name)
