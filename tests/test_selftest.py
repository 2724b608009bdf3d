"""``python -m ms_mhc selftest``: which cases it takes, what it does with errors, and what it writes."""

from __future__ import annotations

import errno
import getpass
import itertools
import json
import math
import os
import socket
import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any, Dict, List

import mindspore as ms
import numpy as np
import pytest

from ms_mhc import strict_json
from ms_mhc.backends import registry
from ms_mhc.backends.registry import Job
from ms_mhc.selftest import machine, networks, programs, run
from ms_mhc.selftest.covering import covering, pairs, possible_pairs
from ms_mhc.selftest.machine import WAYS, Machine
from ms_mhc.selftest.programs import PROGRAMS, Program
from ms_mhc.selftest.report import Report, reason, without_names

FACTORS = {"a": (1, 2, 3), "b": ("x", "y"), "c": (True, False), "d": (0.1, 0.2, 0.3, 0.4)}


def all_pairs(factors: Dict[str, Any], allowed: Any = lambda case: True) -> set:
    """By brute force over every case: the definition."""
    found = set()
    for values in itertools.product(*factors.values()):
        case = dict(zip(factors, values))
        if allowed(case):
            found |= pairs(case)
    return found


def test_covering_array_holds_all_pairs_in_few_cases() -> None:
    cases = covering(FACTORS)
    assert set().union(*map(pairs, cases)) == all_pairs(FACTORS)
    assert len(cases) <= 16  # at least 3 * 4
    assert covering(FACTORS) == cases


def test_covering_array_with_forbidden_cases_holds_every_pair_that_is_possible() -> None:
    def allowed(case: Dict[str, Any]) -> bool:
        return not (case["a"] == 1 and case["b"] == "x") and not (case["c"] and case["d"] > 0.25 and case["a"] > 1)

    cases = covering(FACTORS, allowed)
    assert all(map(allowed, cases))
    assert set().union(*map(pairs, cases)) == all_pairs(FACTORS, allowed) == set(possible_pairs(FACTORS, allowed))


def here(quick: bool = False, ways: Any = WAYS) -> Machine:
    return replace(machine.describe(ways, "auto", quick), most_elements=2**24)


def cannot_be_judged(program: Program, pair: Dict[str, Any]) -> bool:
    """The fused kernel of the vendor with a large hc_eps."""
    large = pair.get("hc_eps") == 1e-2 or pair.get("sinkhorn_eps") == 1e-3
    return program.operator == "mhc_pre_sinkhorn" and pair.get("precision") == "hf32" and large


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.operator)
def test_cases_cover_every_pair_of_options(program: Program, quick: bool) -> None:
    on = here(quick)
    factors = {"way": on.ways, "backend": on.backends, **program.factors(on)}
    cases = run.cases(program, on)
    covered = set().union(*map(pairs, cases))
    size = ("tokens", "num_streams", "hidden_size")
    backends = {b.name: b.refusal(Job(program.operator, 4, 128)) for b in registry.backends()}
    factors["backend"] = tuple(name for name in factors["backend"] if backends.get(name) is None)
    assert {"auto", "composite"} <= set(factors["backend"])
    for one, other in itertools.combinations(factors, 2):
        for values in itertools.product(factors[one], factors[other]):
            pair = dict(zip((one, other), values))
            smallest = {name: min(factors[name]) for name in size if name in factors}
            fits = on.fits({**smallest, **{k: v for k, v in pair.items() if k in size}})
            if fits and not cannot_be_judged(program, pair):
                assert frozenset(pair.items()) in covered, pair
    assert len(cases) <= 60


def test_cases_reach_the_sizes_of_the_vendors_tilings() -> None:
    cases = run.cases(PROGRAMS[0], here())
    assert {case["num_streams"] for case in cases} == {4, 6, 8}
    assert max(case["tokens"] for case in cases) == 8192
    assert max(case["hidden_size"] for case in cases) == 16384
    assert any(case["tokens"] % 2 and case["tokens"] > 4000 for case in cases)
    small = replace(here(), most_elements=2**17)
    assert max(c["tokens"] * c["num_streams"] * c["hidden_size"] for c in run.cases(PROGRAMS[0], small)) <= 2**17
    assert run.left_out(PROGRAMS[0], small) == ["tokens=1024", "tokens=4095", "tokens=8192"]


