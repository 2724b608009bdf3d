"""The example's training: what it computes, and that a run goes on after whatever stopped it."""

from __future__ import annotations

import io
import math
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, List, Tuple

import numpy as np
import pytest

from model_zoo_example import checkpoint, evaluate, export, generate
from model_zoo_example import train as program
from model_zoo_example.progress import Metrics, Progress, read_metrics
from model_zoo_example.trainer import Trainer
from tests.example import SHORT, TIMEOUT, column, command, environment
from tests.launch import unmeasured

STEPS = ("--steps", "24", "--warmup_steps", "6")


def train(output: Path, *flags: Any, status: int = 0) -> List[float]:
    """Train in this process, and return the losses."""
    assert program.main([*SHORT, *STEPS, "--output", str(output), *map(str, flags)]) == status
    return column(output) if status == 0 else []


def resume(path: Path, *flags: Any, status: int = 0) -> None:
    assert program.main(["--resume", str(path), *map(str, flags)]) == status


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Tuple[Path, List[float]]:
    """A run that nothing interrupts, with checkpoints in its warm-up and in its cosine."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return folder, train(folder, "--save_every", 4, "--keep", 6, "--events", "true", "--sample", 5)


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
    expected = [f"step-{step:08d}.safetensors" for step in range(4, 25, 4)]
    assert sorted(path.name for path in whole[0].iterdir()) == ["events", "metrics.csv", *expected]


def _events(path: Path) -> List[Any]:
    """The records of an event file: length, its checksum, a protocol buffer, its checksum."""
    from mindspore.train import summary_pb2

    content, found = path.read_bytes(), []
    while content:
        length = int.from_bytes(content[:8], "little")
        found.append(summary_pb2.Event.FromString(content[12 : 12 + length]))
        content = content[16 + length :]
    return found


def test_event_files_hold_the_numbers_of_the_metrics(whole: Tuple[Path, List[float]]) -> None:
    (path,) = (whole[0] / "events").iterdir()
    events = [event for event in _events(path) if event.HasField("summary")]
    rows = read_metrics(whole[0] / "metrics.csv")
    assert [event.step for event in events] == [int(row.pop("step")) for row in rows]
    for event, row in zip(events, rows):
        here = {value.tag: value.scalar_value for value in event.summary.value}
        assert here == {name: np.float32(number) for name, number in row.items() if number}


def test_a_stopped_run_goes_on_to_the_bit(
    whole: Tuple[Path, List[float]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """From the warm-up, in another folder, into the cosine; from there, in the same folder, to the end."""
    losses, run = whole[1], tmp_path / "run"
    saved_before_waiting: List[Any] = []
    monkeypatch.setattr(
        Trainer, "wait_for_the_others", lambda self: saved_before_waiting.append(checkpoint.newest(run))
    )
    resume(whole[0] / "step-00000004.safetensors", "--output", run, "--stop_at", 13)
    assert column(run) == losses[4:13]
    # msrun kills all as soon as one has ended early; a large checkpoint takes long
    assert saved_before_waiting == [run / "step-00000013.safetensors"]
    resume(run, "--save_every", 7)
    assert column(run) == losses[4:]
    here, there = (checkpoint.load(folder).arrays for folder in (run, whole[0]))
    assert here.keys() == there.keys()
    for name, array in here.items():
        if name.startswith("optimizer.mean_square"):
            # MindSpore's threads treat subnormal numbers now as zero, now not, in each of the 24 steps; beside
            # AdamW's eps they vanish
            np.testing.assert_allclose(array, there[name], rtol=0, atol=24 * np.finfo(np.float32).tiny, err_msg=name)
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
    resume(whole[0] / "step-00000016.safetensors", status=2)
    message = capsys.readouterr().err
    assert "holds checkpoints up to step-00000024" in message
    assert "or remove those that shall not count" in message
    Path("runs/tiny").mkdir(parents=True)
    assert program.output_folder(program.plan([])) == Path("runs/tiny-2")


def test_a_stop_that_lies_behind_is_refused(
    whole: Tuple[Path, List[float]], capsys: pytest.CaptureFixture[str]
) -> None:
    resume(whole[0], "--stop_at", 24, status=2)
    assert "is at step 24 already" in capsys.readouterr().err


def test_a_run_goes_on_without_its_damaged_checkpoint(
    whole: Tuple[Path, List[float]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    good, damaged = (tmp_path / f"step-{step:08d}.safetensors" for step in (8, 12))
    for path in (good, damaged):
        shutil.copy(whole[0] / path.name, path)
    with damaged.open("r+b") as file:
        file.truncate(1000)
    resume(tmp_path, status=1)
    message = capsys.readouterr().err
    assert f"{damaged} is damaged" in message
    assert f"the one before it is {good}" in message
    damaged.unlink()
    assert program.output_folder(program.plan(["--resume", str(tmp_path)])) == tmp_path


def test_pynative_mode_gives_the_losses_of_graph_mode(whole: Tuple[Path, List[float]], tmp_path: Path) -> None:
    pynative = train(tmp_path / "run", "--stop_at", 4, "--mode", "pynative")
    assert pynative == pytest.approx(whole[1][:4], abs=1e-4)


def test_the_streams_are_not_copies_of_each_other(whole: Tuple[Path, List[float]]) -> None:
    """Were they, every stream's share in h_pre would get the same gradient, and h_res would have nothing to mix."""
    mean = checkpoint.load(whole[0]).arrays["optimizer.mean.blocks.1.pre.bias"][:4]
    assert np.ptp(mean) / np.abs(mean).max() > 0.1


