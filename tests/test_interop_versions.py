"""Which version of MindSpore Transformers weights belong to: named, shown by the checkpoint, never guessed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Dict, Optional

import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from ms_mhc import interop
from tests.interop_models import (
    MINDFORMERS,
    MINDFORMERS_HEAD,
    Arrays,
    Network,
    assert_untouched,
    hf_connection,
    hf_head,
    in_one_file,
    in_shards,
    mapped,
    mindformers_connection,
    mindformers_model,
    same_bits,
    values,
    without,
)

DIRECTIONS = {"2.0.0": "h_res @ x", "2.1.0": "h_res.T @ x"}
OLD: Dict[str, Any] = {"recipe": "paper", "hc_eps": 0.0}
NO_HEAD: Dict[str, Optional[str]] = {**MINDFORMERS, "head": None}


def settings_of(version: str) -> Dict[str, Any]:
    return OLD if version == "2.0.0" else {}


def says(folder: Path, **config: Any) -> None:
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("version", DIRECTIONS)
def test_a_version_is_a_direction(version: str) -> None:
    tensors = mindformers_connection(0)
    by_version = interop.from_mindformers(tensors, version=version)
    by_mixing = interop.from_mindformers(tensors, mixing=DIRECTIONS[version])
    assert all(same_bits(by_version[name], by_mixing[name]) for name in by_mixing)
    back = interop.to_mindformers(by_version, version=version)
    assert all(same_bits(back[name], tensors[name]) for name in tensors)


def test_the_fused_module_of_2_0_0_has_the_other_direction() -> None:
    tensors = mindformers_connection(0)
    fused = interop.from_mindformers(tensors, version="2.0.0", mixing="h_res.T @ x")
    assert same_bits(fused["phi"], tensors["mapping_proj.weight"])


@pytest.mark.parametrize(
    "function",
    [
        lambda: interop.from_mindformers(mindformers_connection(0)),
        lambda: interop.to_mindformers(_params()),
        lambda: interop.model_from_mindformers(_layers_only(), _no_head_names()),
        lambda: interop.model_to_mindformers({f"a.{key}": v for key, v in _params().items()}, {"a": "b.{p}"}),
    ],
)
def test_nothing_that_tells_the_version_is_an_error_that_names_the_options(function: Any) -> None:
    with pytest.raises(ValueError, match=r"give version='2\.0\.0' or version='2\.1\.0', or mixing='h_res @ x'"):
        function()


def _params() -> Arrays:
    return interop.from_hf(hf_connection(0))


def _layers_only() -> Arrays:
    return {name: value for name, value in mindformers_model().items() if "head" not in name}


def _no_head_names() -> Dict[str, str]:
    return {key: value for key, value in MINDFORMERS.items() if key != "head"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"version": "2.2.0"}, "version must be one of 2.0.0, 2.1.0, but got '2.2.0'"),
        ({"mixing": "x"}, "mixing must be one of h_res @ x, h_res.T @ x, but got 'x'"),
        ({"version": "2.1.0", "mixing": "h_res @ x"}, "2.1.0 applies h_res.T @ x, but mixing='h_res @ x' was given"),
    ],
)
def test_an_unknown_or_contradicting_option_is_refused(options: Dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        interop.from_mindformers(mindformers_connection(0), **options)


def test_a_version_that_is_no_text_is_refused() -> None:
    with pytest.raises(TypeError, match=r"version must be one of 2\.0\.0, 2\.1\.0"):
        interop.from_mindformers(mindformers_connection(0), version=2.1)  # type: ignore[arg-type]


def test_a_head_needs_no_version_and_shows_one() -> None:
    head = {MINDFORMERS_HEAD[name]: value for name, value in hf_head(0).items()}
    assert same_bits(interop.from_mindformers(head)["phi"], head["hc_fn.weight"])
    assert set(interop.to_mindformers(interop.from_mindformers(head))) == set(head)
    with pytest.raises(ValueError, match=r"2\.0\.0 has no learned head; 2\.1\.0 has one"):
        interop.from_mindformers(head, version="2.0.0")
    with pytest.raises(ValueError, match=r"2\.0\.0 has no learned head"):
        interop.to_mindformers(interop.from_mindformers(head), version="2.0.0")
    model = mindformers_model()
    params = interop.model_from_mindformers(model, MINDFORMERS)
    assert same_bits(params["blocks.0.attn.pre.phi"], model["decoder.layers.0.attn_hc.mapping_proj.weight"])
    assert set(interop.model_to_mindformers(params, MINDFORMERS)) == set(model)


def test_a_checkpoint_with_a_head_is_of_2_1_0(tmp_path: Path) -> None:
    network, model = Network(gamma=True), mindformers_model()
    interop.load_mindformers(network, in_one_file(tmp_path, model), MINDFORMERS)
    got = network.blocks[1].attn.pre.phi.asnumpy()
    assert same_bits(got, model["decoder.layers.1.attn_hc.mapping_proj.weight"])
    with pytest.raises(ValueError, match=r"has decoder\.hc_head\.hc_fn\.weight, and .* 2\.0\.0 has no learned head"):
        interop.load_mindformers(network, tmp_path, MINDFORMERS, version="2.0.0")


@pytest.mark.parametrize("store", [in_one_file, in_shards])
@pytest.mark.parametrize("version", DIRECTIONS)
def test_the_configuration_beside_a_checkpoint_names_the_version(tmp_path: Path, store: Any, version: str) -> None:
    model = _layers_only()
    network = Network(gamma=True, **settings_of(version))
    store(tmp_path, model)
    with pytest.raises(ValueError, match=r"nothing shows to which one .* belongs; give version="):
        interop.load_mindformers(network, tmp_path, {**MINDFORMERS, "head": None})
    says(tmp_path, mindformers_version=version, model_type="deepseek_v4")
    interop.load_mindformers(network, tmp_path, {**MINDFORMERS, "head": None})
    want = interop.from_mindformers(mindformers_connection(2), version=version)
    assert same_bits(network.blocks[1].attn.pre.phi.asnumpy(), want["phi"])


def test_the_yaml_that_mindspore_transformers_writes_is_read_as_well(tmp_path: Path) -> None:
    pytest.importorskip("yaml", reason="the package pyyaml is not installed")
    network = Network(gamma=True, **OLD)
    in_one_file(tmp_path, _layers_only())
    text = "model:\n  model_config:\n    mindformers_version: 2.0.0\n    hc_sinkhorn_iters: 7\n"
    (tmp_path / "mindspore_model.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"num_iters is 20 in .*mindspore_model\.yaml has hc_sinkhorn_iters 7"):
        interop.load_mindformers(network, tmp_path, NO_HEAD)
    (tmp_path / "mindspore_model.yaml").write_text(text.replace("7", "20"))
    interop.load_mindformers(network, tmp_path, NO_HEAD)


def test_use_fused_mhc_of_the_configuration_picks_the_module_of_2_0_0(tmp_path: Path) -> None:
    model = _layers_only()
    network = Network(gamma=True)
    in_one_file(tmp_path, model)
    says(tmp_path, mindformers_version="2.0.0", use_fused_mhc=True)
    interop.load_mindformers(network, tmp_path, NO_HEAD)
    got = network.blocks[0].attn.pre.phi.asnumpy()
    assert same_bits(got, model["decoder.layers.0.attn_hc.mapping_proj.weight"])
    with pytest.raises(ValueError, match=r"which applies h_res\.T @ x"):
        interop.load_mindformers(network, tmp_path, NO_HEAD, mixing="h_res @ x")


def test_what_the_caller_says_against_what_the_checkpoint_shows_is_refused(tmp_path: Path) -> None:
    network = Network(gamma=True)
    before = values(network)
    in_one_file(tmp_path, _layers_only())
    says(tmp_path, mindformers_version="2.1.0")
    with pytest.raises(ValueError, match=r"version='2\.0\.0' was given for .*, but .*config\.json says 2\.1\.0"):
        interop.load_mindformers(network, tmp_path, NO_HEAD, version="2.0.0")
    with pytest.raises(
        ValueError, match=r"mixing='h_res @ x' was given for .* says 2\.1\.0, which applies h_res\.T @ x"
    ):
        interop.load_mindformers(network, tmp_path, NO_HEAD, mixing="h_res @ x")
    assert_untouched(network, before)
    interop.load_mindformers(network, tmp_path, NO_HEAD, mixing="h_res @ x", check_settings=False)


def test_a_version_that_is_not_known_needs_to_be_told_what_it_computes(tmp_path: Path) -> None:
    network = Network(gamma=True)
    in_one_file(tmp_path, _layers_only())
    says(tmp_path, mindformers_version="2.2.0")
    with pytest.raises(ValueError, match=r"config\.json says 2\.2\.0, and only .* 2\.0\.0 and 2\.1\.0 are known; give"):
        interop.load_mindformers(network, tmp_path, NO_HEAD)
    interop.load_mindformers(network, tmp_path, NO_HEAD, version="2.1.0")
    interop.load_mindformers(network, tmp_path, NO_HEAD, mixing="h_res.T @ x")


def test_the_settings_of_a_version_are_compared_with_the_networks(tmp_path: Path) -> None:
    """All defaults of 2.0.0 differ from this package's."""
    network = Network(gamma=True)
    before = values(network)
    path = in_one_file(tmp_path, _layers_only())
    with pytest.raises(ValueError, match="nothing was written") as error:
        interop.load_mindformers(network, path, NO_HEAD, version="2.0.0")
    assert (
        "recipe is 'deepseek_v4' in blocks.0.attn.pre and 3 more, but MindSpore Transformers 2.0.0 (h_res @ x) "
        "computes with 'paper'" in str(error.value)
    )
    assert "hc_eps is 1e-06 in blocks.0.attn.pre and 3 more, but" in str(error.value)
    assert "check_settings=False loads the weights all the same" in str(error.value)
    assert_untouched(network, before)
    interop.load_mindformers(network, path, NO_HEAD, version="2.0.0", check_settings=False)
    interop.load_mindformers(Network(gamma=True, **OLD), path, NO_HEAD, version="2.0.0")
    with pytest.raises(
        ValueError, match=r"recipe is 'paper' in .*2\.1\.0 \(h_res\.T @ x\) computes with 'deepseek_v4'"
    ):
        interop.load_mindformers(Network(gamma=True, **OLD), path, NO_HEAD, version="2.1.0")