def fake(name: str, compare: Any) -> Program:
    return Program(name, lambda on: {"num_streams": (4,), "tokens": (1,), "num_iters": (1,)}, compare)


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_check_networks", lambda report, on, backend: None)
    monkeypatch.setattr(run, "_measure", lambda report, on, backend: None)


def boom(case: Dict[str, Any]) -> Dict[str, float]:
    if case["way"] == "jit":
        raise RuntimeError("the kernel failed\n- - - -\nin /home/somebody/work/mindspore/op.py:3")
    return {"h_in": 0.5, "grad_x": math.nan if case["way"] == "eager" else 0.1}


def test_it_goes_on_after_an_error_and_counts_it(monkeypatch: pytest.MonkeyPatch, quiet: None, tmp_path: Path) -> None:
    monkeypatch.setattr(run, "PROGRAMS", (fake("mhc_sinkhorn", boom), fake("mhc_sinkhorn", lambda case: {"out": 0.0})))
    said: List[str] = []
    failures = run.run(said.append, backend="composite", file=tmp_path / "report.json")
    assert failures == 2
    lines = "\n".join(said)
    assert lines.count("  ok    mhc_sinkhorn") == 4
    assert "ERROR mhc_sinkhorn way=jit" in lines
    assert "RuntimeError: the kernel failed in .../op.py:3" in lines
    assert "WRONG mhc_sinkhorn way=eager" in lines
    assert "wrong: grad_x" in lines
    assert said[-1] == "2 checks FAILED"
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["complete"]
    assert [check["status"] for check in report["checks"]] == ["ok", "error", "wrong", "ok", "ok", "ok"]
    assert report["checks"][2]["ratios"] == {"h_in": 0.5, "grad_x": "NaN"}


def test_exit_status_is_one_after_a_failure(monkeypatch: pytest.MonkeyPatch, quiet: None) -> None:
    from ms_mhc.__main__ import main

    monkeypatch.setattr(run, "PROGRAMS", (fake("mhc_sinkhorn", boom),))
    assert main(["selftest", "--backend", "composite"]) == 1
    assert main(["selftest", "--backend", "composite", "--mode", "graph"]) == 0


def test_the_report_says_what_was_running_when_the_process_died(
    monkeypatch: pytest.MonkeyPatch, quiet: None, tmp_path: Path
) -> None:
    file = tmp_path / "report.json"

    def killed(case: Dict[str, Any]) -> Dict[str, float]:
        if case["way"] == "jit":
            raise KeyboardInterrupt
        return {"out": 0.0}

    monkeypatch.setattr(run, "PROGRAMS", (fake("mhc_sinkhorn", killed),))
    with pytest.raises(KeyboardInterrupt):
        run.run(lambda line: None, backend="composite", file=file)
    report = json.loads(file.read_text())
    assert not report["complete"]
    assert len(report["checks"]) == 1
    assert report["running"]["case"]["way"] == "jit"


@pytest.mark.parametrize("mode", [ms.GRAPH_MODE, ms.PYNATIVE_MODE])
def test_the_context_is_put_back_also_after_an_interrupt(
    monkeypatch: pytest.MonkeyPatch, quiet: None, mode: int
) -> None:
    names = ("mode", "device_target", "jit_level", "jit_config", "save_graphs", "save_graphs_path")

    def context() -> Dict[str, Any]:
        return {name: ms.get_context(name) for name in names}

    def stop(case: Dict[str, Any]) -> Dict[str, float]:
        ms.set_context(jit_config={"jit_level": "O1"}, save_graphs=0)
        assert ms.get_context("jit_level") == "O1"
        raise KeyboardInterrupt

    first = ms.get_context("mode")
    ms.set_context(mode=mode)
    before = context()
    monkeypatch.setattr(run, "PROGRAMS", (fake("mhc_sinkhorn", stop),))
    other = "jit" if mode == ms.GRAPH_MODE else "graph"
    with pytest.raises(KeyboardInterrupt):
        run.main("CPU", [other], "composite", True)
    assert context() == before
    ms.set_context(mode=first)


