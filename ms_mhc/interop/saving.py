"""Checkpoints in safetensors to write: one file, or several with an index."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Dict, List, Mapping, Optional

import numpy as np
from safetensors.numpy import save_file

from ms_mhc.interop.arrays import Array
from ms_mhc.interop.checkpoint import INDEX, SINGLE, whole
from ms_mhc.interop.files import PathLike


def save(
    path: PathLike,
    tensors: Mapping[str, Array],
    max_shard_bytes: Optional[int] = None,
    metadata: Optional[Dict[str, str]] = None,
) -> None:
    """Write a checkpoint: one file, or with ``max_shard_bytes`` a folder of files with an index.

    Each file is written beside its place and then moved there. An index that is there goes before the first file is
    moved, the new one comes last, so that a broken run leaves neither half a file nor files of two checkpoints under
    one index.

    Raises:
        ValueError: a file whose name does not end with .safetensors, a size below 1, a folder that already holds a
            checkpoint of another form.
    """
    path = Path(path)
    if max_shard_bytes is None:
        if path.suffix != ".safetensors":
            raise ValueError(f"interop: {path} must end with .safetensors; with max_shard_bytes it may be a folder")
        if path.name == SINGLE:
            _refuse_two(path.parent, SINGLE)
        path.parent.mkdir(parents=True, exist_ok=True)
        _written(path, tensors, metadata).replace(path)
        return
    if max_shard_bytes < 1:
        raise ValueError(f"interop: max_shard_bytes must be >= 1, but got {max_shard_bytes}")
    _refuse_two(path, INDEX)
    path.mkdir(parents=True, exist_ok=True)
    shards = _shards(tensors, max_shard_bytes)
    weight_map: Dict[str, str] = {}
    unfinished: Dict[Path, Path] = {}
    for number, names in enumerate(shards, start=1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        unfinished[path / file] = _written(path / file, {name: tensors[name] for name in names}, metadata)
        weight_map.update(dict.fromkeys(names, file))
    total = sum(array.nbytes for array in tensors.values())
    index = _beside(path / INDEX)
    text = json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=2)
    index.write_text(f"{text}\n", encoding="utf-8")
    (path / INDEX).unlink(missing_ok=True)
    for place, file_beside in unfinished.items():
        file_beside.replace(place)
    index.replace(path / INDEX)


def _refuse_two(folder: Path, own: str) -> None:
    """Who reads the folder could take either."""
    for path in whole(folder):
        if path.name != own:
            raise ValueError(
                f"interop: {folder} already holds a checkpoint in another form, {path.name}; remove it, or save "
                f"elsewhere"
            )


def _shards(tensors: Mapping[str, Array], max_shard_bytes: int) -> List[List[str]]:
    """Names in order, as many to a shard as fit; a tensor that is larger has one of its own."""
    shards: List[List[str]] = [[]]
    size = 0
    for name, array in tensors.items():
        if shards[-1] and size + array.nbytes > max_shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += array.nbytes
    return shards


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.tmp")


def _written(path: Path, tensors: Mapping[str, Array], metadata: Optional[Dict[str, str]]) -> Path:
    """A file with these tensors, beside the place where it will stand."""
    arrays = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    save_file(arrays, _beside(path), metadata=metadata)
    return _beside(path)
