"""Numbers that are no weights: a network against a checkpoint's configuration."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, Dict

import pytest
from mindspore import Tensor, nn

from ms_mhc import MhcPre, MhcSinkhorn, interop
from tests.interop_models import (
    MINDFORMERS,
    RELEASED,
    D,
    N,
    Network,
    assert_loaded,
    assert_untouched,
    hf_connection,
    hf_model,
    in_one_file,
    in_shards,
    mindformers_model,
    values,
)

HF_CONFIG = {
    "model_type": "deepseek_v4",
    "hc_mult": N,
    "hidden_size": D,
    "hc_eps": 1e-6,
    "hc_sinkhorn_iters": 20,
    "rms_norm_eps": 1e-6,
}


def config_at(folder: Path, config: Any) -> Path:
    path = folder / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return path


@pytest.mark.parametrize("store", [in_one_file, in_shards])
@pytest.mark.parametrize(
    ("changed", "messages"),
    [
        ({"hc_sinkhorn_iters": 5}, ["num_iters is 20 in blocks.0.attn.pre and 3 more, but", "has hc_sinkhorn_iters 5"]),
        ({"hc_mult": 2}, ["num_streams is 4 in blocks.0.attn.pre and 4 more, but", "has hc_mult 2"]),
        ({"hidden_size": 7}, ["hidden_size is 6 in", "has hidden_size 7"]),
        ({"rms_norm_eps": 1e-5}, ["norm_eps is 1e-06 in blocks.0.attn.pre and 4 more, but", "has rms_norm_eps 1e-05"]),
        (
            {"hc_eps": 1e-3},
            ["  hc_eps is 1e-06 in blocks.0.attn.pre and 4", "sinkhorn_eps is 1e-06", "hc_eps 0.001"],
        ),
        ({"hc_eps": None, "hc_sinkhorn_iters": "x"}, ["num_iters is 20", "has hc_sinkhorn_iters 'x'"]),
        ({"hc_eps": True}, ["hc_eps is 1e-06", "has hc_eps True"]),
    ],
)
def test_another_number_in_the_configuration_is_named_with_both(
    tmp_path: Path, store: Any, changed: Dict[str, Any], messages: Any
) -> None:
    network = Network()
    before = values(network)
    path = store(tmp_path, hf_model())
    config = config_at(tmp_path, {**HF_CONFIG, **changed})
    with pytest.raises(ValueError, match="nothing was written") as error:
        interop.load_hf(network, path, RELEASED)
    assert all(message in str(error.value) for message in [*messages, str(config)]), str(error.value)
    assert_untouched(network, before)
    interop.load_hf(network, path, RELEASED, check_settings=False)
    assert_loaded(network, before)


def test_the_same_numbers_load_and_a_file_without_them_too(tmp_path: Path) -> None:
    network = Network()
    path = in_one_file(tmp_path, hf_model())
    for config in (HF_CONFIG, {}, {"hidden_size": D}, {**HF_CONFIG, "rms_norm_eps": "1e-6"}):
        config_at(tmp_path, config)
        interop.load_hf(network, path, RELEASED)


def test_what_the_configuration_leaves_out_is_the_default_of_its_model(tmp_path: Path) -> None:
    network = Network(num_iters=7)
    path = in_one_file(tmp_path, hf_model())
    config_at(tmp_path, {"hidden_size": D})
    interop.load_hf(network, path, RELEASED)
    config_at(tmp_path, {"model_type": "deepseek_v4"})
    with pytest.raises(ValueError, match=r"num_iters is 7 .*config\.json leaves hc_sinkhorn_iters at its default 20"):
        interop.load_hf(network, path, RELEASED)


def test_no_iterations_are_one_there(tmp_path: Path) -> None:
    path = in_one_file(tmp_path, hf_model())
    config_at(tmp_path, {**HF_CONFIG, "hc_sinkhorn_iters": 0})
    interop.load_hf(Network(num_iters=1), path, RELEASED)


def test_the_recipe_of_hugging_face_is_compared_without_a_configuration(tmp_path: Path) -> None:
    path = in_one_file(tmp_path, hf_model())
    network = Network(recipe="paper")
    message = r"recipe is 'paper' in blocks\.0\.attn\.pre and 3 more, but Hugging Face's DeepSeek-V4 computes with"
    with pytest.raises(ValueError, match=message):
        interop.load_hf(network, path, RELEASED)
    with pytest.raises(ValueError, match=message):
        interop.save_hf(network, tmp_path / "out.safetensors", RELEASED)
    interop.load_hf(network, path, RELEASED, check_settings=False)
    interop.save_hf(network, tmp_path / "out.safetensors", RELEASED, check_settings=False)


def test_a_save_beside_a_configuration_is_compared_with_it(tmp_path: Path) -> None:
    config_at(tmp_path, {**HF_CONFIG, "hc_sinkhorn_iters": 5})
    for size in (None, 4000):
        path = tmp_path if size else tmp_path / "out.safetensors"
        with pytest.raises(ValueError, match=r"would mean another network, nothing was written:\n  num_iters is 20"):
            interop.save_hf(Network(), path, RELEASED, max_shard_bytes=size)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_a_configuration_may_be_given(tmp_path: Path) -> None:
    path = in_one_file(tmp_path, hf_model())
    other = tmp_path / "elsewhere"
    other.mkdir()
    wrong = {**HF_CONFIG, "hc_sinkhorn_iters": 5}
    for config in (wrong, config_at(other, wrong), str(config_at(other, wrong)), {"model": {"model_config": wrong}}):
        with pytest.raises(ValueError, match="num_iters is 20"):
            interop.load_hf(Network(), path, RELEASED, config=config)
    config_at(tmp_path, wrong)
    interop.load_hf(Network(), path, RELEASED, config=HF_CONFIG)
    with pytest.raises(FileNotFoundError, match=r"there is no configuration .*nowhere\.json"):
        interop.load_hf(Network(), path, RELEASED, config=tmp_path / "nowhere.json")
    with pytest.raises(TypeError, match="config must be a path or a mapping, but got int"):
        interop.load_hf(Network(), path, RELEASED, config=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(("text", "message"), [("{", "cannot be read"), ("[1]", "it holds list, not a mapping")])
def test_a_configuration_that_cannot_be_read_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = in_one_file(tmp_path, hf_model())
    config_at(tmp_path, text)
    with pytest.raises(ValueError, match=rf"config\.json .*{re.escape(message)}"):
        interop.load_hf(Network(), path, RELEASED)
    interop.load_hf(Network(), path, RELEASED, check_settings=False)


def test_options_that_are_no_flags_are_refused(tmp_path: Path) -> None:
    path = in_one_file(tmp_path, hf_model())
    for option in ("check_settings", "allow_extra"):
        with pytest.raises(TypeError, match=f"{option} must be True or False"):
            interop.load_hf(Network(), path, RELEASED, **{option: 1})
    for function in (interop.load_hf, interop.save_hf):
        with pytest.raises(TypeError, match="check_settings must be True or False, but got None"):
            function(Network(), path, RELEASED, check_settings=None)  # type: ignore[arg-type]


def test_what_is_no_mapping_and_no_path_is_named() -> None:
    for function, name in ((interop.from_hf, "tensors"), (interop.to_hf, "params")):
        for wrong in (None, [1], Network()):
            with pytest.raises(TypeError, match=f"interop: {name} must be a mapping from names to tensors, but got"):
                function(wrong)  # type: ignore[arg-type]
    for path in (None, 3):
        with pytest.raises(TypeError, match="interop: path must be a path, but got"):
            interop.load_hf(Network(), path, RELEASED)  # type: ignore[arg-type]


def test_mindspore_transformers_reads_hc_eps_as_the_norms(tmp_path: Path) -> None:
    path = in_one_file(tmp_path, mindformers_model())
    config = {"mindformers_version": "2.1.0", "hc_eps": 1e-5, "mhc_sinkhorn_iterations": 3, "num_residual_streams": N}
    with pytest.raises(ValueError, match="nothing was written") as error:
        interop.load_mindformers(Network(), path, MINDFORMERS, config=config)
    assert "norm_eps is 1e-06 in blocks.0.attn.pre and 4 more, but config has hc_eps 1e-05" in str(error.value)
    assert "num_iters is 20 in blocks.0.attn.pre and 3 more, but config has mhc_sinkhorn_iterations 3" in str(
        error.value
    )
    network = Network(norm_eps=1e-5, num_iters=3)
    network.head.norm_eps = 1e-5
    interop.load_mindformers(network, path, MINDFORMERS, config=config)


def test_a_configuration_that_says_one_thing_twice_must_mean_it(tmp_path: Path) -> None:
    path = in_one_file(tmp_path, mindformers_model())
    config = {"hc_sinkhorn_iters": 20, "mhc_sinkhorn_iterations": 3}
    with pytest.raises(ValueError, match="config has mhc_sinkhorn_iterations 3"):
        interop.load_mindformers(Network(), path, MINDFORMERS, config=config)


class Apart(nn.Cell):
    """The operators as cells of one's own layer."""

    def __init__(self, sinkhorns: int) -> None:
        super().__init__()
        self.pre = MhcPre(N, D)
        self.sinkhorns = nn.CellList([MhcSinkhorn(3)]) if sinkhorns == 0 else None
        for index in range(sinkhorns):
            self.insert_child_to_cell(f"sinkhorn{index}", MhcSinkhorn(3 + index))

    def construct(self, x: Tensor) -> Tensor:
        return self.pre(x)[0]