@pytest.mark.parametrize("shard", [None, 2000])
@pytest.mark.parametrize("version", DIRECTIONS)
def test_what_this_package_saves_shows_its_version(tmp_path: Path, version: str, shard: Optional[int]) -> None:
    model, network = _layers_only(), Network(gamma=True, **settings_of(version))
    interop.load_mindformers(network, in_one_file(tmp_path, model), NO_HEAD, version=version)
    out = tmp_path / "out" / ("" if shard else "out.safetensors")
    interop.save_mindformers(network, out, NO_HEAD, version=version, max_shard_bytes=shard)
    back: Arrays = {}
    for path in out.parent.glob("out*.safetensors") if shard is None else out.glob("*.safetensors"):
        back.update(load_file(path))
        with safe_open(path, framework="numpy") as file:
            assert file.metadata() == {"format": "ms", "mindformers_version": version, "mixing": DIRECTIONS[version]}
    assert set(back) == set(model)
    assert all(same_bits(back[name], model[name]) for name in model)
    other = Network(gamma=True, **settings_of(version))
    interop.load_mindformers(other, out, NO_HEAD)
    assert same_bits(other.blocks[1].ffn.pre.phi.asnumpy(), network.blocks[1].ffn.pre.phi.asnumpy())
    with pytest.raises(ValueError, match="the metadata of the checkpoint says"):
        interop.load_mindformers(other, out, NO_HEAD, version="2.1.0" if version == "2.0.0" else "2.0.0")


