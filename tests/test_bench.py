"""``python -m ms_mhc bench``: what it reports and what it refuses. Nothing here judges a time."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from ms_mhc.__main__ import main
from ms_mhc.bench import contenders, memory, plot, report
from ms_mhc.bench.command import shape
from ms_mhc.bench.environment import variables
from ms_mhc.bench.measure import Spread, interleaved, ratios
from ms_mhc.bench.run import Plan
from ms_mhc.bench.task import Shape, Task, least_bytes, make_inputs, saved_bytes_per_token

QUICK = ("bench", "--quick", "--shape", "5,3,33", "--rounds", "2", "--threads", "1")
NUMBERS = ("bytes_per_second", "share_of_copy", "operations_per_second", "share_of_product")


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """A run of everything in a process of its own, as users have it."""
    path = tmp_path_factory.mktemp("bench") / "result.json"
    command = [sys.executable, "-m", "ms_mhc", *QUICK, "--json", str(path)]
    environment = {k: v for k, v in os.environ.items() if k not in variables(1)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=900)
    assert done.returncode == 0, done.stderr
    return {"printed": done.stdout, **json.loads(path.read_text())}


def test_every_operator_pass_and_dtype_has_a_row(result):
    found = [(r["operator"], r["passes"], r["dtype"], tuple(r["shape"])) for r in result["rows"]]
    plan = Plan((Shape(5, 3, 33),))
    assert found == [(t.operator, t.passes, t.dtype, (5, 3, 33)) for t in plan.tasks()]
    assert len(found) == 14


def test_rows_hold_numbers_or_the_reason_why_not(result):
    for row in result["rows"]:
        assert row["copy_bytes_per_second"] > 0
        assert row["product_operations_per_second"] > 0
        for name, entry in row["contenders"].items():
            if "missing" in entry:
                assert name != "ours"
                assert entry["missing"]
            else:
                assert all(math.isfinite(entry[number]) and entry[number] > 0 for number in NUMBERS)
                low, median, high = (entry["ratio"][key] for key in ("low", "median", "high"))
                assert 0 < low <= median <= high < math.inf
        assert row["contenders"]["ours"]["ratio"]["median"] == 1
        assert "missing" not in row["contenders"]["composite"]


def test_a_contender_that_lacks_bfloat16_says_so(result):
    row = next(r for r in result["rows"] if (r["operator"], r["passes"], r["dtype"])[1:] == ("both", "bfloat16"))
    autodiff = row["contenders"]["autodiff"]
    assert "ratio" in autodiff or "data type" in autodiff["missing"]


def test_the_printed_report_is_that_of_the_file(result):
    printed = result.pop("printed")
    assert printed.rstrip("\n") == "\n".join(report.lines(result))


def test_pools_do_not_spin_and_threads_are_those_asked_for(result):
    assert result["machine"]["threads"] == 1
    assert result["machine"]["environment"]["OMP_WAIT_POLICY"] == "passive"


@pytest.mark.parametrize("text", ["1024", "1024,4", "0,4,512", "a,b,c", "1024,4,512,8", "-1,4,8", ""])
def test_a_shape_that_is_none_is_refused_with_an_example(text, capsys):
    with pytest.raises(SystemExit):
        main(["bench", f"--shape={text}"])
    assert f"{text!r} is not a shape; give tokens, streams and hidden size" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--threads=0", "--rounds=x"])
def test_counts_below_one_are_refused(option, capsys):
    with pytest.raises(SystemExit):
        main(["bench", option])
    assert "is not a whole number of at least 1" in capsys.readouterr().err


def test_a_file_in_no_folder_is_refused_before_anything_is_measured(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["bench", "--json", str(tmp_path / "nowhere" / "result.json")])
    assert "does not exist" in capsys.readouterr().err


def test_a_picture_without_matplotlib_is_refused_with_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(plot, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"pip install 'ms-mhc\[bench\]'"):
        main(["bench", "--plot", str(tmp_path / "result.png")])


def test_a_picture_shows_a_result(tmp_path):
    pytest.importorskip("matplotlib")
    spread = {"low": 1.0, "median": 2.0, "high": 3.0}
    entries = {"ours": {"ratio": spread}, "other": {"ratio": spread}, "absent": {"missing": "a reason"}}
    row = {"operator": "mhc_pre", "passes": "both", "dtype": "float32", "shape": [5, 3, 33], "contenders": entries}
    curve = {
        "operator": "mhc_pre",
        "dtype": "float32",
        "shape": [None, 3, 33],
        "tokens": [1, 2],
        "seconds": [spread] * 2,
    }
    plot.save({"rows": [row], "scaling": [curve]}, tmp_path / "result.png")
    assert (tmp_path / "result.png").stat().st_size > 1000


def test_shapes_are_read_as_tokens_streams_hidden_size():
    assert shape("1024,4,512") == Shape(tokens=1024, streams=4, hidden=512)


def test_a_step_with_other_results_is_found():
    step = contenders.Step(lambda: [1.0], lambda _: [make_inputs(TASK).tensors["x"]])
    other = replace(step, arrays=lambda _: [make_inputs(TASK, seed=1).tensors["x"]])
    assert contenders.disagreement(step, step) == 0
    assert contenders.disagreement(step, other) > 0.1


def test_every_step_runs_once_in_each_round():
    calls = []
    times = interleaved({name: lambda name=name: calls.append(name) for name in "abc"}, rounds=4, warm_up=1)
    assert {name: len(values) for name, values in times.items()} == {"a": 4, "b": 4, "c": 4}
    assert all(sorted(calls[3 * i : 3 * i + 3]) == ["a", "b", "c"] for i in range(5))


def test_ratios_are_taken_round_by_round():
    assert ratios({"ours": [1.0, 10.0], "other": [2.0, 20.0]}, "other", "ours") == Spread(2.0, 2.0, 2.0)


TASK = Task("mhc_pre", "both", "float32", Shape(5, 3, 33))


def test_least_bytes_count_each_input_and_output_once():
    t, n, d, f = 5, 3, 33, 15
    x, phi, small = t * n * d, f * n * d, 3 + f
    outputs = t * (d + n + n * n + 1 + f + n)
    forward = x + phi + small + outputs
    backward = x + phi + 3 + t * (d + n + n * n) + t * (1 + f + n + n) + x + phi + small
    assert least_bytes(replace(TASK, passes="forward")) == 4 * forward
    assert least_bytes(TASK) == 4 * (forward + backward)


def test_what_mhc_pre_saves_is_what_the_design_says():
    n = TASK.shape.streams
    assert saved_bytes_per_token(TASK) == 4 * (n * n + 4 * n + 1)
    assert saved_bytes_per_token(replace(TASK, passes="forward")) is None


@pytest.mark.skipif(memory.missing() is not None, reason="peak memory cannot be measured here")
def test_peak_memory_holds_at_least_the_gradient_of_x():
    task = replace(TASK, shape=Shape(2048, 4, 512))
    extra = memory.peak_extra(task, "ours")
    assert extra is not None
    assert extra > 0.9 * make_inputs(task).tensors["x"].nbytes