def test_the_sinkhorn_beside_a_pre_is_its_own(tmp_path: Path) -> None:
    """Where it is not clear which one belongs to it, it is not compared."""
    path = in_one_file(tmp_path, {f"hc_attn_{name}": value for name, value in hf_connection(0).items()})
    names = {"pre": "hc_attn_{p}"}
    with pytest.raises(ValueError, match="num_iters is 3 in pre, but config has hc_sinkhorn_iters 20"):
        interop.load_hf(Apart(1), path, names, config=HF_CONFIG)
    for sinkhorns in (0, 2):
        interop.load_hf(Apart(sinkhorns), path, names, config=HF_CONFIG)


@pytest.mark.parametrize(
    ("text", "said"),
    [("a: [", "config.yaml cannot be read as a configuration"), ("- a", "it holds list, not a mapping")],
)
def test_a_yaml_file_that_is_none_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    path = in_one_file(tmp_path, mindformers_model())
    with pytest.raises(ValueError, match=said):
        interop.load_mindformers(Network(), path, MINDFORMERS, config=tmp_path / "config.yaml")


def test_without_a_reader_of_yaml_the_message_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    (tmp_path / "config.yaml").write_text("a: 1")
    path = in_one_file(tmp_path, mindformers_model())
    with pytest.raises(ValueError, match="needs the package pyyaml; or give config= as a mapping"):
        interop.load_mindformers(Network(), path, MINDFORMERS, config=tmp_path / "config.yaml")
