"""MindSpore Transformers' own classes: the file that they save loads here and computes the same, version by version.

The packages are looked for in ``build/mindformers/VERSION``, or in the folder that MINDFORMERS_PACKAGES names::

    pip install --no-deps --target build/mindformers/2.1.0 mindformers==2.1.0
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Optional

import numpy as np
import pytest
from mindspore import Tensor
from safetensors.numpy import load_file

from ms_mhc import MhcPost, interop
from tests.interop_models import MINDFORMERS, D, N, Network, Way, same_bits

PROGRAM = Path(__file__).with_name("mindformers_program.py")
PACKAGES = Path(os.environ.get("MINDFORMERS_PACKAGES", Path(__file__).parents[1] / "build/mindformers"))
VERSIONS: Dict[str, Dict[str, Any]] = {
    # 2.0.0's Sinkhorn begins with what are columns here, so that it must converge to be the same
    "2.0.0": {"iterations": 100, "recipe": "paper", "hc_eps": 0.0},
    "2.1.0": {"iterations": 3, "recipe": "deepseek_v4", "hc_eps": 1e-6},
}


@pytest.fixture(scope="module", params=VERSIONS)
def theirs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A version, and the folder in which its program ran."""
    version = str(request.param)
    package = PACKAGES / version
    if not (package / "mindformers").is_dir():
        pytest.skip(f"MindSpore Transformers {version} is not in {package}; see the top of this file")
    out = tmp_path_factory.mktemp("mindformers")
    command = [sys.executable, str(PROGRAM), str(package), str(out), str(VERSIONS[version]["iterations"])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=out)
    assert done.returncode == 0, done.stderr
    return version, out


def network(version: str, **changed: Any) -> Network:
    settings = {**VERSIONS[version], "norm_eps": 1e-4, **changed}
    settings["num_iters"] = settings.pop("iterations")
    out = Network(gamma=settings.pop("use_gamma", False), **settings)
    out.head.norm_eps = 1e-4
    return out


def names(version: str) -> Dict[str, Optional[str]]:
    return {**MINDFORMERS, "head": MINDFORMERS["head"] if version == "2.1.0" else None}


def test_the_real_module_computes_the_same(theirs: Any, way: Way) -> None:
    version, folder = theirs
    ours, want = network(version), np.load(folder / "computed.npz")
    interop.load_mindformers(ours, folder, names(version), version=version)
    x, h_out = Tensor(want["hidden"].reshape(3, 2, N, D)), Tensor(want["branch"])
    post = MhcPost()
    for i, block in enumerate(ours.blocks):
        for part in ("attn", "ffn"):
            connection = getattr(block, part)
            h_in, h_post, h_res, _ = way(connection.pre)(x)
            streams = way(post)(x, way(connection.sinkhorn)(h_res), h_out, h_post).asnumpy()
            np.testing.assert_allclose(h_in.asnumpy(), want[f"{i}.{part}.aggregated"], atol=1e-5)
            np.testing.assert_allclose(streams.reshape(3, 2, N * D), want[f"{i}.{part}.streams"], atol=2e-5)
    if version == "2.1.0":
        np.testing.assert_allclose(way(ours.head)(x).asnumpy(), want["head"], atol=1e-5)


def test_the_other_version_would_be_wrong(theirs: Any) -> None:
    """What a default would have done to every user of the other version."""
    version, folder = theirs
    other = "2.1.0" if version == "2.0.0" else "2.0.0"
    ours, want = network(version), np.load(folder / "computed.npz")
    no_head = {**MINDFORMERS, "head": None}
    mixing = "h_res.T @ x" if other == "2.1.0" else "h_res @ x"
    interop.load_mindformers(ours, folder, no_head, mixing=mixing, check_settings=False)
    x, pre, sinkhorn = Tensor(want["hidden"].reshape(3, 2, N, D)), ours.blocks[0].attn.pre, ours.blocks[0].attn.sinkhorn
    _, h_post, h_res, _ = pre(x)
    streams = MhcPost()(x, sinkhorn(h_res), Tensor(want["branch"]), h_post).asnumpy()
    assert np.abs(streams.reshape(3, 2, N * D) - want["0.attn.streams"]).max() > 0.3


def test_what_the_real_checkpoint_shows_is_enough_or_the_version_is_asked_for(theirs: Any) -> None:
    version, folder = theirs
    if version == "2.1.0":
        assert "decoder.hc_head.hc_scale" in interop.load_mindformers(network(version), folder, names(version))
    else:
        with pytest.raises(ValueError, match=r"give version='2\.0\.0' or version='2\.1\.0'"):
            interop.load_mindformers(network(version), folder, names(version))


def test_settings_of_another_version_are_refused(theirs: Any) -> None:
    version, folder = theirs
    recipe = "deepseek_v4" if version == "2.0.0" else "paper"
    with pytest.raises(ValueError, match=rf"recipe is '{recipe}' in .* Transformers {version} .* computes with"):
        interop.load_mindformers(network(version, recipe=recipe), folder, names(version), version=version)


def test_a_save_has_the_tensors_of_the_real_checkpoint(theirs: Any, tmp_path: Path) -> None:
    version, folder = theirs
    ours = network(version, use_gamma=True)
    read = interop.load_mindformers(ours, folder, names(version), version=version)
    assert sum("rms_weight" in name for name in read) == 4
    interop.save_mindformers(ours, tmp_path / "out.safetensors", names(version), version=version)
    want, got = load_file(folder / "model.safetensors"), load_file(tmp_path / "out.safetensors")
    assert set(got) == set(want)
    assert all(same_bits(got[name], want[name]) for name in want)
