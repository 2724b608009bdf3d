"""The example program, run as a user runs it: in a process of its own, with few steps."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any, List, NamedTuple

import pytest

PROGRAM = Path(__file__).resolve().parents[1] / "model_zoo_example" / "train.py"
TIMEOUT = 300


class Run(NamedTuple):
    losses: List[float]
    before: float
    after: float
    folder: Path


def call(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), *flags]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT, check=False)


def settings(folder: Path, **training: Any) -> Path:
    """The settings that users get, with one layer, little validation and hardly any writing."""
    stored = json.loads((PROGRAM.parent / "configs" / "tiny.json").read_text(encoding="utf-8"))
    stored["model"].update({"num_layers": 1})
    stored["training"].update({"validation_batches": 2, "sample_length": 2, **training})
    path = folder / "settings.json"
    path.write_text(json.dumps(stored), encoding="utf-8")
    return path


def train(folder: Path, *flags: str) -> Run:
    done = call(folder, "--config", str(settings(folder)), "--losses", "losses.json", *flags)
    assert done.returncode == 0, done.stderr
    words = done.stdout.split("validation loss: ")[1].split()  # "4.6 before, 2.0 after; ..."
    losses = json.loads((folder / "losses.json").read_text(encoding="utf-8"))
    return Run(losses, float(words[0]), float(words[2]), folder)


@pytest.fixture(scope="module")
def graph_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(tmp_path_factory.mktemp("graph"), "--steps", "24", "--checkpoint", "done.ckpt")


def test_a_short_training_lowers_both_losses(graph_run: Run) -> None:
    assert graph_run.losses[0] == pytest.approx(math.log(103), abs=0.1)
    assert graph_run.losses[-1] < 3.7
    assert graph_run.after < 3.7
    assert graph_run.before > 4.5


def test_pynative_mode_gives_the_losses_of_graph_mode(graph_run: Run, tmp_path: Path) -> None:
    pynative = train(tmp_path, "--steps", "20", "--mode", "pynative")
    assert len(pynative.losses) == 20
    assert pynative.losses == pytest.approx(graph_run.losses[:20], abs=1e-4)


def test_the_plain_network_starts_with_the_same_loss(graph_run: Run, tmp_path: Path) -> None:
    plain = train(tmp_path, "--steps", "2", "--residual", "plain")
    assert plain.losses[0] == pytest.approx(graph_run.losses[0], rel=1e-4)
    assert plain.before == pytest.approx(graph_run.before, rel=1e-4)


def test_the_streams_are_not_copies_of_each_other(graph_run: Run, tmp_path: Path) -> None:
    """Were they, every stream's share in h_pre would get the same gradient, and h_res would have nothing to mix."""
    code = (
        "import mindspore as ms, numpy as np, sys; c = ms.load_checkpoint(sys.argv[1]); "
        "g = c['adam_mean.blocks.1.pre.bias'].asnumpy()[:4]; print(np.ptp(g) / np.abs(g).max())"
    )
    command = [sys.executable, "-c", code, str(graph_run.folder / "done.ckpt")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT, check=True)
    assert float(done.stdout.split()[-1]) > 0.1


def test_a_resumed_run_goes_on_where_the_first_one_stopped(graph_run: Run, tmp_path: Path) -> None:
    train(tmp_path, "--steps", "12", "--checkpoint", "half.ckpt")
    resumed = train(tmp_path, "--steps", "24", "--resume", "half.ckpt")
    assert resumed.losses == pytest.approx(graph_run.losses[12:], abs=1e-5)
    assert resumed.after == pytest.approx(graph_run.after, abs=1e-4)


def test_only_the_files_asked_for_are_written(graph_run: Run) -> None:
    assert sorted(path.name for path in graph_run.folder.iterdir()) == ["done.ckpt", "losses.json", "settings.json"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--residual", "none"], ["--residual", "'none'", "'mhc', 'plain'"]),
        (["--num-streams", "0"], ["num_streams", "greater than 0", "got 0"]),
        (["--backend", "fast"], ["backend", "'fast'", "composite"]),
        (["--config", "settings.json"], ["settings.json", "'depth'", "batch_size"]),
        (["--resume", "missing.ckpt"], ["--resume", "missing.ckpt"]),
    ],
    ids=" ".join,
)
def test_a_bad_flag_gets_a_message_instead_of_a_traceback(tmp_path: Path, flags: List[str], words: List[str]) -> None:
    settings(tmp_path, depth=3)
    done = call(tmp_path, *flags)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr
