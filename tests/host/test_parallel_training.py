"""Several ranks train on MindSpore's Ascend backend, over the host CANN's collectives, and train like one process.

That one runs on the CPU, in PyNative mode, and knows nothing of ranks. In bfloat16, where the ranks take the kernels,
it computes in MindSpore ops, because the host CANN's kernels are the C++ of the cpu backend.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np
import pytest
from conftest import ROOT, Host, host_in

from tests import launch
from tests.launch import Trained
from tests.parallel_network import LAYERS, MICRO_BATCHES, STEPS, assert_same, assert_trains

LAYOUTS = str(ROOT / "tests/parallel_program_layouts.py")
BY_HAND = str(ROOT / "tests/parallel_program.py")
HOST = ["-m", "aclnn_adapter.host"]

CASES = {
    "flat batch, optimizer sharding": ["--batch", "4", "--flat", "--shard-optimizer"],
    "kernels": ["--batch", "2", "--same", "2", "--bfloat16", "--recompute"],
}
STAGES = ["--stages", "2", "--sequence", "2", "--recompute"]
BOTH = ["--batch", "2", "--sequence", "2"]  # in one graph; the cases have each of them
OF_BFLOAT16 = 2.0**-6  # of the largest entry: a few units in its last place

pytestmark = pytest.mark.skipif(launch.missing(), reason="MindSpore's launcher msrun is not installed")


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Tuple[Trained, Trained]:
    """In float32, and with streams in bfloat16."""
    ways = [["--way", "value_and_grad"], ["--bfloat16", "--backend", "composite"]]
    float32, bfloat16 = launch.alone(BY_HAND, ways, tmp_path_factory.mktemp("one"))
    return float32, bfloat16


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    return host_in(tmp_path_factory.mktemp("four"))


def four_ranks(host: Host, wanted: Sequence[List[str]]) -> List[List[Trained]]:
    """What four ranks have after each of these cases."""
    under = [*HOST, "--trace", str(host.folder / "trace.jsonl")]
    return launch.together(4, LAYOUTS, wanted, host.folder, host.environment, under)


@pytest.fixture(scope="module")
def four(host: Host) -> Dict[str, List[Trained]]:
    return dict(zip(CASES, four_ranks(host, list(CASES.values()))))


@pytest.mark.slow
def test_batch_and_sequence_split(one: Tuple[Trained, Trained], tmp_path: Path) -> None:
    for rank in four_ranks(host_in(tmp_path), [BOTH])[0]:
        assert_same(rank, one[0])


def test_optimizer_sharding(one: Tuple[Trained, Trained], four: Dict[str, List[Trained]]) -> None:
    """With the second layer on streams [T, N, D]. Every rank has a part of what four ranks can divide."""
    assert_trains(one[0])
    ranks = four["flat batch, optimizer sharding"]
    expected, divided, whole = one[0].values, set(), {}
    for name, value in ranks[0].values.items():
        if value.shape == expected[name].shape:
            whole[name] = value
        else:
            whole[name] = np.concatenate([rank.values[name] for rank in ranks])
            divided.add(name.split(".", 1)[1])
    assert divided == {
        "scale",
        *(f"pre.{p}" for p in ("phi", "bias", "gamma")),
        "phi",
        "bias",
        "branch.key",
        "branch.query",
    }
    for rank in ranks:
        assert_same(Trained(rank.losses, whole), one[0])


@pytest.mark.slow
def test_pipeline_stages_with_recompute(one: Tuple[Trained, Trained], tmp_path: Path) -> None:
    """The last stage has the sum of the losses of the micro batches."""
    (ranks,) = four_ranks(host_in(tmp_path), [STAGES])
    parts = [("embedding", "first")] * 2 + [("second", "head")] * 2
    losses = np.divide(ranks[-1].losses, MICRO_BATCHES).tolist()
    assert ranks[-2].losses == ranks[-1].losses
    for rank, mine in zip(ranks, parts):

        def of_stage(values: Dict[str, Any], mine: Tuple[str, ...] = mine) -> Dict[str, Any]:
            return {name: value for name, value in values.items() if name.replace("gradient of ", "").startswith(mine)}

        assert len(of_stage(rank.values)) >= 14
        assert_same(Trained(losses, of_stage(rank.values)), Trained(one[0].losses, of_stage(one[0].values)))


def test_the_kernels_run_on_each_ranks_tokens(
    one: Tuple[Trained, Trained], four: Dict[str, List[Trained]], host: Host
) -> None:
    """On two of the four ranks the same tokens, as beside a tensor-parallel branch; forwards twice, for recompute."""
    for rank in four["kernels"]:
        assert_same(rank, one[1], OF_BFLOAT16)
    lines = (host.folder / "trace.jsonl").read_text().splitlines()
    calls = [json.loads(line) for line in lines if '"aclnnMhcPre' in line]
    for operator, times in (("aclnnMhcPre", 2), ("aclnnMhcPreBackward", 1)):
        reads = [c for c in calls if c["operator"] == operator and c["phase"] == 2]
        assert {tuple(c["arguments"][0]["shape"]) for c in reads} == {(2, 4, 4, 64)}
        assert len(reads) == 4 * STEPS * LAYERS * times


@pytest.mark.slow
def test_a_sequence_split_by_hand(one: Tuple[Trained, Trained], tmp_path: Path) -> None:
    """With a communicator of its own for the ranks of a sequence."""
    host = host_in(tmp_path)
    case = ["--device", "Ascend", "--sequence", "2"]
    (ranks,) = launch.together(2, BY_HAND, [case], host.folder, host.environment, HOST)
    losses = np.sum([rank.losses for rank in ranks], axis=0).tolist()
    for rank in ranks:
        assert_same(Trained(losses, rank.values), one[0])
