"""Checkpoints of a run on many devices: slices of tensors in each rank's file, put together by metadata.json."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ms_mhc import interop
from ms_mhc.interop.checkpoint import Checkpoint
from tests.interop_models import (
    MINDFORMERS,
    Arrays,
    Network,
    assert_untouched,
    in_one_file,
    mindformers_model,
    same_bits,
    values,
)

RANKS = 2
SLICED = ("mapping_proj.weight", "hc_fn.weight")  # on dim 1, as FSDP does there; the rest is on every rank


def in_ranks(folder: Path, model: Arrays) -> Path:
    """As MindSpore Transformers 2.1.0 writes it, the optimizer's state in further files."""
    files: List[Arrays] = [{} for _ in range(RANKS)]
    described: Dict[str, Any] = {}
    storage: Dict[str, Any] = {}
    states = {f"adam_m.{name}": value for name, value in model.items()}
    for kind, tensors in (("model", model), ("opt", states)):
        for name, value in tensors.items():
            pieces = np.split(value, RANKS, axis=1) if name.endswith(SLICED) else [value] * RANKS
            chunks: Dict[Tuple[int, ...], Any] = {}
            for rank, piece in enumerate(pieces):
                offset = (0, rank * piece.shape[1]) if name.endswith(SLICED) else (0,) * value.ndim
                chunks[offset] = {"global_offset": list(offset), "local_shape": list(piece.shape)}
                file_name = f"{kind}-{rank:07d}-{RANKS:07d}.safetensors"
                record = {"file_name": file_name, "storage_rank": rank, "rank_group": [rank]}
                storage.setdefault(str((name, offset)), []).append(record)
                if kind == "model":
                    files[rank][name] = np.ascontiguousarray(piece)
            described[name] = {
                "properties": {"dtype": "Float32", "replica_id": 0},
                "global_shape": list(value.shape),
                "axis_fragmentations": [1] * value.ndim,
                "layout": None,
                "chunk": list(chunks.values()),
            }
    for rank, tensors in enumerate(files):
        save_file(tensors, folder / f"model-{rank:07d}-{RANKS:07d}.safetensors", metadata={"format": "ms"})
        save_file({"adam_m.x": np.zeros(1, np.float32)}, folder / f"opt-{rank:07d}-{RANKS:07d}.safetensors")
    (folder / "metadata.json").write_text(json.dumps({"state_dict_metadata": described, "storage_data": storage}))
    return folder


def test_slices_are_put_together(tmp_path: Path) -> None:
    network, model = Network(gamma=True), mindformers_model()
    read = interop.load_mindformers(network, in_ranks(tmp_path, model), MINDFORMERS)
    assert set(read) == set(model)
    got = interop.model_to_mindformers(dict(network.parameters_and_names()), MINDFORMERS)
    assert all(same_bits(got[name], model[name]) for name in model)
    interop.load_mindformers(Network(), tmp_path / "metadata.json", MINDFORMERS)


def test_of_what_every_rank_holds_one_file_is_enough(tmp_path: Path) -> None:
    model = mindformers_model(1)
    whole = {name: value for name, value in model.items() if not name.endswith(SLICED)}
    in_ranks(tmp_path, model)
    (tmp_path / "model-0000000-0000002.safetensors").unlink()
    checkpoint = Checkpoint(tmp_path)
    assert all(same_bits(value, whole[name]) for name, value in checkpoint.load(whole).items())
    with pytest.raises(
        FileNotFoundError, match=r"model-0000000-0000002\.safetensors is missing; .* slice of .* \[0, 0\]"
    ):
        interop.load_mindformers(Network(1), tmp_path, MINDFORMERS)


def test_a_checkpoint_of_one_device_has_an_optimizer_beside_it(tmp_path: Path) -> None:
    network = Network()
    save_file(mindformers_model(), tmp_path / "model-0000000-0000001.safetensors")
    save_file({"adam_m.x": np.zeros(1, np.float32)}, tmp_path / "opt-0000000-0000001.safetensors")
    interop.load_mindformers(network, tmp_path, MINDFORMERS)


