"""Checkpoints in files: damaged, twice, in pieces."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Callable, List

import numpy as np
import pytest
from mindspore import Tensor
from safetensors.numpy import load_file, save_file

from ms_mhc import interop
from tests.interop_models import (
    MINDFORMERS,
    RELEASED,
    F,
    N,
    Network,
    assert_loaded,
    assert_untouched,
    hf_model,
    in_one_file,
    in_shards,
    mindformers_model,
    same_bits,
    values,
    without,
)


def truncated(folder: Path) -> str:
    data = (folder / "model-00002-of-00003.safetensors").read_bytes()
    (folder / "model-00002-of-00003.safetensors").write_bytes(data[:-4])
    return "model-00002-of-00003.safetensors is damaged"


def cut_in_the_header(folder: Path) -> str:
    (folder / "model-00002-of-00003.safetensors").write_bytes(b"\x80\x00")
    return "model-00002-of-00003.safetensors is damaged"


def missing_shard(folder: Path) -> str:
    (folder / "model-00003-of-00003.safetensors").unlink()
    return "model-00003-of-00003.safetensors is missing; the index says it holds"


def edited_index(folder: Path, edit: Callable[[Any], Any]) -> None:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps(edit(json.loads(path.read_text()))))


def wrong_shard(folder: Path) -> str:
    def edit(index: Any) -> Any:
        index["weight_map"]["hc_head_fn"] = index["weight_map"]["hc_head_base"]
        return index

    edited_index(folder, edit)
    return "does not hold hc_head_fn, which the index says it does"


def shard_elsewhere(folder: Path) -> str:
    def edit(index: Any) -> Any:
        index["weight_map"]["hc_head_fn"] = "../model.safetensors"
        return index

    edited_index(folder, edit)
    return "puts hc_head_fn into '../model.safetensors'"


def no_weight_map(folder: Path) -> str:
    edited_index(folder, lambda index: [index])
    return "model.safetensors.index.json is no index of a checkpoint"


def index_that_is_no_json(folder: Path) -> str:
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {')
    return "model.safetensors.index.json is no index of a checkpoint"


def nothing_but_shards(folder: Path) -> str:
    (folder / "model.safetensors.index.json").unlink()
    return (
        "has none of model.safetensors.index.json, param_name_map.json, metadata.json, model.safetensors, and 3 other"
    )


def a_tensor_named_twice(folder: Path) -> str:
    path = folder / "model.safetensors.index.json"
    text = path.read_text()
    path.write_text(text.replace('"weight_map": {', '"weight_map": {"hc_head_fn": "x.safetensors", '))
    return "model.safetensors.index.json names hc_head_fn twice"


@pytest.mark.parametrize(
    "damage",
    [
        truncated,
        cut_in_the_header,
        missing_shard,
        wrong_shard,
        shard_elsewhere,
        no_weight_map,
        index_that_is_no_json,
        nothing_but_shards,
        a_tensor_named_twice,
    ],
)
def test_a_damaged_checkpoint_is_named_and_nothing_is_written(tmp_path: Path, damage: Any) -> None:
    network = Network()
    before = values(network)
    in_shards(tmp_path, hf_model())
    message = damage(tmp_path)
    with pytest.raises((ValueError, FileNotFoundError), match=re.escape(message)):
        interop.load_hf(network, tmp_path, RELEASED)
    assert_untouched(network, before)


def test_only_the_files_that_are_needed_are_opened(tmp_path: Path) -> None:
    network = Network()
    before = values(network)
    in_one_file(tmp_path, without(hf_model(), "model.embed_tokens.weight"))
    weight_map = dict.fromkeys(hf_model(), "model.safetensors")
    weight_map["model.embed_tokens.weight"] = "not-downloaded.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    interop.load_hf(network, tmp_path, RELEASED)
    assert_loaded(network, before)


def test_a_checkpoint_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no checkpoint .*nowhere"):
        interop.load_hf(Network(), tmp_path / "nowhere", RELEASED)


def test_two_checkpoints_in_a_folder_must_agree(tmp_path: Path) -> None:
    """An old index beside a newer file, or the other way round; which is newer, copies do not tell."""
    network = Network()
    before = values(network)
    in_shards(tmp_path, hf_model())
    in_one_file(tmp_path, hf_model())
    interop.load_hf(network, tmp_path, RELEASED)
    assert_loaded(network, before)

    before = values(network)
    changed = {**hf_model(), "layers.1.hc_ffn_base": np.zeros(F, np.float32)}
    in_one_file(tmp_path, changed)
    message = (
        r"model\.safetensors\.index\.json and model\.safetensors are both in .*, and layers\.1\.hc_ffn_base differ; "
        r"give the path of the one that counts"
    )
    with pytest.raises(ValueError, match=message):
        interop.load_hf(network, tmp_path, RELEASED)
    assert_untouched(network, before)
    interop.load_hf(network, tmp_path / "model.safetensors", RELEASED)
    assert not network.blocks[1].ffn.pre.bias.asnumpy().any()
    interop.load_hf(network, tmp_path / "model.safetensors.index.json", RELEASED)
    assert_untouched(network, before)

    in_one_file(tmp_path, hf_model(3))
    with pytest.raises(ValueError, match=r"are both in .*, and only one of them has layers\.2\.hc_attn_base"):
        interop.load_hf(network, tmp_path, RELEASED)


def test_an_index_without_its_files_says_what_else_is_there(tmp_path: Path) -> None:
    in_shards(tmp_path, hf_model())
    in_one_file(tmp_path, hf_model())
    for path in tmp_path.glob("model-*.safetensors"):
        path.unlink()
    with pytest.raises(FileNotFoundError, match=r"is missing; .*; there is also model\.safetensors, if that is meant"):
        interop.load_hf(Network(), tmp_path, RELEASED)
    interop.load_hf(Network(), tmp_path / "model.safetensors", RELEASED)


def test_the_two_checkpoints_of_mindspore_transformers_must_agree_as_well(tmp_path: Path) -> None:
    in_shards(tmp_path, mindformers_model())
    changed = {**mindformers_model(), "decoder.layers.0.attn_hc.alpha_pre": np.full(1, 9, np.float32)}
    in_one_file(tmp_path, changed)
    with pytest.raises(ValueError, match=r"are both in .*, and decoder\.layers\.0\.attn_hc\.alpha_pre differ"):
        interop.load_mindformers(Network(), tmp_path, MINDFORMERS)


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    """Transformers takes the last one it reads, whatever the index says."""
    network = Network()
    before = values(network)
    in_shards(tmp_path, hf_model())
    second = tmp_path / "model-00002-of-00003.safetensors"
    stale = {**load_file(second), "hc_head_scale": np.zeros(1, np.float32)}
    third = tmp_path / "model-00003-of-00003.safetensors"
    if "hc_head_scale" in load_file(second):
        second, stale = third, {**load_file(third), "hc_head_scale": np.zeros(1, np.float32)}
    save_file(stale, second)
    with pytest.raises(ValueError, match=r"hc_head_scale is in model-0000\d-of-00003\.safetensors and in model-0000\d"):
        interop.load_hf(network, tmp_path, RELEASED)
    assert_untouched(network, before)


def test_the_index_of_unified_safetensors_is_read(tmp_path: Path) -> None:
    network = Network()
    before = values(network)
    in_shards(tmp_path, hf_model())
    (tmp_path / "model.safetensors.index.json").rename(tmp_path / "param_name_map.json")
    interop.load_hf(network, tmp_path, RELEASED)
    assert_loaded(network, before)


def test_a_save_leaves_no_folder_with_two_checkpoints(tmp_path: Path) -> None:
    network = Network()
    one, many = tmp_path / "one", tmp_path / "many"
    interop.save_hf(network, one / "model.safetensors", RELEASED)
    with pytest.raises(ValueError, match=r"one already holds .* in another form, model\.safetensors; remove it"):
        interop.save_hf(network, one, RELEASED, max_shard_bytes=4000)
    interop.save_hf(network, many, RELEASED, max_shard_bytes=4000)
    with pytest.raises(ValueError, match=r"many already holds .* form, model\.safetensors\.index\.json; remove it"):
        interop.save_hf(network, many / "model.safetensors", RELEASED)
    for path, size in ((one / "model.safetensors", None), (many, 4000)):
        network.head.bias.set_data(Tensor(np.full(N, 7, np.float32)))
        interop.save_hf(network, path, RELEASED, max_shard_bytes=size)
        again = Network()
        interop.load_hf(again, path, RELEASED)
        assert np.all(again.head.bias.asnumpy() == 7)


def test_a_save_that_breaks_leaves_no_mixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over an earlier checkpoint with as many files: the old one whole, or none that loads."""
    network = Network()
    interop.save_hf(network, tmp_path, RELEASED, max_shard_bytes=4000)
    old = values(network)
    network.head.bias.set_data(Tensor(np.full(N, 7, np.float32)))
    moves: List[Path] = []
    replace = Path.replace

    def breaking(self: Path, target: Any) -> Path:
        if len(moves) == after:
            raise OSError("no space left")
        moves.append(self)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", breaking)
    after = 1
    with pytest.raises(OSError, match="no space left"):
        interop.save_hf(network, tmp_path, RELEASED, max_shard_bytes=4000)
    with pytest.raises(FileNotFoundError, match=r"has none of model\.safetensors\.index\.json, "):
        interop.load_hf(Network(), tmp_path, RELEASED)
    monkeypatch.undo()
    interop.save_hf(network, tmp_path, RELEASED, max_shard_bytes=4000)
    again = Network()
    interop.load_hf(again, tmp_path, RELEASED)
    assert not same_bits(again.head.bias.asnumpy(), old["head.bias"])
