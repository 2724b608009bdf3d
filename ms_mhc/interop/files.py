"""Tensors in safetensors files: one file, or several with an index."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple, Union

from safetensors import SafetensorError, safe_open

from ms_mhc.interop.arrays import EXACT_NAMES, Arrays, Shape, float32

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


class Files:
    """Whole tensors, each in one file. Files are opened when a tensor in them is asked for, headers before data.

    Attributes:
        path: the file or the index.
    """

    def __init__(self, path: Path, places: Mapping[str, Path]) -> None:
        self.path = path
        self._places = dict(places)

    def names(self) -> List[str]:
        """All tensors, without opening any file of an index."""
        return list(self._places)

    def paths(self) -> List[Path]:
        """All files, there or not."""
        return list(dict.fromkeys(self._places.values()))

    def entries(self, names: Iterable[str]) -> Dict[str, Entry]:
        """Shapes and dtypes of some of the tensors, from the headers."""
        out: Dict[str, Entry] = {}
        for path, wanted in self._by_path(names).items():
            with opened(path, wanted) as file:
                out.update({name: entry(file, name) for name in wanted})
        return out

    def load(self, names: Iterable[str]) -> Arrays:
        """Some of the tensors, in float32. Nothing else is read."""
        out: Arrays = {}
        for path, wanted in self._by_path(names).items():
            with opened(path, wanted) as file:
                out.update({name: float32(name, file.get_tensor(name)) for name in wanted})
        return out

    def twice(self, names: Iterable[str]) -> List[str]:
        """Some of the tensors that are in several files, one line each; other readers may take another than this."""
        wanted = set(names)
        places: Dict[str, List[str]] = {}
        for path in self.paths():
            if path.is_file():
                with opened(path) as file:
                    for name in wanted.intersection(keys(file)):
                        places.setdefault(name, []).append(path.name)
        return [f"{name} is in {' and in '.join(found)}" for name, found in places.items() if len(found) > 1]

    def _by_path(self, names: Iterable[str]) -> Dict[Path, List[str]]:
        out: Dict[Path, List[str]] = {}
        for name in names:
            out.setdefault(self._places[name], []).append(name)
        return out


def one_file(path: Path) -> Files:
    """A file by itself."""
    with opened(path) as file:
        return Files(path, dict.fromkeys(keys(file), path))


def indexed(path: Path, index: Mapping[str, Any]) -> Files:
    """Files with an index that has a ``weight_map``, as Hugging Face and ``mindspore.unified_safetensors`` write it."""
    try:
        files = {str(name): str(file) for name, file in index["weight_map"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"interop: {path} is no index of a checkpoint: it needs a weight_map of files") from error
    return Files(path, {name: beside(path, name, file) for name, file in files.items()})


def beside(index: Path, name: str, file: str) -> Path:
    """The file in which an index puts a tensor."""
    if Path(file).name != file:
        raise ValueError(f"interop: {index} puts {name} into {file!r}, which is not a file beside the index")
    return index.parent / file


def read_json(path: Path) -> Any:
    """What a JSON file holds; a key that an object has twice, of which the second would silently win, is refused."""
    try:
        return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_once)
    except _TwiceError as error:
        raise ValueError(f"interop: {path} names {error} twice") from error
    except ValueError as error:
        raise ValueError(f"interop: {path} is no index of a checkpoint: {error}") from error


class _TwiceError(Exception):
    pass


def _once(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    out: Dict[str, Any] = {}
    for key, value in pairs:
        if key in out:
            raise _TwiceError(key)
        out[key] = value
    return out


def opened(path: Path, wanted: Iterable[str] = ()) -> Any:
    """A safetensors file that has these tensors.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: it is damaged, or lacks one of them.
    """
    if not path.is_file():
        raise FileNotFoundError(f"interop: {path} is missing; the index says it holds {', '.join(wanted)}")
    try:
        file = safe_open(str(path), framework="numpy")
        missing = set(wanted).difference(keys(file))
    except SafetensorError as error:
        raise ValueError(f"interop: {path} is damaged or no safetensors file: {error}") from error
    if missing:
        raise ValueError(f"interop: {path} does not hold {', '.join(sorted(missing))}, which the index says it does")
    return file


def keys(file: Any) -> List[str]:
    """The tensors of an open file."""
    return list(file.keys())


def entry(file: Any, name: str) -> Entry:
    """One tensor of an open file."""
    part = file.get_slice(name)
    return Entry(tuple(part.get_shape()), str(part.get_dtype()))
