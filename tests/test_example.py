"""The example's training: what it computes, and that a run goes on after whatever stopped it."""

from __future__ import annotations

import io
import math
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, List, Tuple

import numpy as np
import pytest

from model_zoo_example import checkpoint, evaluate, export, generate
from model_zoo_example import train as program
from model_zoo_example.progress import Metrics, Progress, read_metrics
from tests.example import SHORT, call, column, command, environment

STEPS = ("--steps", "24", "--warmup_steps", "6")


def train(output: Path, *flags: Any, status: int = 0) -> List[float]:
    """Train in this process, and return the losses."""
    assert program.main([*SHORT, *STEPS, "--output", str(output), *map(str, flags)]) == status
    return column(output) if status == 0 else []


def resume(path: Path, *flags: Any) -> List[float]:
    assert program.main(["--resume", str(path), *map(str, flags)]) == 0
    return column(path if path.is_dir() else path.parent)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Tuple[Path, List[float]]:
    """A run that nothing interrupts, with a checkpoint in the middle of its cosine."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return folder, train(folder, "--save_every", 16, "--events", "true")


def test_a_short_training_lowers_both_losses(whole: Tuple[Path, List[float]]) -> None:
    folder, losses = whole
    assert losses[0] == pytest.approx(math.log(256), abs=0.1)
    assert losses[-1] < 3.7
    (validation,) = [
        float(row["validation_loss"]) for row in read_metrics(folder / "metrics.csv") if row["step"] == "24"
    ]
    assert validation < 3.7


def test_the_rate_rises_to_the_one_that_was_set_and_falls_to_a_tenth(whole: Tuple[Path, List[float]]) -> None:
    rates = column(whole[0], "learning_rate")
    assert rates[:6] == pytest.approx([4e-3 * (step + 1) / 6 for step in range(6)], rel=1e-6)
    assert all(after < before for before, after in zip(rates[6:], rates[7:]))
    assert rates[-1] == pytest.approx(4e-4, rel=0.1)


def test_only_metrics_checkpoints_and_event_files_are_written(whole: Tuple[Path, List[float]]) -> None:
    folder = whole[0]
    expected = ["events", "metrics.csv", "step-00000016.safetensors", "step-00000024.safetensors"]
    assert sorted(path.name for path in folder.iterdir()) == expected
    (events,) = (folder / "events").iterdir()
    assert events.stat().st_size > 24 * 50


@pytest.mark.parametrize("stop", [4, 13], ids=["in the warm-up", "in the cosine"])
def test_a_stopped_run_goes_on_to_the_bit(whole: Tuple[Path, List[float]], stop: int, tmp_path: Path) -> None:
    assert train(tmp_path / "run", "--stop_at", stop) == whole[1][:stop]
    assert resume(tmp_path / "run", "--save_every", 7) == whole[1]
    here, there = (checkpoint.load(folder).arrays for folder in (tmp_path / "run", whole[0]))
    assert here.keys() == there.keys()
    for name, array in here.items():
        if name.startswith("optimizer.mean_square"):
            # MindSpore's threads treat subnormal numbers now as zero, now not; beside AdamW's eps they vanish
            np.testing.assert_allclose(array, there[name], rtol=0, atol=np.finfo(np.float32).tiny, err_msg=name)
        else:
            np.testing.assert_array_equal(array, there[name], err_msg=name)


def test_a_resumed_run_refuses_settings_that_differ_and_names_them(
    whole: Tuple[Path, List[float]], capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--resume", str(whole[0]), "--learning_rate", "1e-3", "--steps", "30", "--seed", "2", "--keep", "9"]
    assert program.main(flags) == 2
    message = capsys.readouterr().err
    for word in ("learning_rate: 0.004 -> 0.001", "steps: 24 -> 30", "seed: 1 -> 2"):
        assert word in message
    assert "keep" not in message
    assert program.main(["--resume", str(whole[0]), "--config", "tiny"]) == 2
    assert "num_layers: 1 -> 2" in capsys.readouterr().err


def test_a_resumed_run_refuses_another_text(
    whole: Tuple[Path, List[float]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    other = tmp_path / "other.txt"
    other.write_text("Another text. " * 100, encoding="utf-8")
    assert program.main(["--resume", str(whole[0]), "--data", str(other)]) == 2
    assert "trained on another text" in capsys.readouterr().err


def test_a_folder_with_a_run_in_it_is_not_written_over(
    whole: Tuple[Path, List[float]], capsys: pytest.CaptureFixture[str]
) -> None:
    train(whole[0], status=2)
    assert "holds checkpoints up to step-00000024" in capsys.readouterr().err
    assert program.main(["--resume", str(whole[0] / "step-00000016.safetensors")]) == 2
    assert "holds checkpoints up to step-00000024" in capsys.readouterr().err
    Path("runs/tiny").mkdir(parents=True)
    assert program.output_folder(program.plan([])) == Path("runs/tiny-2")


def test_a_run_goes_on_in_another_folder(whole: Tuple[Path, List[float]], tmp_path: Path) -> None:
    middle = whole[0] / "step-00000016.safetensors"
    assert program.main(["--resume", str(middle), "--output", str(tmp_path / "new"), "--log_every", "1"]) == 0
    assert column(tmp_path / "new") == whole[1][16:]


def test_pynative_mode_gives_the_losses_of_graph_mode(whole: Tuple[Path, List[float]], tmp_path: Path) -> None:
    pynative = train(tmp_path / "run", "--stop_at", 8, "--mode", "pynative")
    assert pynative == pytest.approx(whole[1][:8], abs=1e-4)


@pytest.mark.parametrize("residual", ["plain", "unconstrained"])
def test_every_residual_starts_with_the_same_loss(
    whole: Tuple[Path, List[float]], residual: str, tmp_path: Path
) -> None:
    assert train(tmp_path / "run", "--stop_at", 2, "--residual", residual)[0] == pytest.approx(whole[1][0], rel=1e-4)


def test_the_streams_are_not_copies_of_each_other(whole: Tuple[Path, List[float]]) -> None:
    """Were they, every stream's share in h_pre would get the same gradient, and h_res would have nothing to mix."""
    mean = checkpoint.load(whole[0]).arrays["optimizer.mean.blocks.1.pre.bias"][:4]
    assert np.ptp(mean) / np.abs(mean).max() > 0.1