def test_parts_of_a_batch_give_the_losses_of_the_batch(whole: Tuple[Path, List[float]], tmp_path: Path) -> None:
    parts = train(tmp_path / "run", "--stop_at", 6, "--accumulation", 4)
    assert parts == pytest.approx(whole[1][:6], abs=1e-4)


def test_float16_scales_its_loss_leaves_out_steps_that_overflow_and_goes_on_to_the_bit(
    whole: Tuple[Path, List[float]], tmp_path: Path
) -> None:
    run, again = tmp_path / "run", tmp_path / "again"
    scaling = ("--dtype", "float16", "--loss_scale", 2**20, "--loss_scale_window", 3)
    losses = train(run, *scaling, "--stop_at", 9, "--save_every", 5)
    scales, rates = column(run, "loss_scale"), column(run, "learning_rate")
    before = [2.0**20, *scales]
    skipped = np.cumsum([after < scale for scale, after in zip(before, scales)])
    assert 0 < skipped[-1] < 8
    assert any(after > scale for scale, after in zip(before, scales))
    assert rates == pytest.approx([4e-3 * max(1, step + 1 - skipped[step]) / 6 for step in range(9)], rel=1e-5)
    assert losses[-1] < losses[0]
    assert losses[0] == pytest.approx(whole[1][0], abs=5e-3)

    resume(run / "step-00000005.safetensors", "--output", again, "--stop_at", 9)
    assert column(again) == losses[5:]
    assert column(again, "loss_scale") == scales[5:]