def test_a_network_with_a_head_is_saved_for_2_1_0_and_not_for_2_0_0(tmp_path: Path) -> None:
    network = Network(gamma=True)
    interop.save_mindformers(network, tmp_path / "out.safetensors", MINDFORMERS)
    with safe_open(tmp_path / "out.safetensors", framework="numpy") as file:
        assert file.metadata()["mindformers_version"] == "2.1.0"
    with pytest.raises(
        ValueError, match=r"has the MhcHead 'head', and MindSpore Transformers 2\.0\.0 has no learned head"
    ):
        interop.save_mindformers(network, tmp_path / "old.safetensors", MINDFORMERS, version="2.0.0")
    with pytest.raises(ValueError, match=r"would mean another network, nothing was written:\n  recipe is 'paper'"):
        interop.save_mindformers(Network(gamma=True, **OLD), tmp_path / "old.safetensors", MINDFORMERS)
    with pytest.raises(ValueError, match="nothing shows to which one"):
        interop.save_mindformers(network, tmp_path / "old.safetensors", NO_HEAD)
    assert [path.name for path in tmp_path.iterdir()] == ["out.safetensors"]


def test_a_network_of_heads_needs_no_version(tmp_path: Path) -> None:
    names = {**dict.fromkeys(mapped(interop.MINDFORMERS_NAMES)), "head": MINDFORMERS["head"]}
    model = {name: value for name, value in mindformers_model().items() if "head" in name}
    network = Network()
    interop.load_mindformers(network, in_one_file(tmp_path, model), names)
    assert same_bits(network.head.phi.asnumpy(), model["decoder.hc_head.hc_fn.weight"])
    assert without(model, "decoder.hc_head.hc_fn.weight")