def test_parts_of_a_batch_give_the_losses_of_the_batch(whole: Tuple[Path, List[float]], tmp_path: Path) -> None:
    parts = train(tmp_path / "run", "--stop_at", 6, "--accumulation", 4)
    assert parts == pytest.approx(whole[1][:6], abs=1e-4)


def test_float16_scales_its_loss_and_leaves_out_a_step_that_overflows(
    whole: Tuple[Path, List[float]], tmp_path: Path
) -> None:
    losses = train(tmp_path / "run", "--stop_at", 8, "--dtype", "float16", "--loss_scale", 2**20)
    scales, rates = column(tmp_path / "run", "loss_scale"), column(tmp_path / "run", "learning_rate")
    skipped = sum(after < before for before, after in zip([2.0**20, *scales], scales))
    assert 0 < skipped < 8
    assert rates == pytest.approx([4e-3 * max(1, step + 1 - skipped) / 6 for step in range(8)], rel=1e-5)
    assert losses[-1] < losses[0]
    assert losses[0] == pytest.approx(whole[1][0], abs=5e-3)


def test_float16_goes_on_to_the_bit(tmp_path: Path) -> None:
    flags = ("--dtype", "float16", "--loss_scale", 2**16, "--loss_scale_window", 3)
    together = train(tmp_path / "whole", "--stop_at", 9, *flags)
    train(tmp_path / "run", "--stop_at", 5, *flags)
    assert resume(tmp_path / "run", "--stop_at", 9) == together
    assert column(tmp_path / "run", "loss_scale") == column(tmp_path / "whole", "loss_scale")