def test_one_ranks_file_by_itself_is_refused(tmp_path: Path) -> None:
    in_ranks(tmp_path, mindformers_model())
    with pytest.raises(ValueError, match=r"mapping_proj\.weight has shape \[24, 12\]; expected \[24, 24\]"):
        interop.load_mindformers(Network(), tmp_path / "model-0000000-0000002.safetensors", MINDFORMERS)


def test_a_metadata_of_something_else_is_passed_over(tmp_path: Path) -> None:
    in_one_file(tmp_path, mindformers_model())
    (tmp_path / "metadata.json").write_text('{"author": "somebody"}')
    interop.load_mindformers(Network(), tmp_path, MINDFORMERS)


NAME = "decoder.layers.0.attn_hc.mapping_proj.weight"
Metadata = Dict[str, Any]


def chunks(metadata: Metadata) -> List[Any]:
    found: List[Any] = metadata["state_dict_metadata"][NAME]["chunk"]
    return found


def gap(metadata: Metadata) -> None:
    chunks(metadata).pop()


def overlap(metadata: Metadata) -> None:
    chunks(metadata)[1]["global_offset"] = [0, 6]
    metadata["storage_data"][str((NAME, (0, 6)))] = metadata["storage_data"][str((NAME, (0, 12)))]


def too_long(metadata: Metadata) -> None:
    chunks(metadata)[1]["local_shape"] = [24, 13]


def another_rank(metadata: Metadata) -> None:
    chunks(metadata)[1]["global_offset"] = [12]


def another_shape(metadata: Metadata) -> None:
    for index, start in enumerate((0, 8)):
        chunks(metadata)[index].update(global_offset=[0, start], local_shape=[24, (8, 16)[index]])
    metadata["storage_data"][str((NAME, (0, 8)))] = metadata["storage_data"][str((NAME, (0, 12)))]


def no_file(metadata: Metadata) -> None:
    del metadata["storage_data"][str((NAME, (0, 12)))]


def file_elsewhere(metadata: Metadata) -> None:
    metadata["storage_data"][str((NAME, (0, 12)))][0]["file_name"] = "../model.safetensors"


def no_chunks(metadata: Metadata) -> None:
    del metadata["state_dict_metadata"][NAME]["chunk"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (gap, f"do not make up {NAME}, [24, 24]"),
        (overlap, f"do not make up {NAME}, [24, 24]"),
        (too_long, f"do not make up {NAME}, [24, 24]"),
        (another_rank, "slices of another rank than its shape [24, 24]"),
        (another_shape, f"holds {NAME} in shape [24, 12]; metadata.json says [24, 8]"),
        (no_file, f"names no file for the slice of {NAME} at [0, 12]"),
        (file_elsewhere, "which is not a file beside the index"),
        (no_chunks, "is no metadata of a checkpoint in slices: KeyError('chunk')"),
    ],
)
def test_slices_that_are_not_the_tensor_are_refused(
    tmp_path: Path, damage: Callable[[Metadata], None], message: str
) -> None:
    network = Network()
    before = values(network)
    path = in_ranks(tmp_path, mindformers_model()) / "metadata.json"
    metadata = json.loads(path.read_text())
    damage(metadata)
    path.write_text(json.dumps(metadata))
    with pytest.raises((ValueError, FileNotFoundError), match=re.escape(message)):
        interop.load_mindformers(network, tmp_path, MINDFORMERS)
    assert_untouched(network, before)


def test_slices_of_two_dtypes_are_refused(tmp_path: Path) -> None:
    second = in_ranks(tmp_path, mindformers_model()) / "model-0000001-0000002.safetensors"
    tensors = load_file(second)
    tensors[NAME] = tensors[NAME].astype(np.float16)
    save_file(tensors, second)
    with pytest.raises(ValueError, match=rf"holds {re.escape(NAME)} in F16, other files in F32"):
        interop.load_mindformers(Network(), tmp_path, MINDFORMERS)