def test_a_loss_that_is_not_finite_ends_the_run_before_it_is_saved(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flags = ("--residual", "unconstrained", "--learning_rate", "1e30", "--save_every", "1", "--log_every", "5")
    train(tmp_path / "run", *flags, status=1)
    message = capsys.readouterr().err
    assert "the training has diverged" in message
    last = checkpoint.load(tmp_path / "run")
    assert str(last.path) in message
    assert all(np.isfinite(array).all() for name, array in last.arrays.items() if name.startswith("network"))


def test_evaluate_on_another_device_and_in_another_dtype(
    whole: Tuple[Path, List[float]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _, facts, arrays = checkpoint.load(whole[0])
    facts["settings"].update(device="Ascend", dtype="bfloat16")
    checkpoint.save(tmp_path, arrays, facts, 1)
    assert evaluate.main([str(tmp_path), "--device", "CPU"]) == 2
    assert "dtype bfloat16 needs device Ascend" in capsys.readouterr().err
    assert evaluate.main([str(tmp_path), "--device", "CPU", "--dtype", "float32"]) == 0
    (loss,) = re.findall(r"([\d.]+) nats", capsys.readouterr().out)
    assert float(loss) == pytest.approx(float(read_metrics(whole[0] / "metrics.csv")[-1]["validation_loss"]), abs=1e-4)


def test_generate_writes_the_same_for_a_seed(
    whole: Tuple[Path, List[float]], capsys: pytest.CaptureFixture[str]
) -> None:
    texts = []
    for draw in ("1", "1", "2"):
        flags = ("--prompt", "The ", "--length", "20", "--draw", draw, "--mode", "pynative")
        assert generate.main([str(whole[0]), *flags]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]
    assert texts[0].startswith("The ")


def test_an_exported_network_gives_the_same_logits(
    whole: Tuple[Path, List[float]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert export.main([str(whole[0]), "--file", str(tmp_path / "net.mindir")]) == 0
    assert (tmp_path / "net.mindir").stat().st_size > 100_000
    assert export.main([str(whole[0]), "--file", str(tmp_path / "net.onnx")]) == 2
    assert "ends in .mindir" in capsys.readouterr().err


def _start(folder: Path, *flags: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command("train", *flags),
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _interrupted(folder: Path, number: signal.Signals, *flags: str) -> int:
    """Start a run, send it a signal a few steps later, and return the number of steps that it has done."""
    metrics = folder / "run" / "metrics.csv"
    before = len(read_metrics(metrics)) if metrics.exists() else 0
    child = _start(folder, *flags)
    limit = time.monotonic() + 300
    while not (metrics.exists() and len(read_metrics(metrics)) >= before + 3):
        assert child.poll() is None, child.communicate()[1]
        assert time.monotonic() < limit
        time.sleep(0.02)
    child.send_signal(number)
    output, errors = child.communicate(timeout=120)
    # MindSpore turns a SIGINT that comes while a graph runs into a SIGTERM
    assert child.returncode in (128 + number, 128 + signal.SIGTERM)
    assert "Traceback" not in errors
    steps = len(read_metrics(metrics))
    assert checkpoint.load(folder / "run").facts["step"] == steps >= before + 3
    (line,) = [line for line in output.splitlines() if line.startswith("to go on: ")]
    assert line == "to go on: python -m model_zoo_example.train --resume run"
    return steps


FORKED = """
import os, signal, sys, time
from model_zoo_example.interruption import Interruption
read, write = os.pipe()
with Interruption():
    child = os.fork()
    if child == 0:
        os.write(write, b"here")
        time.sleep(10)
        os._exit(1)
    os.read(read, 4)
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
sys.exit(0 if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM else 1)
"""


def test_a_process_that_the_run_forks_ends_with_its_first_signal() -> None:
    """So end those that write event files: one that only noted it would be waited for to no end."""
    assert (
        subprocess.run([sys.executable, "-c", FORKED], env=environment(), check=False, timeout=TIMEOUT).returncode == 0
    )


def test_a_signal_ends_the_step_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    flags = (*SHORT, "--steps", "5000")
    _interrupted(tmp_path, signal.SIGINT, *flags, "--output", "run")
    steps = _interrupted(tmp_path, signal.SIGTERM, "--resume", "run")
    assert program.main([*flags, "--output", "alone", "--stop_at", str(steps)]) == 0
    assert column(tmp_path / "run") == column(Path("alone"))


def test_a_signal_before_the_first_step_is_no_accident(tmp_path: Path) -> None:
    child = _start(tmp_path, *SHORT, "--residual", "plain")
    assert child.stdout is not None
    assert child.stdout.readline().startswith("plain residual")
    child.send_signal(signal.SIGINT)
    output, errors = child.communicate(timeout=120)
    assert child.returncode in (128 + signal.SIGINT, 128 + signal.SIGTERM)
    assert "Traceback" not in errors
    assert "stopped before the first step" in output or "stopped after step 1 " in output


def test_a_full_disk_ends_the_run_with_a_sentence(tmp_path: Path) -> None:
    short = " ".join(command("train", *SHORT, *STEPS, "--output", "run", "--residual", "plain", "--save_every", "2"))
    done = subprocess.run(
        ["bash", "-c", f"ulimit -f 100 && exec {short}"],
        cwd=tmp_path,
        env=unmeasured(environment()),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "train: cannot write run/step-00000002.safetensors: " in done.stderr
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


def test_a_disk_that_fills_up_is_told_by_the_name_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    metrics = Metrics(path, 0)
    before = path.read_text(encoding="utf-8")
    full = Path("/dev/full")  # every write to it fails
    metrics.path = full
    with pytest.raises(OSError, match=r"No space left on device: '/dev/full'"):
        metrics.write({**ROW, "step": 1})
    path.with_suffix(".unfinished").symlink_to(full)
    with pytest.raises(OSError, match=r"No space left on device: '.*/metrics\.csv'"):
        Metrics(path, 0)
    assert [found.name for found in tmp_path.iterdir()] == ["metrics.csv"]
    assert path.read_text(encoding="utf-8") == before