@pytest.mark.parametrize(
    ("losses", "wrong"),
    [
        ([1.0, 0.2] * 50, ["fall"]),
        ([1.0 - 0.009 * i for i in range(100)], []),
        ([1.0 - 0.009 * i if i != 50 else 0.6 for i in range(100)], ["composite"]),
        ([1.0 - 0.009 * i if i != 99 else math.nan for i in range(100)], ["fall", "composite"]),
    ],
)
def test_a_training_that_goes_wrong_is_seen(losses: List[float], wrong: List[str]) -> None:
    plain = losses if wrong == ["fall"] else [1.0 - 0.009 * i for i in range(100)]
    ratios = networks.compare_training(losses, plain, "bfloat16")
    assert [name for name, ratio in ratios.items() if not ratio <= 1] == wrong


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.operator)
def test_a_wrong_result_is_seen_in_every_tensor(monkeypatch: pytest.MonkeyPatch, program: Program) -> None:
    """Each tensor that is compared is wrong once, and nothing else is then."""
    on = here(True, ("eager",))
    case = next(
        c for c in run.cases(program, on)
        if c.get("gamma", True) and c.get("residual", True) and c.get("h_res") != "identity"
    )  # fmt: skip
    case = {**case, "backend": "composite", **({"num_iters": 1} if "num_iters" in case else {})}
    right = program.compare(case)
    assert max(right.values()) <= 1
    original = programs.error_ratio
    for index, name in enumerate(right):
        seen = []

        def once(got: Any, want: Any, index: int = index, seen: List[int] = seen) -> Any:
            seen.append(1)
            return original(got, want * 1.1 if len(seen) == index + 1 else want)

        monkeypatch.setattr(programs, "error_ratio", once)
        ratios = program.compare(case)
        assert [n for n, ratio in ratios.items() if not ratio <= 1] == [name]


def test_texts_of_errors_name_no_folder_no_user_and_no_host() -> None:
    user, host = getpass.getuser(), socket.gethostname()
    text = f"{user}@{host}: cannot open /home/{user}/a b/venv/lib/op.so:MhcPre, see C:\\Users\\{user}\\log.txt"
    clean = without_names(text)
    assert clean.startswith("<user>@<host>: cannot open ")
    assert "/home" not in clean
    assert "Users" not in clean
    assert clean.endswith("log.txt")
    assert reason(ValueError()) == "ValueError: no message"


PERSONAL = """
import json, sys
from ms_mhc.selftest import run
from ms_mhc.selftest.programs import Program
def compare(case):
    if case["way"] == "eager":
        raise OSError(f"cannot open {sys.argv[1]}")
    return {"out": 0.0}
run.PROGRAMS = (Program("mhc_sinkhorn", lambda on: {"num_streams": (4,), "tokens": (1,), "num_iters": (1,)}, compare),)
run._check_networks = lambda *arguments: None  # slow, and nothing of theirs but numbers stands in the file
run.main(None, ["graph", "eager"], "composite", True, run.Path(sys.argv[1]))
"""


