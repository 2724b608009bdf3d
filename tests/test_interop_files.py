"""Checkpoints in files: damaged, twice, in pieces."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Callable

import pytest

from ms_mhc import interop
from tests.interop_models import (
    RELEASED,
    Network,
    assert_loaded,
    assert_untouched,
    hf_model,
    in_one_file,
    in_shards,
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
    return "has neither model.safetensors.index.json nor model.safetensors, and 3 other"


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
