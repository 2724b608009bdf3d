"""Several ranks train on MindSpore's Ascend backend, over the host CANN's collectives, and train like one process.

That one runs in PyNative mode on the CPU, in MindSpore ops, and knows nothing of ranks.
"""

from __future__ import annotations

import json
from typing import Dict, List, Tuple

import numpy as np
import pytest
from conftest import ROOT, Host

from tests import launch

LAYOUTS = str(ROOT / "tests/parallel_program_layouts.py")
BY_HAND = str(ROOT / "tests/parallel_program.py")
HOST = ["-m", "aclnn_adapter.host"]
STEPS, MICRO_BATCHES = "3", 2
Trained = Tuple[List[float], Dict[str, np.ndarray]]

pytestmark = pytest.mark.skipif(launch.missing(), reason="MindSpore's launcher msrun is not installed")


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("one")
    command = [LAYOUTS, "--device", "CPU", "--mode", "pynative", "--backend", "composite", "--steps", STEPS]
    return launch.alone([*command, "--parameters", str(folder)], folder), launch.parameters(folder, 0)


def assert_trained(found: Dict[str, np.ndarray], expected: Dict[str, np.ndarray]) -> None:
    assert found
    for name, value in found.items():
        assert np.allclose(value, expected[name], rtol=1e-4, atol=1e-5), name


def together(host: Host, ranks: int, program: str, *arguments: str) -> List[List[float]]:
    command = [program, *arguments, "--parameters", str(host.folder)]
    return launch.together(ranks, command, host.folder, host.environment, HOST)


@pytest.mark.parametrize("other", ["--sequence", "--same"])
def test_batch_split_and_another_axis(host: Host, one: Trained, other: str) -> None:
    """Split along the sequence too, or computed twice with the same tokens, as beside a tensor-parallel branch."""
    losses, trained = one
    for found in together(host, 4, LAYOUTS, "--batch", "2", other, "2", "--steps", STEPS):
        assert found == pytest.approx(losses, rel=1e-5)
    for rank in range(4):
        assert_trained(launch.parameters(host.folder, rank), trained)


def test_pipeline_stages_with_recompute(host: Host, one: Trained) -> None:
    losses, trained = one
    found = together(host, 4, LAYOUTS, "--sequence", "2", "--stages", "2", "--recompute", "--steps", STEPS)
    for last_stage in found[2:]:  # it has the sum over the micro batches
        assert np.divide(last_stage, MICRO_BATCHES) == pytest.approx(losses, rel=1e-5)
    for rank in range(4):
        mine = ("embedding", "layers.0") if rank < 2 else ("layers.1",)
        values = launch.parameters(host.folder, rank)
        assert_trained({name: value for name, value in values.items() if name.startswith(mine)}, trained)


def test_optimizer_sharding(host: Host, one: Trained) -> None:
    losses, trained = one
    for found in together(host, 2, LAYOUTS, "--batch", "2", "--shard-optimizer", "--steps", STEPS):
        assert found == pytest.approx(losses, rel=1e-5)
    first, second = (launch.parameters(host.folder, rank) for rank in range(2))
    whole = {n: v if v.shape == trained[n].shape else np.concatenate([v, second[n]]) for n, v in first.items()}
    assert_trained(whole, trained)


def test_the_kernels_run_on_each_ranks_tokens(host: Host) -> None:
    trace = host.folder / "trace.jsonl"
    command = [LAYOUTS, "--bfloat16", "--steps", STEPS]
    expected = launch.alone(command, host.folder, host.environment, HOST)
    under = [*HOST, "--trace", str(trace)]
    for found in launch.together(2, [*command, "--sequence", "2"], host.folder, host.environment, under):
        assert found == pytest.approx(expected, rel=2e-3)  # steps of bfloat16
    calls = [json.loads(line) for line in trace.read_text().splitlines()]
    reads = [c for c in calls if c["operator"].startswith("aclnnMhcPre") and c["phase"] == 2]
    shapes = {tuple(c["arguments"][0]["shape"]) for c in reads}
    assert shapes == {(4, 4, 4, 64)}
    assert len(reads) == 2 * int(STEPS) * 2 * 2  # ranks, steps, connections, directions
    sums = [c for c in calls if c["operator"] == "HcclAllReduce" and c["count"] > 1]
    assert len(sums) % (2 * int(STEPS)) == 0
    per_step = len(sums) // (2 * int(STEPS))
    elements = sum(c["count"] for c in sums) // (2 * int(STEPS))
    assert 1 <= per_step <= 9  # MindSpore may fuse them
    assert elements == 64 + 2 * (24 * 256 + 3 + 24 + 64)


def test_a_sequence_split_by_hand(host: Host, tmp_path_factory: pytest.TempPathFactory) -> None:
    """With a communicator of its own for the ranks of a sequence."""
    folder = tmp_path_factory.mktemp("one")
    command = ["--mode", "pynative", "--size", "64", "--parameters", str(folder)]
    losses = launch.alone([BY_HAND, *command], folder)
    found = together(host, 2, BY_HAND, "--device", "Ascend", "--size", "64", "--sequence", "2")
    assert np.sum(found, axis=0) == pytest.approx(losses, rel=1e-4)
    for rank in range(2):
        assert_trained(launch.parameters(host.folder, rank), launch.parameters(folder, 0))
