"""Hugging Face's own DeepSeek-V4: the file that it saves loads here and computes the same, and the other way round."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict

import numpy as np
import pytest
from mindspore import Tensor

from ms_mhc import interop
from tests.interop_models import MODULES, RELEASED, SAVED, Network, Way, draw, same_bits

PROGRAM = Path(__file__).with_name("transformers_program.py")
NAMINGS = {"released": RELEASED, "modules": MODULES, "saved": SAVED}
SETTINGS: Dict[str, Any] = {"norm_eps": 1e-4, "hc_eps": 1e-3, "sinkhorn_eps": 1e-3, "num_iters": 5}


def missing() -> str:
    for name in ("torch", "transformers"):
        if importlib.util.find_spec(name) is None:
            return f"the package {name} is not installed"
    if importlib.util.find_spec("transformers.models.deepseek_v4") is None:
        return "the installed transformers has no DeepSeek-V4, which came with version 5"
    return ""


pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


def network() -> Network:
    out = Network(**SETTINGS)
    out.head.norm_eps, out.head.hc_eps = 1e-4, 1e-3
    return out


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder in which the program ran, and the network whose weights it was given."""
    folder, given, rng = tmp_path_factory.mktemp("transformers"), network(), np.random.default_rng(0)
    for parameter in given.get_parameters():
        parameter.set_data(Tensor(draw(rng, *parameter.shape)))
    for naming, names in NAMINGS.items():
        interop.save_hf(given, folder / f"{naming}.safetensors", names)
    done = subprocess.run([sys.executable, str(PROGRAM), str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder, given


@pytest.mark.parametrize("named", NAMINGS)
def test_what_transformers_saves_is_read_under_any_naming(theirs: Any, named: str) -> None:
    read = interop.load_hf(network(), theirs[0] / "model", NAMINGS[named])
    assert len(read) == 15
    assert {"model.layers.1.hc_attn_fn", "model.hc_head.hc_scale"} <= set(read)


def test_transformers_computes_the_same(theirs: Any, way: Way) -> None:
    ours, want = network(), np.load(theirs[0] / "computed.npz")
    interop.load_hf(ours, theirs[0] / "model", SAVED)
    x = Tensor(want["hidden"])
    for i, block in enumerate(ours.blocks):
        for part in ("attn", "ffn"):
            connection = getattr(block, part)
            h_in, h_post, h_res, _ = way(connection.pre)(x)
            mixed = way(connection.sinkhorn)(h_res)
            for got, name in ((h_in, "collapsed"), (h_post, "post"), (mixed, "comb")):
                np.testing.assert_allclose(got.asnumpy(), want[f"{i}.{part}.{name}"], atol=1e-5, err_msg=name)
    np.testing.assert_allclose(way(ours.head)(x).asnumpy(), want["head"], atol=1e-5)


@pytest.mark.parametrize("naming", NAMINGS)
def test_transformers_reads_what_is_saved_here(theirs: Any, naming: str) -> None:
    folder, given = theirs
    got = np.load(folder / f"{naming}.npz")
    for i, block in enumerate(given.blocks):
        for part in ("attn", "ffn"):
            pre = getattr(block, part).pre
            for name, parameter in (("fn", pre.phi), ("scale", pre.alpha), ("base", pre.bias)):
                assert same_bits(got[f"model.layers.{i}.{part}_hc.{name}"], parameter.asnumpy())
    for name, parameter in (("fn", given.head.phi), ("scale", given.head.scale), ("base", given.head.bias)):
        assert same_bits(got[f"model.hc_head.hc_{name}"], parameter.asnumpy())


def test_its_config_is_compared(theirs: Any) -> None:
    with pytest.raises(ValueError, match="nothing was written") as error:
        interop.load_hf(Network(), theirs[0] / "model", SAVED)
    for key in ("rms_norm_eps 0.0001", "hc_eps 0.001", "hc_sinkhorn_iters 5"):
        assert f"config.json has {key}" in str(error.value)
