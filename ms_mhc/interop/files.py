"""Checkpoints in safetensors to read: one file, or several with an index."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple, Union

from safetensors import SafetensorError, safe_open

from ms_mhc.interop.arrays import EXACT_NAMES, Array, Arrays, Shape, float32

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
# What a folder may hold: Hugging Face's index, that of mindspore.unified_safetensors, one file.
WHOLE = (INDEX, "param_name_map.json", SINGLE)
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

    A folder may hold the same checkpoint twice, as an index with its files and as one file. Which of the two is newer
    cannot be told for sure (copies and downloads change the times), so :meth:`disagreements` compares them.

    Args:
        path: a ``.safetensors`` file, an index (``.json``), or a folder with ``model.safetensors.index.json``, with
            ``param_name_map.json``, with ``model.safetensors``, or with a single ``.safetensors`` file.

    Raises:
        FileNotFoundError: no such file or folder, or nothing of the kind in it.
        ValueError: a file that is damaged, an index of another form.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = Path(path)
        found, *others = _resolved(self.path)
        self.folder = found.parent
        self._source = found
        self._files = _files(found)
        self._others = [(other, _files(other)) for other in others]
        named = set(self._files.values())
        self._others = [(other, files) for other, files in self._others if other not in named]

    def names(self) -> List[str]:
        """All tensors, without opening any file of a checkpoint with an index."""
        return list(self._files)

    def entries(self, names: Iterable[str]) -> Dict[str, Entry]:
        """Shapes and dtypes of some of the tensors, from the headers."""
        out: Dict[str, Entry] = {}
        for path, wanted in self._by_file(names).items():
            with self._opened(path, wanted) as file:
                for name in wanted:
                    part = file.get_slice(name)
                    out[name] = Entry(tuple(part.get_shape()), str(part.get_dtype()))
        return out

    def metadata(self) -> Dict[str, str]:
        """The metadata of the files that are there; where they differ, of the first."""
        out: Dict[str, str] = {}
        for path in self._present():
            with _opened(path) as file:
                out = {**(file.metadata() or {}), **out}
        return out

    def twice(self, names: Iterable[str]) -> List[str]:
        """Some of the tensors that are in several files of an index, one line each; other readers may take another."""
        wanted = set(names)
        places: Dict[str, List[str]] = {}
        for path in self._present():
            with _opened(path) as file:
                for name in wanted.intersection(_keys(file)):
                    places.setdefault(name, []).append(path.name)
        return [f"{name} is in {' and in '.join(found)}" for name, found in places.items() if len(found) > 1]

    def disagreements(self, tensors: Mapping[str, Array]) -> List[str]:
        """What is not the same in the other checkpoints of the same folder, one line each.

        Args:
            tensors: what :meth:`load` gave.
        """
        lines: List[str] = []
        for other, files in self._others:
            both = f"{self._source.name} and {other.name} are both in {self.folder}, and"
            remedy = "give the path of the one that counts"
            different = sorted(set(files).symmetric_difference(self._files))
            if different:
                lines.append(f"{both} only one of them has {different[0]}; {remedy}")
                continue
            theirs = _loaded(_by_file(files, tensors))
            changed = [name for name, array in tensors.items() if array.tobytes() != theirs[name].tobytes()]
            if changed:
                more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
                lines.append(f"{both} {changed[0]}{more} differ; {remedy}")
        return lines

    def load(self, names: Iterable[str]) -> Arrays:
        """Some of the tensors, in float32. Nothing else is read."""
        return _loaded(self._by_file(names))

    def _present(self) -> List[Path]:
        return [path for path in dict.fromkeys(self._files.values()) if path.is_file()]

    def _by_file(self, names: Iterable[str]) -> Dict[Path, List[str]]:
        return _by_file(self._files, names)

    def _opened(self, path: Path, wanted: Iterable[str]) -> Any:
        try:
            return _opened(path, wanted)
        except FileNotFoundError as error:
            if not self._others:
                raise
            also = ", ".join(other.name for other, _ in self._others)
            raise FileNotFoundError(f"{error}; there is also {also}, if that is meant give its path") from error


def _by_file(files: Mapping[str, Path], names: Iterable[str]) -> Dict[Path, List[str]]:
    out: Dict[Path, List[str]] = {}
    for name in names:
        out.setdefault(files[name], []).append(name)
    return out


def _loaded(by_file: Mapping[Path, List[str]]) -> Arrays:
    out: Arrays = {}
    for path, wanted in by_file.items():
        with _opened(path, wanted) as file:
            for name in wanted:
                out[name] = float32(name, file.get_tensor(name))
    return out


def _resolved(path: Path) -> List[Path]:
    """The checkpoint, and others in the same folder."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise FileNotFoundError(f"interop: there is no checkpoint {path}")
    found = [path / name for name in WHOLE if (path / name).is_file()]
    if found:
        return found
    files = sorted(path.glob("*.safetensors"))
    if len(files) != 1:
        raise FileNotFoundError(
            f"interop: {path} has neither {INDEX} nor {SINGLE}, and {len(files)} other .safetensors files; "
            f"give the file or the index itself"
        )
    return files


def _files(path: Path) -> Dict[str, Path]:
    """From tensors to the files that hold them."""
    if path.suffix == ".json":
        return _index(path)
    with _opened(path) as file:
        return dict.fromkeys(_keys(file), path)


def _index(path: Path) -> Dict[str, Path]:
    try:
        index = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_once)
        files = {str(name): str(file) for name, file in index["weight_map"].items()}
    except _TwiceError as error:
        raise ValueError(f"interop: {path} names {error} twice") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"interop: {path} is no index of a checkpoint: it needs a weight_map of files") from error
    for name, file in files.items():
        if Path(file).name != file:
            raise ValueError(f"interop: {path} puts {name} into {file!r}, which is not a file beside the index")
    return {name: path.parent / file for name, file in files.items()}


class _TwiceError(Exception):
    """A key that a JSON object has twice; the second would silently win."""


def _once(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    out: Dict[str, Any] = {}
    for key, value in pairs:
        if key in out:
            raise _TwiceError(key)
        out[key] = value
    return out


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
