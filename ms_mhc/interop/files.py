"""Checkpoints in safetensors: one file, or several with an index."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Union

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ms_mhc.interop.arrays import EXACT_NAMES, Array, Arrays, Shape, float32

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_EXACT_DTYPES = ("F32", "F16", "BF16")  # as safetensors calls those of arrays.EXACT

PathLike = Union[str, "os.PathLike[str]"]


class Entry(NamedTuple):
    """A tensor as a file's header describes it."""

    shape: Shape
    dtype: str

    def problem(self, name: str) -> Optional[str]:
        """What is wrong with its dtype."""
        if self.dtype in _EXACT_DTYPES:
            return None
        return f"{name} has dtype {self.dtype}; accepted: {EXACT_NAMES}"


class Checkpoint:
    """A checkpoint to read from. Files are opened when a tensor in them is asked for, headers before data.

    Args:
        path: a ``.safetensors`` file, an index (``.json``), or a folder with ``model.safetensors.index.json``, with
            ``model.safetensors``, or with a single ``.safetensors`` file.

    Raises:
        FileNotFoundError: no such file or folder, or nothing of the kind in it.
        ValueError: a file that is damaged, an index of another form.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = Path(path)
        found = _resolved(self.path)
        if found.suffix == ".json":
            self._files = _index(found)
        else:
            with _opened(found) as file:
                self._files = dict.fromkeys(_keys(file), found)

    def names(self) -> List[str]:
        """All tensors, without opening any file of a checkpoint with an index."""
        return list(self._files)

    def entries(self, names: Iterable[str]) -> Dict[str, Entry]:
        """Shapes and dtypes of some of the tensors, from the headers."""
        out: Dict[str, Entry] = {}
        for path, wanted in self._by_file(names).items():
            with _opened(path, wanted) as file:
                for name in wanted:
                    part = file.get_slice(name)
                    out[name] = Entry(tuple(part.get_shape()), str(part.get_dtype()))
        return out

    def load(self, names: Iterable[str]) -> Arrays:
        """Some of the tensors, in float32. Nothing else is read."""
        out: Arrays = {}
        for path, wanted in self._by_file(names).items():
            with _opened(path, wanted) as file:
                for name in wanted:
                    out[name] = float32(name, file.get_tensor(name))
        return out

    def _by_file(self, names: Iterable[str]) -> Dict[Path, List[str]]:
        files: Dict[Path, List[str]] = {}
        for name in names:
            files.setdefault(self._files[name], []).append(name)
        return files


def _resolved(path: Path) -> Path:
    if path.is_file():
        return path
    if not path.is_dir():
        raise FileNotFoundError(f"interop: there is no checkpoint {path}")
    for name in (INDEX, SINGLE):
        if (path / name).is_file():
            return path / name
    files = sorted(path.glob("*.safetensors"))
    if len(files) != 1:
        raise FileNotFoundError(
            f"interop: {path} has neither {INDEX} nor {SINGLE}, and {len(files)} other .safetensors files; "
            f"give the file or the index itself"
        )
    return files[0]


def _index(path: Path) -> Dict[str, Path]:
    try:
        weight_map = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        files = {str(name): str(file) for name, file in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"interop: {path} is no index of a checkpoint: it needs a weight_map of files") from error
    for name, file in files.items():
        if Path(file).name != file:
            raise ValueError(f"interop: {path} puts {name} into {file!r}, which is not a file beside the index")
    return {name: path.parent / file for name, file in files.items()}


def _opened(path: Path, wanted: Iterable[str] = ()) -> Any:
    if not path.is_file():
        raise FileNotFoundError(f"interop: {path} is missing; the index says it holds {', '.join(wanted)}")
    try:
        file = safe_open(str(path), framework="numpy")
        missing = set(wanted).difference(_keys(file))
    except SafetensorError as error:
        raise ValueError(f"interop: {path} is damaged or no safetensors file: {error}") from error
    if missing:
        raise ValueError(f"interop: {path} does not hold {', '.join(sorted(missing))}, which the index says it does")
    return file


def _keys(file: Any) -> List[str]:
    return list(file.keys())


def save(
    path: PathLike,
    tensors: Mapping[str, Array],
    max_shard_bytes: Optional[int] = None,
    metadata: Optional[Dict[str, str]] = None,
) -> None:
    """Write a checkpoint: one file, or with ``max_shard_bytes`` a folder of files with an index.

    Each file is written beside its place and then moved there, the index last, so that a broken run leaves no half file
    under a checkpoint's name.

    Raises:
        ValueError: a file whose name does not end with .safetensors, a size below 1.
    """
    path = Path(path)
    if max_shard_bytes is None:
        if path.suffix != ".safetensors":
            raise ValueError(f"interop: {path} must end with .safetensors; with max_shard_bytes it may be a folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        _save_file(path, tensors, metadata)
        return
    if max_shard_bytes < 1:
        raise ValueError(f"interop: max_shard_bytes must be >= 1, but got {max_shard_bytes}")
    path.mkdir(parents=True, exist_ok=True)
    shards = _shards(tensors, max_shard_bytes)
    weight_map: Dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        _save_file(path / file, {name: tensors[name] for name in names}, metadata)
        weight_map.update(dict.fromkeys(names, file))
    total = sum(array.nbytes for array in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    unfinished = path / f"{INDEX}.tmp"
    unfinished.write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    unfinished.replace(path / INDEX)


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


def _save_file(path: Path, tensors: Mapping[str, Array], metadata: Optional[Dict[str, str]]) -> None:
    unfinished = path.with_name(f"{path.name}.tmp")
    save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, unfinished, metadata=metadata)
    unfinished.replace(path)
