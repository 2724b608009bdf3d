"""MindSpore Transformers with ``apply``: its classes and those in their place, side by side, on the CPU.

`make zoo` puts the package where these tests find it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Dict, Tuple

import numpy as np
import pytest

from ms_mhc.integrations import mindformers
from tests import mindformers_packages

PROGRAM = Path(__file__).with_name("mindformers_side_by_side.py")
WAYS = ("pynative", "graph", "jit")
TERMS = 6 * 2 * 4 * 128  # of the loss
Results = Dict[str, np.ndarray]


@pytest.fixture(scope="module", params=mindformers_packages.VERSIONS)
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tuple[Any, Any]:
    """What the program found out about a version, and its results."""
    version = str(request.param)
    problem = mindformers_packages.problem(version)
    if problem:
        pytest.skip(problem)
    out = tmp_path_factory.mktemp("mindformers")
    command = [sys.executable, str(PROGRAM), str(mindformers_packages.package(version)), str(out), "CPU"]
    environment = {**os.environ, "PYTHONPATH": str(mindformers_packages.ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=out, env=environment, timeout=900)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((out / "facts.json").read_text()), np.load(out / "results.npz")


def of(results: Any, case: str, way: str, whose: str) -> Results:
    start = f"{case}/{way}/{whose}/"
    found = {name[len(start) :]: results[name] for name in results.files if name.startswith(start)}
    assert found, start
    assert "failed" not in found, found
    return found


def assert_close(got: Results, want: Results, tolerance: float = 2e-5) -> None:
    assert set(got) == set(want)
    for name, value in want.items():
        size = max(np.abs(value).max(), TERMS**0.5 if name == "loss" else 0)  # the loss is a sum in which much cancels
        assert np.abs(got[name] - value).max() <= tolerance * size, name


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("whose", ["ours", "ours apart"])
def test_the_module_computes_as_theirs(ran: Any, way: str, whose: str) -> None:
    assert_close(of(ran[1], "module", way, whose), of(ran[1], "module", "pynative", "theirs"))


@pytest.mark.parametrize("way", [*WAYS, "backward"])
def test_the_layer_has_the_gradients_that_theirs_has_when_called_eagerly(ran: Any, way: str) -> None:
    ours, want = of(ran[1], "layer", way, "ours"), of(ran[1], "layer", "pynative", "theirs")
    ours.setdefault("x", want["x"])  # loss.backward() gives gradients to parameters
    assert_close(ours, want)


@pytest.mark.parametrize("way", ["graph", "jit"])
def test_their_layer_in_a_graph_has_the_gradient_of_the_other_connection(ran: Any, way: str) -> None:
    """What the guide says of 2.1.0. Should this fail, MindSpore or they have mended it: then the guide is wrong."""
    if ran[0]["version"] == "2.0.0":
        pytest.skip("MindSpore Transformers 2.0.0 is right in a graph: it does not call its Linear")
    theirs, ours = (of(ran[1], "layer", way, whose) for whose in ("theirs", "ours"))
    attention, ffn = (f"layer.{part}_hc.mapping_proj.weight" for part in ("attn", "ffn"))
    assert (theirs[ffn] == theirs[attention]).all()
    assert not (ours[ffn] == ours[attention]).all()


def test_rms_weight_is_honoured(ran: Any) -> None:
    theirs, ours = (of(ran[1], "rms_weight", "pynative", whose) for whose in ("theirs", "ours"))
    assert_close(ours, theirs)
    assert abs(theirs["loss"] - of(ran[1], "module", "pynative", "theirs")["loss"]) > 1


def test_no_iterations_are_one(ran: Any) -> None:
    if ran[0]["version"] == "2.0.0":
        pytest.skip("MindSpore Transformers 2.0.0 refuses mhc_sinkhorn_iterations=0")
    assert_close(*(of(ran[1], "no iterations", "pynative", whose) for whose in ("ours", "theirs")))


def test_the_head_computes_as_theirs(ran: Any) -> None:
    if ran[0]["version"] == "2.0.0":
        pytest.skip("MindSpore Transformers 2.0.0 has no learned head")
    assert_close(*(of(ran[1], "head", "pynative", whose) for whose in ("ours", "theirs")))


def test_the_fused_module_computes_as_theirs_without_the_kernel(ran: Any) -> None:
    if ran[0]["version"] == "2.0.0":
        pytest.skip("in MindSpore Transformers 2.0.0 the two compute different things")
    assert_close(of(ran[1], "fused", "pynative", "ours"), of(ran[1], "module", "pynative", "theirs"))


def test_parameters_keep_their_names_and_shapes(ran: Any) -> None:
    names = ran[0]["names"]
    assert names["ours"] == names["theirs"]
    assert any("mapping_proj.weight" in name for name in names["ours"]["module"])


def test_apply_twice_and_undo_leave_nothing_behind(ran: Any) -> None:
    facts = ran[0]
    classes = ["HyperConnectionModule", "FusedHyperConnectionModule", "HyperConnectionHead"]
    assert facts["replaced"] == ["MsMhc" + name for name in classes[: 2 if facts["version"] == "2.0.0" else 3]]
    assert facts["subclasses"]
    assert facts["undone"]


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("mindformers")
    module.__version__ = "2.2.0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mindformers", module)


@pytest.mark.usefixtures("unknown")
def test_another_version_is_refused_by_name() -> None:
    with pytest.raises(
        RuntimeError, match=r"Transformers 2\.2\.0 is installed, and only 2\.0\.0 and 2\.1\.0 are known"
    ):
        mindformers.apply()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mindformers", None)
    with pytest.raises(ImportError, match=r"mindformers cannot be imported .* and hyper_parallel must be installed"):
        mindformers.apply()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "npu"}, "backend must be one of auto, aclnn, cpu, composite, but got 'npu'"),
        ({"precision": "bf16"}, "precision must be one of float32, hf32, but got 'bf16'"),
        ({"head": 1}, "head must be True or False"),
        ({"share_residual": None}, "share_residual must be True or False"),
    ],
)
def test_options_are_checked(options: Dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"mindformers.apply: {message}"):
        mindformers.apply(**options)


def test_undo_without_apply_does_nothing() -> None:
    mindformers.undo()
