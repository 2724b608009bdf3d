"""``python -m ms_mhc bench``: what it reports and what it refuses. Nothing here judges a time."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest

from ms_mhc import reference
from ms_mhc.__main__ import main
from ms_mhc.bench import contenders, environment, memory, mindspore_steps, plot, report, run
from ms_mhc.bench.command import TOKENS, shape
from ms_mhc.bench.contenders import Contender, Step
from ms_mhc.bench.environment import variables
from ms_mhc.bench.measure import Spread, interleaved, ratios
from ms_mhc.bench.run import Plan
from ms_mhc.bench.task import EPS, NUM_ITERS, Shape, Task, least_bytes, make_inputs, saved_bytes_per_token

CONTENDERS = Path(__file__).resolve().parents[1] / "benchmarks" / "contenders"
QUICK = ("--quick", "--shape", "5,3,33", "--rounds", "2", "--threads", "1")
NUMBERS = ("bytes_per_second", "share_of_copy", "operations_per_second", "share_of_product")


def start(*words: str) -> subprocess.Popen[str]:
    """The command in a process of its own, as users have it."""
    command = [sys.executable, "-m", "ms_mhc", "bench", *words]
    environment = {k: v for k, v in os.environ.items() if k not in variables(1)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def finished(path: Path, *words: str):
    process = start(*QUICK, *words, "--json", str(path))
    printed, errors = process.communicate(timeout=900)
    assert process.returncode == 0, errors
    return {"printed": printed, "words": words, **json.loads(path.read_text())}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """A run of our own backends."""
    return finished(tmp_path_factory.mktemp("bench") / "result.json")


def test_every_operator_pass_and_dtype_has_a_row(result):
    found = [(r["operator"], r["passes"], r["dtype"], tuple(r["shape"])) for r in result["rows"]]
    plan = Plan((Shape(5, 3, 33),))
    assert found == [(t.operator, t.passes, t.dtype, (5, 3, 33)) for t in plan.tasks()]
    assert len(found) == result["planned"] == 14
    assert result["complete"]


def assert_rows_are_sound(rows):
    for row in rows:
        assert row["copy_bytes_per_second"] > 0
        assert row["product_operations_per_second"] > 0
        for name, entry in row["contenders"].items():
            if "missing" in entry:
                assert name not in ("ours", "composite")
                assert entry["missing"]
            else:
                assert all(math.isfinite(entry[number]) and entry[number] > 0 for number in NUMBERS)
                low, median, high = (entry["ratio"][key] for key in ("low", "median", "high"))
                assert 0 < low <= median <= high < math.inf
        assert row["contenders"]["ours"]["ratio"]["median"] == 1


def test_rows_hold_numbers(result):
    assert_rows_are_sound(result["rows"])
    assert all(list(row["contenders"]) == ["ours", "composite"] for row in result["rows"])


def test_every_row_says_command_versions_and_threads(result):
    for row in result["rows"]:
        assert row["command"].startswith("python -m ms_mhc bench --quick --shape 5,3,33 --rounds 2 --threads 1 --json")
        assert {"ms-mhc", "mindspore", "numpy"} <= set(row["versions"])
        assert row["threads"] == 1


def test_the_printed_rows_and_report_are_those_of_the_file(result):
    rows = "".join(report.line(row) + "\n" for row in result["rows"])
    assert result["printed"] == rows + "\n" + "\n".join(report.lines(result)) + "\n"


def test_the_repositorys_contenders_agree_with_ours(tmp_path):
    """One operator with all of them; a contender with other results would be refused."""
    words = ("--only", "mhc_post", "--dtype", "float32", "--against", str(CONTENDERS))
    rows = finished(tmp_path / "result.json", *words)["rows"]
    assert_rows_are_sound(rows)
    for row in rows:
        entries = row["contenders"]
        assert set(entries) == {"ours", "composite", "kernel", "autodiff", "eager", "torch_eager", "torch_compile"}
        for name in ("kernel", "autodiff", "eager"):
            assert "ratio" in entries[name], entries[name]
        for name in ("torch_eager", "torch_compile"):
            assert "ratio" in entries[name] or entries[name]["missing"] == "torch is not installed"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_run_leaves_its_rows(tmp_path, number):
    path = tmp_path / "result.json"
    process = start(*QUICK, "--only", "mhc_sinkhorn", "--only", "mhc_post", "--rounds", "100", "--json", str(path))
    try:
        for _ in range(15000):  # five minutes on a machine that does much else
            if path.exists() or process.poll() is not None:
                break
            time.sleep(0.02)
        process.send_signal(number)
        printed, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    left = json.loads(path.read_text())
    assert 1 <= len(left["rows"]) < left["planned"] == 6, errors
    assert not left["complete"]
    assert_rows_are_sound(left["rows"])
    assert report.line(left["rows"][0]) in printed
    if number == signal.SIGKILL:
        assert process.returncode == -number
        return
    # MindSpore turns a SIGINT that arrives while it compiles into a SIGTERM
    assert process.returncode in (128 + signal.SIGINT, 128 + signal.SIGTERM)
    assert f"INTERRUPTED after {len(left['rows'])} of 6 rows" in printed
    assert "Time of the others divided by ours" in printed


def test_pools_do_not_spin_and_threads_are_those_asked_for(result):
    assert result["machine"]["threads"] == 1
    assert result["machine"]["environment"]["OMP_WAIT_POLICY"] == "passive"


@pytest.mark.parametrize("text", ["1024", "1024,4", "0,4,512", "a,b,c", "1024,4,512,8", "-1,4,8", ""])
def test_a_shape_that_is_none_is_refused_with_an_example(text, capsys):
    with pytest.raises(SystemExit):
        main(["bench", f"--shape={text}"])
    assert f"{text!r} is not a shape; give tokens, streams and hidden size" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--threads=0", "--rounds=x", "--calls=²"])
def test_counts_below_one_are_refused(option, capsys):
    with pytest.raises(SystemExit):
        main(["bench", option])
    assert "is not a whole number of at least 1" in capsys.readouterr().err


def test_a_file_in_no_folder_is_refused_before_anything_is_measured(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["bench", "--json", str(tmp_path / "nowhere" / "result.json")])
    assert "does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--json", "."), "'.' is there and is not a file"),
        (("--against", "nowhere.py"), "'nowhere.py' does not exist; give a file of contenders or a folder of them"),
    ],
)
def test_a_path_of_another_kind_is_refused(words, said, capsys):
    with pytest.raises(SystemExit):
        main(["bench", *words])
    assert said in capsys.readouterr().err


def test_where_peak_memory_cannot_be_measured_the_option_without_it_is_named(monkeypatch):
    monkeypatch.setattr(memory.Path, "exists", lambda _: False)
    with pytest.raises(SystemExit, match="has no /proc/self/clear_refs; add --no-memory"):
        main(["bench"])


def test_a_folder_that_takes_no_files_is_refused_before_anything_is_measured(capsys):
    for option in ("--json", "--plot"):
        with pytest.raises(SystemExit):
            main(["bench", option, "/proc/result"])
        assert f"argument {option}: '/proc/result' cannot be written: " in capsys.readouterr().err


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


def fixed(*arrays):
    """A contender that returns these, whatever it is asked."""
    return lambda task, inputs: Step(lambda: None, lambda _: [np.asarray(a, np.float32) for a in arrays])


def row_of(**makes):
    """The row of one task with contenders that are made so."""
    field = [Contender(name, make) for name, make in makes.items()]
    plan = Plan((TASK.shape,), rounds=2, memory=False, copy_megabytes=1, product_size=16)
    return run.row(TASK, plan, field)


def test_a_step_with_other_results_is_found():
    step = Step(lambda: [1.0], lambda _: [make_inputs(TASK).tensors["x"]])
    other = replace(step, arrays=lambda _: [make_inputs(TASK, seed=1).tensors["x"]])
    assert contenders.disagreement(step, step) == 0
    assert contenders.disagreement(step, other) > 0.1


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        (([1.0, math.nan],), "result 0 holds 1 values that are NaN or infinite"),
        (([math.inf, math.inf],), "result 0 holds 2 values that are NaN or infinite"),
        (([1.0, 2.1],), "its results differ from ours by 5.0e-02 of the largest entry"),
    ],
)
def test_a_contender_with_wrong_numbers_is_refused_by_name_and_gets_no_time(arrays, said):
    row = row_of(ours=fixed([1.0, 2.0]), same=fixed([1.0, 2.0]), other=fixed(*arrays))
    assert row["contenders"]["other"] == {"refused": said}
    assert "ratio" in row["contenders"]["same"]
    assert "other refused" in report.line(row)
    machine = {"versions": {}, "processor": "", "threads": 1, "load_at_start": 0.0}
    whole = {"machine": machine, "command": "", "rounds": 2, "complete": True, "memory": False, "planned": 1}
    printed = report.lines({**whole, "rows": [row], "scaling": []})
    assert f"- other: {said} (mhc_pre forward + backward float32 5,3,33)" in printed


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        (([1.0, 2.0], [1.0]), "RuntimeError: 2 results instead of 1"),
        (([[1.0, 2.0]],), r"RuntimeError: results of shape (1, 2) instead of (2,)"),
    ],
)
def test_a_contender_with_other_shapes_is_missing(arrays, said):
    row = row_of(ours=fixed([1.0, 2.0]), other=fixed(*arrays))
    assert row["contenders"]["other"] == {"missing": said}


def test_a_contender_whose_package_is_not_here_is_missing_by_its_name():
    assert Contender("other", fixed([1.0]), "no-such-package").missing == "no-such-package is not installed"
    assert Contender("other", fixed([1.0]), "numpy").missing is None


def test_a_contender_that_gives_nan_at_its_second_call_is_missing():
    values = iter([1.0, math.nan])
    row = row_of(
        ours=fixed([1.0]), other=lambda task, inputs: Step(lambda: [next(values)], lambda out: [np.array(out)])
    )
    assert row["contenders"]["other"] == {"missing": "RuntimeError: result 0 holds 1 values that are NaN or infinite"}


def test_where_ours_fails_nobody_is_timed_and_the_row_says_so():
    row = row_of(ours=fixed([math.nan]), other=fixed([math.nan]))
    assert row["contenders"]["ours"] == {"refused": "result 0 holds 1 values that are NaN or infinite"}
    assert row["contenders"]["other"] == {"missing": "there is nothing to compare with"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("CONTENDERS = ()", "defines no CONTENDERS"),
        ("raise OSError('no')", "cannot be loaded: OSError: no"),
        (
            "from ms_mhc.bench.contenders import Contender\nCONTENDERS = [Contender('ours', None)]",
            "there is more than one contender called ours",
        ),
    ],
)
def test_a_file_without_contenders_is_refused(tmp_path, text, said):
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(ValueError, match=said):
        contenders.contenders([file])
    with pytest.raises(ValueError, match="is not a Python file"):
        contenders.contenders([file.rename(file.with_suffix(".txt"))])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"has no \.py file in it"):
        contenders.contenders([tmp_path / "empty"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_measured_connection_is_the_connection_alone(dtype):
    """Its branch hands h_in on, so no cast and no product of the branch is in the time."""
    task = replace(TASK, operator="hyper_connection", passes="forward", dtype=dtype)
    inputs = make_inputs(task)
    step = mindspore_steps.make(task, inputs, "composite")
    (got,) = step.arrays(step.run())
    h_in, h_post, h_res, *_ = reference.mhc_pre(
        inputs.tensors["x"], *inputs.parameters.values(), norm_eps=EPS, hc_eps=EPS
    )
    mixed = reference.mhc_sinkhorn(h_res, num_iters=NUM_ITERS, eps=EPS)
    want = reference.mhc_post(inputs.tensors["x"], mixed, h_in, h_post)
    assert np.abs(got - want).max() < {"float32": 1e-5, "bfloat16": 2e-2}[dtype] * np.abs(want).max()


@pytest.fixture
def here(monkeypatch):
    """The whole command in this process, with contenders that compute nothing."""
    for name, value in variables(1).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(environment, "use", lambda threads: None)
    measured = {"ours": (3 * 2**20, ""), "other": (None, "status 1: no memory")}
    monkeypatch.setattr(run.memory, "peak_extra", lambda task, name, against: measured[name])
    monkeypatch.setattr(run, "make_inputs", lambda task: make_inputs(replace(task, shape=Shape(1, 1, 1))))

    def start(*words, ours=None):
        field = (Contender("ours", ours or fixed([1.0])), Contender("other", fixed([1.0])))
        monkeypatch.setattr(run, "contenders", lambda against=(): field)
        return main(["bench", "--threads", "1", "--rounds", "1", "--only", "mhc_post", "--dtype", "float32", *words])

    return start


def test_the_whole_report_of_rows_memory_and_time_against_tokens(here, tmp_path, capsys):
    path = tmp_path / "result.json"
    words = ("--shape", "5,3,33", "--json", str(path), "--scaling")
    assert here(*words) == 0
    printed, errors = capsys.readouterr()
    result = json.loads(path.read_text())
    assert result["complete"]
    assert [row["contenders"]["ours"]["peak_extra_bytes"] for row in result["rows"]] == [3 * 2**20] * 2
    assert [row["contenders"]["other"]["peak_extra_missing"] for row in result["rows"]] == ["status 1: no memory"] * 2
    (curve,) = result["scaling"]
    assert curve["tokens"] == list(TOKENS)
    assert "mhc_post | forward            | float32 | 5,3,33 | 3.0  | -     |" in printed
    assert "Peak memory missing:\n\n- other: status 1: no memory (mhc_post forward float32 5,3,33; " in printed
    per_token = 1e6 * curve["seconds"][0]["median"] / 256
    assert f"| mhc_post | float32 | 256: {per_token:.3f}, 1024: " in printed
    assert "time against T: mhc_post" in errors


def test_where_ours_fails_the_command_says_so_with_its_status(here, capsys):
    def fails(task, inputs):
        raise RuntimeError("no kernel\n----\nfor this")

    assert here("--quick", "--scaling", ours=fails) == 1
    printed, errors = capsys.readouterr()
    assert "- ours: RuntimeError: no kernel for this (mhc_post forward float32 256,4,64; " in printed
    assert "mhc_post both float32 256,4,64: left out, RuntimeError: no kernel for this" in errors


def test_a_picture_is_drawn_of_what_there_is(here, tmp_path):
    pytest.importorskip("matplotlib")
    assert here("--quick", "--plot", str(tmp_path / "result.png")) == 0
    assert (tmp_path / "result.png").stat().st_size > 1000


def test_a_file_that_is_no_contender_ends_the_command_before_anything_is_measured(here, tmp_path):
    (tmp_path / "mine.py").write_text("CONTENDERS = ()")
    with pytest.raises(SystemExit, match=r"^ms_mhc bench: .* defines no CONTENDERS"):
        here("--against", str(tmp_path / "mine.py"))


def test_tokens_beyond_the_memory_are_left_out(here, monkeypatch, capsys):
    task = Task("mhc_post", "both", "float32", Shape(256, 4, 64))
    room = 2 * least_bytes(replace(task, shape=Shape(1024, 4, 64)))  # three quarters of it: for 256 and 1024 tokens
    monkeypatch.setattr(run, "available_bytes", lambda: room)
    assert here("--quick", "--scaling") == 0
    assert "mhc_post both float32 4096,4,64: left out, too little memory" in capsys.readouterr().err


def test_time_per_token_is_compared_over_a_factor_of_16(monkeypatch, here):
    now = [0.0]

    def ours(task, inputs):
        def step():
            now[0] += task.shape.tokens * (1e-6 if task.shape.tokens < 65536 else 3e-6)

        return Step(step, lambda _: [])

    monkeypatch.setattr("ms_mhc.bench.measure.time.perf_counter", lambda: now[0])
    monkeypatch.setattr(run, "contenders", lambda: (Contender("ours", ours),))
    found = run.scaling("mhc_sinkhorn", Plan((Shape(5, 3, 33),), dtypes=("bfloat16",), tokens=(4096, 65536)), print)
    assert found["time_per_token_65536_over_4096"] == pytest.approx(3.0)
    assert found["dtype"] == "float32"
    assert [spread["median"] for spread in found["seconds"]] == pytest.approx([4096e-6, 3 * 65536e-6])


def test_without_the_files_of_linux_the_processor_has_a_name_all_the_same(monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "Path", lambda _: tmp_path / "nothing")
    monkeypatch.setattr(environment.platform, "processor", lambda: "a processor")
    assert environment.describe(1)["processor"] == "a processor"


@pytest.mark.parametrize("operator", ["mhc_pre", "mhc_post", "mhc_sinkhorn"])
def test_steps_that_are_called_eagerly_give_the_numbers_of_the_reference(operator):
    task = replace(TASK, operator=operator, passes="both" if operator == "mhc_post" else "forward")
    inputs = make_inputs(task)
    step = mindspore_steps.make(task, inputs, "auto", eagerly=True)
    found = step.arrays(step.run())
    given = inputs.tensors.values()
    if operator == "mhc_post":
        want = reference.mhc_post_backward(*inputs.cotangents, *given)
    elif operator == "mhc_pre":
        want = reference.mhc_pre(*given, norm_eps=EPS, hc_eps=EPS)[:3]
    else:
        want = [reference.mhc_sinkhorn(*given, num_iters=NUM_ITERS, eps=EPS)]
    assert len(found) == len(want)
    for got, right in zip(found, want):
        np.testing.assert_allclose(got, right, rtol=1e-4, atol=1e-5)
    assert ms.get_context("mode") == ms.GRAPH_MODE


def test_one_round_has_no_quartiles():
    assert Spread.of([2.0]) == Spread(2.0, 2.0, 2.0)


def test_every_step_runs_once_in_each_round():
    calls = []
    times = interleaved({name: lambda name=name: calls.append(name) for name in "abc"}, rounds=4, warm_up=1)
    assert {name: len(values) for name, values in times.items()} == {"a": 4, "b": 4, "c": 4}
    assert all(sorted(calls[3 * i : 3 * i + 3]) == ["a", "b", "c"] for i in range(5))


def test_calls_in_a_row_give_their_mean(monkeypatch):
    now, calls = [0.0], []
    monkeypatch.setattr("ms_mhc.bench.measure.time.perf_counter", lambda: now[0])

    def step(name, seconds):
        calls.append(name)
        now[0] += seconds

    steps = {"a": lambda: step("a", 1.0), "b": lambda: step("b", 3.0)}
    times = interleaved(steps, rounds=2, warm_up=0, calls=4)
    assert times == {"a": [1.0, 1.0], "b": [3.0, 3.0]}
    assert sorted("".join(calls).replace("aaaa", "A").replace("bbbb", "B")) == ["A", "A", "B", "B"]


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
    extra, said = memory.peak_extra(task, "ours")
    assert extra is not None, said
    assert extra > 0.9 * make_inputs(task).tensors["x"].nbytes


def test_peak_memory_that_cannot_be_measured_has_a_reason():
    extra, said = memory.peak_extra(TASK, "nobody")
    assert extra is None
    assert said.startswith("status 1: ")
