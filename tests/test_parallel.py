"""One small network, trained in every way there is on the CPU, by one process and by several.

Several run over MindSpore's own collective backend.
"""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List

import numpy as np
import pytest

from tests import launch
from tests.launch import Trained
from tests.parallel_network import assert_same, assert_trains

PROGRAM = str(Path(__file__).with_name("parallel_program.py"))

ALONE = {
    "value_and_grad": ["--way", "value_and_grad"],
    "loss.backward()": ["--way", "backward"],
    "graph mode": ["--way", "graph"],
    "ms.jit": ["--way", "jit"],
    "MindSpore ops": ["--way", "graph", "--backend", "composite"],
    "half of the tokens": ["--way", "value_and_grad", "--batch", "2", "--alone"],
}
TOGETHER = {
    "data parallel, loss.backward()": ["--batch", "4", "--way", "backward"],
    "sequence split, ms.jit": ["--sequence", "4", "--way", "jit"],
    "both, graph mode": ["--batch", "2", "--sequence", "2", "--way", "graph"],
}


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Trained]:
    found = launch.alone(PROGRAM, list(ALONE.values()), tmp_path_factory.mktemp("one"))
    return dict(zip(ALONE, found))


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, List[Trained]]:
    found = launch.together(4, PROGRAM, list(TOGETHER.values()), tmp_path_factory.mktemp("four"))
    return dict(zip(TOGETHER, found))


def test_ten_steps_change_the_loss(one: Dict[str, Trained]) -> None:
    assert_trains(one["value_and_grad"])


@pytest.mark.parametrize("way", ["loss.backward()", "graph mode", "ms.jit", "MindSpore ops"])
def test_one_process_trains_alike_in_every_way(one: Dict[str, Trained], way: str) -> None:
    assert_same(one[way], one["value_and_grad"])


@pytest.mark.skipif(launch.missing(), reason="MindSpore's launcher msrun is not installed")
@pytest.mark.parametrize("split", TOGETHER)
def test_several_processes_train_like_one(one: Dict[str, Trained], four: Dict[str, List[Trained]], split: str) -> None:
    ranks = four[split]
    assert len({tuple(rank.losses) for rank in ranks}) == len(ranks)  # each has tokens of its own
    losses = np.sum([rank.losses for rank in ranks], axis=0).tolist()
    for rank in ranks:
        assert_same(Trained(losses, rank.values), one["value_and_grad"])


def test_gradients_that_were_not_summed_are_seen(one: Dict[str, Trained]) -> None:
    """A process that keeps to its own tokens trains something else."""
    wrong, right = one["half of the tokens"], one["value_and_grad"]
    for name in right.values:
        with pytest.raises(AssertionError, match=name):
            assert_same(Trained(right.losses, {**right.values, name: wrong.values[name]}), right)
