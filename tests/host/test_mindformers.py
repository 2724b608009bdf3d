"""MindSpore Transformers with ``apply`` on the host CANN: how much is launched, and a whole model that trains."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest
from conftest import HERE, ROOT, Host

sys.path.insert(0, str(ROOT))
from tests import mindformers_packages

SOCS = {"ascend950": "Ascend950PR_9579", "ascend910b": "Ascend910B1", "ascend910_93": "Ascend910_9382"}
MOST = 45  # launches of a connection and a training step, where the kernels are
LIKE_THEIRS = 400  # what theirs launches without use_fused_mhc, at least
KERNELS = {
    "float32": ["aclnnMhcPre", "aclnnMhcSinkhorn", "aclnnMhcPost"],
    "hf32": ["aclnnMhcPreSinkhorn", "aclnnMhcPost"],
}


def run(host: Host, program: Path, arguments: List[str], *options: str, python: str = sys.executable) -> str:
    command = [python, "-m", "aclnn_adapter.host", "--trace", "trace.jsonl", *options, str(program), *arguments]
    done = subprocess.run(
        command, cwd=host.folder, env=host.environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return done.stdout + done.stderr


@pytest.fixture
def package() -> str:
    problem = mindformers_packages.problem("2.1.0")
    if problem:
        pytest.skip(problem)
    return str(mindformers_packages.package("2.1.0"))


@pytest.mark.parametrize("soc", ["ascend950", "ascend910b", pytest.param("ascend910_93", marks=pytest.mark.slow)])
def test_a_connection_launches_few_kernels(host: Host, package: str, soc: str) -> None:
    said = run(host, HERE / "mindformers_launches.py", [package], "--soc", SOCS[soc])
    found = json.loads((host.folder / "launches.json").read_text())
    calls = {name: Counter(launched) for name, launched in found.items()}
    for way in ("eager", "graph"):
        assert len(found[f"theirs {way}"]) > LIKE_THEIRS
        for precision, kernels in KERNELS.items():
            ours = calls[f"ours {precision} {way}"]
            if precision == "float32" and soc != "ascend950":  # CANN has none there
                assert ours["aclnnMhcPre"] == ours["aclnnMhcPreSinkhorn"] == 0
                continue
            assert sum(ours.values()) <= MOST
            for kernel in kernels:
                assert ours[kernel + "Backward"] == 1
                assert ours[kernel] == 1 or way == "graph"  # the result of the last is not asked for there
    kernels = "mhc_pre_sinkhorn on aclnn kernels; mhc_post on aclnn kernels"
    assert f"MindSpore Transformers' hyper-connections: {kernels}" in said


def test_a_whole_model_trains_untouched(host: Host) -> None:
    """Two layers, a mixture of experts, ``loss.backward()``: the same losses, and gradients no worse than theirs."""
    problem = mindformers_packages.whole_problem()
    if problem:
        pytest.skip(problem)
    python = os.path.abspath(mindformers_packages.interpreter())  # noqa: PTH100 - a link followed leaves the venv
    run(host, HERE / "mindformers_model.py", ["auto"], "--soc", SOCS["ascend950"], python=python)
    results = np.load(host.folder / "model.npz")
    assert list(results["auto/classes"]) == [
        "HyperConnectionTransformerLayer",
        "MsMhcHyperConnectionHead",
        "MsMhcHyperConnectionModule",
    ]
    losses: Dict[str, Any] = {whose: results[f"{whose}/losses"] for whose in ("truth", "theirs", "auto")}
    assert losses["theirs"][-1] < losses["theirs"][0]
    assert np.abs(losses["auto"] - losses["truth"]).max() <= 2 * np.abs(losses["theirs"] - losses["truth"]).max() + 1e-3
    errors = {whose: relative_errors(results, whose) for whose in ("theirs", "auto")}
    assert len(errors["auto"]) > 40
    assert np.median(list(errors["auto"].values())) <= 1.2 * np.median(list(errors["theirs"].values()))
    calls = Counter(json.loads(line)["operator"] for line in (host.folder / "trace.jsonl").read_text().splitlines())
    for kernel in ("aclnnMhcPre", "aclnnMhcSinkhorn", "aclnnMhcPost"):  # four connections, three steps, two phases
        assert calls[kernel] >= 12
        assert calls[kernel + "Backward"] >= 12


def relative_errors(results: Any, whose: str) -> Dict[str, float]:
    """Of the gradients of the first step, in norm."""
    found = {}
    for name in results.files:
        if name.startswith("truth/") and name.split("/")[1] not in ("losses", "classes"):
            want, got = results[name], results[whose + name[len("truth") :]]
            found[name[len("truth/") :]] = float(np.linalg.norm(got - want) / max(np.linalg.norm(want), 1e-20))
    return found