def test_a_loss_that_is_not_finite_ends_the_run_before_it_is_saved(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    train(tmp_path / "run", "--learning_rate", "1e30", "--save_every", "1", "--log_every", "5", status=1)
    message = capsys.readouterr().err
    assert "the training has diverged" in message
    last = checkpoint.load(tmp_path / "run")
    assert str(last.path) in message
    assert all(np.isfinite(array).all() for name, array in last.arrays.items() if name.startswith("network"))


def test_evaluate_generate_and_export(
    whole: Tuple[Path, List[float]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = str(whole[0])
    assert evaluate.main([folder]) == 0
    (loss,) = re.findall(r"([\d.]+) nats", capsys.readouterr().out)
    assert float(loss) == pytest.approx(float(read_metrics(whole[0] / "metrics.csv")[-1]["validation_loss"]), abs=1e-4)

    texts = []
    for draw in ("1", "1", "2"):
        assert generate.main([folder, "--prompt", "The ", "--length", "20", "--draw", draw]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]
    assert texts[0].startswith("The ")

    assert export.main([folder, "--file", str(tmp_path / "net.mindir")]) == 0
    assert (tmp_path / "net.mindir").stat().st_size > 100_000
    assert export.main([folder, "--file", str(tmp_path / "net.onnx")]) == 2
    assert "ends in .mindir" in capsys.readouterr().err


def _start(folder: Path, *flags: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command("train", *SHORT, "--steps", "5000", "--output", "run", *flags),
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_ends_the_step_saves_and_says_how_to_go_on(number: signal.Signals, tmp_path: Path) -> None:
    child = _start(tmp_path)
    metrics = tmp_path / "run" / "metrics.csv"
    limit = time.monotonic() + 300
    while not (metrics.exists() and len(read_metrics(metrics)) >= 3):
        assert child.poll() is None, child.communicate()[1]
        assert time.monotonic() < limit
        time.sleep(0.02)
    child.send_signal(number)
    output, errors = child.communicate(timeout=120)
    # MindSpore turns a SIGINT that comes while a graph runs into a SIGTERM
    assert child.returncode in (128 + number, 128 + signal.SIGTERM)
    assert "Traceback" not in errors
    losses = column(tmp_path / "run")
    assert checkpoint.load(tmp_path / "run").facts["step"] == len(losses) >= 3
    (line,) = [line for line in output.splitlines() if line.startswith("to go on: ")]
    assert line == "to go on: python -m model_zoo_example.train --resume run"
    if number == signal.SIGINT:
        return
    end = str(len(losses) + 3)
    call(tmp_path, "train", "--resume", "run", "--stop_at", end)
    assert program.main([*SHORT, "--steps", "5000", "--output", "alone", "--stop_at", end]) == 0
    assert column(tmp_path / "run") == column(Path("alone"))


def test_a_signal_before_the_first_step_is_no_accident(tmp_path: Path) -> None:
    child = _start(tmp_path)
    assert child.stdout is not None
    child.stdout.readline()
    child.send_signal(signal.SIGINT)
    output, errors = child.communicate(timeout=120)
    assert child.returncode in (128 + signal.SIGINT, 128 + signal.SIGTERM)
    assert "Traceback" not in errors
    assert "stopped before the first step" in output or "stopped after step 1 " in output


def test_a_full_disk_ends_the_run_with_a_sentence(tmp_path: Path) -> None:
    short = " ".join(command("train", *SHORT, *STEPS, "--output", "run", "--save_every", "4"))
    done = subprocess.run(
        ["bash", "-c", f"ulimit -f 100 && exec {short}"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "train: cannot write run/step-00000004.safetensors: " in done.stderr
    assert "File too large" in done.stderr
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["metrics.csv"]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


ROW = {"step": 5, "loss": 1.25, "learning_rate": 1e-3, "gradient_norm": 0.5, "tokens_per_second": 1234.0}


def test_a_terminal_gets_a_bar_and_a_file_gets_lines() -> None:
    for stream, expected in ((_Terminal(), "50%"), (io.StringIO(), "step     5/10")):
        progress = Progress(0, 10, 5, stream=stream)
        progress.show({**ROW, "step": 1})
        progress.show(ROW)
        progress.close()
        for words in (expected, "loss 1.25", "1234 tokens/s", "lr 1.00e-03", "grad norm 0.50"):
            assert words in stream.getvalue()
    quiet = io.StringIO()
    progress = Progress(0, 10, 5, quiet=True, stream=quiet)
    progress.show(ROW)
    progress.say("word")
    assert quiet.getvalue() == ""


def test_rows_of_an_interrupted_run_go_and_a_line_cut_short_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    metrics = Metrics(path, 0)
    for step in range(1, 6):
        metrics.write({**ROW, "step": step, "loss": 1 / step})
    path.write_text(path.read_text(encoding="utf-8") + "6,0.1", encoding="utf-8")
    Metrics(path, 3)
    assert [float(row["loss"]) for row in read_metrics(path)] == [1.0, 0.5, 1 / 3]