def test_the_report_holds_nothing_personal(tmp_path: Path) -> None:
    """The whole file of a run whose user, host, home and folders are known."""
    home = tmp_path / "home" / "xanthippe"
    home.mkdir(parents=True)
    environment = {
        **os.environ,
        "HOME": str(home),
        "USER": "xanthippe",
        "LOGNAME": "xanthippe",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    file = home / "report.json"
    done = subprocess.run(
        [sys.executable, "-c", PERSONAL, str(file)],
        env=environment,
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    text = file.read_text()
    report = json.loads(text)
    assert report["complete"]
    assert [c["reason"] for c in report["checks"] if c["status"] == "error"] == ["OSError: cannot open .../report.json"]
    assert {c["name"] for c in report["checks"]} == {"mhc_sinkhorn"}
    assert report["kernels_per_step"] == {}
    assert report["time"]["milliseconds"] > 0
    assert report["versions"]["mindspore"] == ms.__version__
    for secret in ("xanthippe", str(tmp_path), str(Path.cwd()), socket.gethostname(), "/home/", sys.prefix):
        assert secret not in text, secret


def test_errors_are_told_where_the_user_has_neither_name_nor_home(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)
    assert reason(ValueError("no /a/b/c.py")) == "ValueError: no .../c.py"


def test_a_device_that_cannot_be_used_is_one_line_and_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from ms_mhc.__main__ import main

    file = tmp_path / "report.json"
    assert main(["selftest", "--device", "GPU", "--report", str(file)]) == 1
    assert capsys.readouterr().out.startswith("  ERROR device: DeviceError: MindSpore cannot use --device GPU here: Un")
    report = json.loads(file.read_text())
    assert report["failures"] == 1
    assert not report["complete"]
    assert "MindSpore cannot use --device GPU" in report["checks"][0]["reason"]


def test_a_disk_that_fills_up_is_a_failure_and_the_checks_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: List[str] = []
    file = tmp_path / "report.json"
    report = Report(said.append, {}, file)
    report.check("mhc_post", {"tokens": 1}, lambda: {"out": 0.5})
    before = file.read_text()

    def full(path: Path, *args: Any, **options: Any) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_text", full)
    report.check("mhc_post", {"tokens": 2}, lambda: {"out": 0.5})
    report.end()
    assert [check["status"] for check in report.checks] == ["ok", "error", "ok"]
    assert any("ERROR report: OSError: [Errno 28] No space left on device" in line for line in said)
    assert said[-1] == "1 checks FAILED"
    assert [(path, path.read_text()) for path in tmp_path.iterdir()] == [(file, before)]


def test_json_has_no_nan() -> None:
    value = {"a": [math.nan, {"b": (math.inf, -math.inf, 1.5)}], "c": "NaN", "d": None, "e": 3}
    read = json.loads(strict_json.dumps(value), parse_constant=pytest.fail)
    assert read == {"a": ["NaN", {"b": ["Infinity", "-Infinity", 1.5]}], "c": "NaN", "d": None, "e": 3}


def test_a_measurement_that_fails_is_a_failure(tmp_path: Path) -> None:
    said: List[str] = []
    report = Report(said.append, {})
    report.measure("time", lambda: 1 / 0)
    assert report.failures == 1
    assert said == ["  ERROR time: ZeroDivisionError: division by zero"]
    assert report.measure("kernels", dict) == {}
    assert report.measured == {"kernels": {}}


def test_a_package_without_metadata_is_reported_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    from ms_mhc import info

    def absent(package: str) -> str:
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "version", absent)
    assert Report(lambda line: None, {}).surroundings["versions"]["ml_dtypes"] == "not installed"
    assert "NumPy       not installed, ml_dtypes not installed" in info.lines(4, 64, "float32")


def test_a_user_without_a_name_and_a_home_without_one_hide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr(getpass, "getuser", nobody)
    monkeypatch.setattr(Path, "home", lambda: Path("/"))
    assert without_names("cannot open /etc/passwd, sorry") == "cannot open .../passwd, sorry"


def test_without_proc_the_memory_is_what_the_system_says(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError

    with monkeypatch.context() as patched:
        patched.setattr("builtins.open", refuse)
        patched.setattr(os, "sysconf", {"SC_AVPHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}.__getitem__)
        assert machine.available_bytes() == 4096000


def test_what_is_left_out_for_want_of_memory_is_said_and_kept(
    monkeypatch: pytest.MonkeyPatch, quiet: None, tmp_path: Path
) -> None:
    program = Program("mhc_pre", lambda on: {"num_streams": (4,), "tokens": (1, 2**20)}, lambda case: {"out": 0.0})
    monkeypatch.setattr(run, "PROGRAMS", (program,))
    monkeypatch.setattr(machine, "available_bytes", lambda: 2**20)
    said: List[str] = []
    assert run.run(said.append, ["eager"], "composite", True, tmp_path / "report.json") == 0
    assert "  left out, too little memory: tokens=1048576" in said
    assert json.loads((tmp_path / "report.json").read_text())["left_out"] == {"mhc_pre": ["tokens=1048576"]}


def test_measurements_that_fail_are_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("kernels_per_step", "times"):
        monkeypatch.setattr(networks, name, lambda *_: 1 / 0)
    said: List[str] = []
    report = Report(said.append, {})
    before = ms.get_context("mode")
    run._measure(report, here(True), "composite")
    ms.set_context(mode=before)
    assert said == [f"  ERROR {name}: ZeroDivisionError: division by zero" for name in ("kernels_per_step", "time")]
    assert report.failures == 2


def test_the_measured_step_is_a_training_step() -> None:
    before = ms.get_context("mode")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    loss, (of_x, of_parameters) = networks._step((3, 4, 16), "float32", "composite")()
    ms.set_context(mode=before)
    assert loss.shape == ()
    assert of_x.shape == (3, 4, 16)
    assert all(np.abs(grad.asnumpy()).max() > 0 for grad in of_parameters)
