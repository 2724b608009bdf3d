"""A checkpoint to read from, whatever form it has."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Dict, Iterable, List, Mapping, Union

from ms_mhc.interop.arrays import Array, Arrays
from ms_mhc.interop.files import Entry, Files, PathLike, indexed, one_file, opened, read_json
from ms_mhc.interop.ranks import Ranks

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
# What a folder may hold: Hugging Face's index, those of mindspore.unified_safetensors and of MindSpore Transformers,
# one file.
WHOLE = (INDEX, "param_name_map.json", "metadata.json", SINGLE)

# MindSpore Transformers puts the optimizer's file beside the model's.
_OPTIMIZER = re.compile(r"(?:.*-)?opt-\d+-\d+\.safetensors")

Source = Union[Files, Ranks]


class Checkpoint:
    """A checkpoint to read from. Nothing but headers is read before a tensor is asked for.

    A folder may hold the same checkpoint twice, as an index with its files and as one file. Which of the two is newer
    cannot be told for sure (copies and downloads change the times), so :meth:`disagreements` compares them.

    Args:
        path: a ``.safetensors`` file, an index (``.json``), or a folder with one of ``WHOLE`` or with a single
            ``.safetensors`` file that is not an optimizer's.

    Attributes:
        folder: where the file or the index lies.

    Raises:
        FileNotFoundError: no such file or folder, or nothing of the kind in it.
        ValueError: a file that is damaged, an index of another form.
    """

    def __init__(self, path: PathLike) -> None:
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"interop: path must be a path, but got {type(path).__name__}")
        self.path = Path(path)
        first, *others = _resolved(self.path)
        self.folder = first.parent
        self._source = _source(first)
        own = set(self._source.paths())
        self._others = [_source(other) for other in others if other not in own]

    def names(self) -> List[str]:
        """All tensors."""
        return self._source.names()

    def entries(self, names: Iterable[str]) -> Dict[str, Entry]:
        """Shapes and dtypes of some of the tensors, from the headers."""
        try:
            return self._source.entries(names)
        except FileNotFoundError as error:
            if not self._others:
                raise
            also = ", ".join(other.path.name for other in self._others)
            raise FileNotFoundError(f"{error}; there is also {also}, if that is meant give its path") from error

    def load(self, names: Iterable[str]) -> Arrays:
        """Some of the tensors, in float32."""
        return self._source.load(names)

    def twice(self, names: Iterable[str]) -> List[str]:
        """Some of the tensors of which there is more than one, one line each."""
        return self._source.twice(names)

    def metadata(self) -> Dict[str, str]:
        """The metadata of the files that are there; where they differ, of the first."""
        out: Dict[str, str] = {}
        for path in self._source.paths():
            if path.is_file():
                with opened(path) as file:
                    out = {**(file.metadata() or {}), **out}
        return out

    def disagreements(self, tensors: Mapping[str, Array]) -> List[str]:
        """What is not the same in the other checkpoints of the same folder, one line each.

        Args:
            tensors: what :meth:`load` gave.
        """
        lines: List[str] = []
        for other in self._others:
            both = f"{self._source.path.name} and {other.path.name} are both in {self.folder}, and"
            remedy = "give the path of the one that counts"
            different = sorted(set(other.names()).symmetric_difference(self.names()))
            if different:
                lines.append(f"{both} only one of them has {different[0]}; {remedy}")
                continue
            theirs = other.load(tensors)
            changed = [name for name, array in tensors.items() if array.tobytes() != theirs[name].tobytes()]
            if changed:
                more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
                lines.append(f"{both} {changed[0]}{more} differ; {remedy}")
        return lines


def whole(folder: Path) -> List[Path]:
    """The checkpoints in a folder under names that say so."""
    return [folder / name for name in WHOLE if (folder / name).is_file() and not _foreign(folder / name)]


def _foreign(path: Path) -> bool:
    """A ``metadata.json`` of something else: many programs write one."""
    return path.name == "metadata.json" and '"state_dict_metadata"' not in path.read_text("utf-8", "replace")


def _source(path: Path) -> Source:
    if path.suffix != ".json":
        return one_file(path)
    index = read_json(path)
    if isinstance(index, dict) and "state_dict_metadata" in index:
        return Ranks(path, index)
    return indexed(path, index)


def _resolved(path: Path) -> List[Path]:
    """The checkpoint, and others in the same folder."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise FileNotFoundError(f"interop: there is no checkpoint {path}")
    found = whole(path)
    if found:
        return found
    files = sorted(file for file in path.glob("*.safetensors") if not _OPTIMIZER.fullmatch(file.name))
    if len(files) != 1:
        raise FileNotFoundError(
            f"interop: {path} has none of {', '.join(WHOLE)}, and {len(files)} other .safetensors files; "
            f"give the file or the index itself"
        )
    return files
