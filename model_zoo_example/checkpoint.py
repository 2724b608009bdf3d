"""Checkpoints: one safetensors file per saved step, written whole or not at all.

A file is written under another name in the same folder, brought to the disk, and only then given its name; so
whatever happens meanwhile, each file that has a checkpoint's name is complete, and older ones are still there. Besides
the tensors it holds, as JSON, the step, the settings and a fingerprint of the text, and a checksum over all of it:
safetensors notices a file that is too short, but not one with a wrong bit in it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import zlib
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

FORMAT = "model_zoo_example/2"
_NAME = re.compile(r"step-(\d{8})\.safetensors")
_UNFINISHED = re.compile(r"\.step-\d{8}\.(\d+)\.unfinished")

Arrays = Mapping[str, NDArray[Any]]


class CheckpointError(Exception):
    """A checkpoint that cannot be written, found or read; the message is for the user."""


class Checkpoint(NamedTuple):
    """What a file holds.

    Attributes:
        path: the file.
        facts: step, settings, fingerprint of the text and whatever else :func:`save` was given.
        arrays: the tensors by name.
    """

    path: Path
    facts: Dict[str, Any]
    arrays: Dict[str, NDArray[Any]]


def save(folder: Path, arrays: Arrays, facts: Mapping[str, Any], keep: int) -> Path:
    """Write the checkpoint of step ``facts["step"]``, then remove all but the last ``keep``.

    Raises:
        CheckpointError: it cannot be written (disk full, folder gone). What was there is still there.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    path = folder / f"step-{facts['step']:08d}.safetensors"
    unfinished = folder / f".step-{facts['step']:08d}.{os.getpid()}.unfinished"
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    text = json.dumps(dict(facts), sort_keys=True)
    metadata = {"format": FORMAT, "facts": text, "checksum": _checksum(text, contiguous)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(contiguous, unfinished, metadata=metadata)
        _to_disk(unfinished)
        unfinished.replace(path)
        _to_disk(folder)  # the new name too
    except (OSError, SafetensorError) as error:
        with contextlib.suppress(OSError):  # a file system that may only be read has nothing to remove
            unfinished.unlink()
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        last = _names(folder)
        kept = f"the last complete checkpoint is {last[-1]}" if last else "there is no earlier checkpoint"
        raise CheckpointError(f"cannot write {path}: {reason}; {kept}") from error
    for old in _names(folder)[:-keep]:
        old.unlink(missing_ok=True)
    return path


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _checksum(facts: str, arrays: Arrays) -> str:
    value = zlib.crc32(facts.encode("utf-8"))
    for name in sorted(arrays):
        array = arrays[name]
        value = zlib.crc32(f"{name} {array.dtype.str} {array.shape}".encode(), value)
        flat: Any = array.reshape(-1).view(np.uint8)  # NumPy's stubs hide that an array is a buffer
        value = zlib.crc32(flat, value)
    return f"{value:08x}"


def _names(folder: Path) -> List[Path]:
    found = folder.iterdir() if folder.is_dir() else []
    return sorted(path for path in found if _NAME.fullmatch(path.name))


def newest(folder: Path) -> Optional[Path]:
    """The checkpoint of the highest step in a folder, or None."""
    names = _names(folder)
    return names[-1] if names else None


def remove_unfinished(folder: Path) -> None:
    """Remove what killed processes left of files that they were writing."""
    for path in folder.iterdir() if folder.is_dir() else []:
        found = _UNFINISHED.fullmatch(path.name)
        if found and not Path(f"/proc/{found[1]}").exists():
            path.unlink(missing_ok=True)


def load(given: Path) -> Checkpoint:
    """Read a checkpoint: a file, or the newest in a folder.

    Raises:
        CheckpointError: there is none, or it is damaged, or of another program.
    """
    from safetensors import SafetensorError, safe_open

    path = newest(given) if given.is_dir() else given
    if path is None:
        raise CheckpointError(f"there is no checkpoint in the folder {given}")
    if not path.is_file():
        raise CheckpointError(f"there is no file or folder {given}")
    if path.suffix == ".ckpt":
        raise CheckpointError(
            f"{path} is a .ckpt file, as earlier versions of this example wrote them; they cannot be read any more, "
            f"because their optimizer state went by position. Train anew"
        )
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise CheckpointError(f"{path} is no checkpoint of this program (format {FORMAT!r} is not in it)")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, SafetensorError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} is damaged or no safetensors file: {error}{_earlier(path)}") from error
    if _checksum(metadata.get("facts", ""), arrays) != metadata.get("checksum"):
        raise CheckpointError(f"{path} is damaged: its checksum does not fit{_earlier(path)}")
    return Checkpoint(path, json.loads(metadata["facts"]), arrays)


def _earlier(path: Path) -> str:
    others = [other for other in _names(path.parent) if other.name < path.name]
    return f"; the one before it is {others[-1]}" if others else ""


def check_names(checkpoint: Checkpoint, wanted: Mapping[str, Any]) -> None:
    """See that the file holds these tensors and no others, by name and shape.

    Raises:
        CheckpointError: it does not; the message names the first that differs.
    """
    for name in sorted(wanted.keys() | checkpoint.arrays.keys()):
        if name not in wanted or name not in checkpoint.arrays:
            where = "the file" if name in checkpoint.arrays else "this run"
            raise CheckpointError(f"{checkpoint.path} holds another network: only {where} has {name}")
        stored, here = checkpoint.arrays[name].shape, tuple(wanted[name].shape)
        if stored != here:
            raise CheckpointError(f"{checkpoint.path} holds another network: {name} is {stored} there, {here} here")
