"""Checkpoints of a run on many devices, as MindSpore Transformers writes them: slices of tensors in each rank's file.

``metadata.json`` lists every tensor with its ``global_shape`` and its ``chunk``s (``global_offset``, ``local_shape``),
and under ``storage_data`` the files that hold the slice of a name at an offset. Several files may hold the same one.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple

import numpy as np

from ms_mhc.interop.arrays import Arrays, Shape, float32
from ms_mhc.interop.files import Entry, beside, entry, opened


class _Chunk(NamedTuple):
    """A slice of a tensor, and the files that hold it."""

    offset: Shape
    shape: Shape
    paths: List[Path]

    def place(self) -> Any:
        return tuple(slice(start, start + size) for start, size in zip(self.offset, self.shape))


class _Sliced(NamedTuple):
    shape: Shape
    chunks: List[_Chunk]


class Ranks:
    """Tensors in slices. The interface is that of :class:`ms_mhc.interop.files.Files`.

    Args:
        path: ``metadata.json``.
        metadata: what it holds.

    Raises:
        ValueError: metadata of another form, slices that overlap or leave a gap.
    """

    def __init__(self, path: Path, metadata: Mapping[str, Any]) -> None:
        self.path = path
        try:
            self._tensors = {
                name: _sliced(path, name, described, metadata["storage_data"])
                for name, described in metadata["state_dict_metadata"].items()
            }
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"interop: {path} is no metadata of a checkpoint in slices: {error!r}") from error

    def names(self) -> List[str]:
        """All tensors, those of the optimizer as well."""
        return list(self._tensors)

    def paths(self) -> List[Path]:
        """All files, there or not."""
        every = (path for tensor in self._tensors.values() for chunk in tensor.chunks for path in chunk.paths)
        return list(dict.fromkeys(every))

    def entries(self, names: Iterable[str]) -> Dict[str, Entry]:
        """Global shapes, and dtypes from the files.

        Raises:
            FileNotFoundError: none of the files that hold a slice is there.
            ValueError: slices of another shape than the metadata says, of several dtypes, or that do not make up the
                tensor.
        """
        out: Dict[str, Entry] = {}
        for name in names:
            tensor = self._tensors[name]
            _check_cover(self.path, name, tensor)
            for chunk in tensor.chunks:
                path = _there(self.path, name, chunk)
                with opened(path, [name]) as file:
                    found = entry(file, name)
                if found.shape != chunk.shape:
                    raise ValueError(
                        f"interop: {path} holds {name} in shape {list(found.shape)}; {self.path.name} says "
                        f"{list(chunk.shape)}"
                    )
                before = out.setdefault(name, Entry(tensor.shape, found.dtype))
                if before.dtype != found.dtype:
                    raise ValueError(f"interop: {path} holds {name} in {found.dtype}, other files in {before.dtype}")
        return out

    def load(self, names: Iterable[str]) -> Arrays:
        """Some of the tensors, put together, in float32."""
        out: Arrays = {}
        for name in names:
            tensor = self._tensors[name]
            array = np.empty(tensor.shape, np.float32)
            for chunk in tensor.chunks:
                with opened(_there(self.path, name, chunk), [name]) as file:
                    array[chunk.place()] = float32(name, file.get_tensor(name)).reshape(chunk.shape)
            out[name] = np.atleast_1d(array)
        return out

    def twice(self, names: Iterable[str]) -> List[str]:
        """Nothing: a slice may be in several files here."""
        return []


def _sliced(path: Path, name: str, described: Mapping[str, Any], storage: Mapping[str, Any]) -> _Sliced:
    chunks: List[_Chunk] = []
    for chunk in described["chunk"]:
        offset = tuple(int(start) for start in chunk["global_offset"])
        held = storage.get(str((name, offset)), [])
        paths = [beside(path, name, str(record["file_name"])) for record in held]
        chunks.append(_Chunk(offset, tuple(int(size) for size in chunk["local_shape"]), paths))
    return _Sliced(tuple(int(size) for size in described["global_shape"]), chunks)


def _check_cover(path: Path, name: str, tensor: _Sliced) -> None:
    """Every element once, so that none is left as it was in memory and none is written twice."""
    count = np.zeros(tensor.shape, np.int32)
    for chunk in tensor.chunks:
        if len(chunk.offset) != len(tensor.shape) or len(chunk.shape) != len(tensor.shape):
            raise ValueError(f"interop: {path} gives {name} slices of another rank than its shape {list(tensor.shape)}")
        count[chunk.place()] += 1
    if not np.all(count == 1) or sum(prod(chunk.shape) for chunk in tensor.chunks) != prod(tensor.shape):
        raise ValueError(f"interop: the slices that {path} lists do not make up {name}, {list(tensor.shape)}")


def _there(index: Path, name: str, chunk: _Chunk) -> Path:
    for path in chunk.paths:
        if path.is_file():
            return path
    files = " or ".join(str(path) for path in chunk.paths) or "a file"
    raise FileNotFoundError(
        f"interop: {files} is missing; {index} says it holds the slice of {name} at {list(chunk.offset)}"
        if chunk.paths
        else f"interop: {index} names no file for the slice of {name} at {list(chunk.offset)}"
    )
