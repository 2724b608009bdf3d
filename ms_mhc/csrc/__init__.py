"""The operators' mathematics in C++, and its compiled library: where it lies and whether it can be used."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any, Optional

from aclnn_adapter import folders
from aclnn_adapter.libraries import cut_short

LIBRARY = Path(__file__).resolve().parent / "libms_mhc_cpu.so"
ISA_VARIABLE = "MS_MHC_CPU_ISA"
REBUILD = "python -m ms_mhc.csrc.build"


@cache
def refusal() -> Optional[str]:
    """Why the compiled library cannot be used, with what to do about it; ``None`` if it can.

    The library is compared with the sources beside it, and asked for the instruction set that the environment variable
    ``MS_MHC_CPU_ISA`` names. The answer is that of the first call.
    """
    from ms_mhc.csrc import build

    name = LIBRARY.name
    if not LIBRARY.is_file():
        return (
            f"{name} was not compiled when the package was installed; "
            f"install a C++ compiler such as g++, then run: {REBUILD}"
        )
    try:
        if cut_short(LIBRARY):
            return f"{name} cannot be loaded (a part of the file is missing); compile it here: {REBUILD}"
        library = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        return f"{name} cannot be loaded ({error}); compile it here: {REBUILD}"
    try:
        sources = build.source_digest()
    except build.BuildError as error:
        return f"{name} cannot be compared with its sources ({error}); install the package again"
    try:
        compiled_from = _text(library, "MhcSourceDigest")
    except AttributeError:  # of a version that had no digest
        compiled_from = ""
    if compiled_from != sources:
        return f"{name} was compiled from other C++ sources than those beside it; compile it again: {REBUILD}"
    if not _text(library, "MhcIsa"):
        asked, names = os.environ.get(ISA_VARIABLE), _text(library, "MhcIsaNames")
        return f"{ISA_VARIABLE} is {asked!r}, which is not one of the instruction sets to be had here: {names}"
    try:
        loadable()
    except OSError as error:
        return str(error)
    return None


def _text(library: ctypes.CDLL, name: str) -> str:
    function = getattr(library, name)
    function.restype = ctypes.c_char_p
    return str(function().decode())


@cache
def loadable() -> Path:
    """The library by a path without a colon, which ends the path in the names that ``ops.Custom`` takes.

    Where the package lies under a colon, that is a link in a folder of this process, which is removed at exit.

    Raises:
        OSError: no folder for temporary files can be written whose path has no colon.
    """
    if ":" not in str(LIBRARY):
        return LIBRARY
    parent = folders.temporary_parent(":")
    if parent is None:
        raise OSError(
            f"{LIBRARY} has a colon in its path, and no temporary folder without one can be written; set TMPDIR"
        )
    link = folders.of_process("ms_mhc_", parent) / LIBRARY.name
    link.symlink_to(LIBRARY)
    return link


@cache
def version() -> float:
    """What the scalars of a call carry, by which the library knows that they were written for it."""
    return float(int(_text(ctypes.CDLL(str(LIBRARY)), "MhcSourceDigest")[:6] or "0", 16))


@cache
def has(name: str) -> bool:
    """Whether the library, where it can be used, has this function."""
    return refusal() is None and hasattr(ctypes.CDLL(str(LIBRARY)), name)


def function(name: str) -> Any:
    """A function of the library, which can be used and has it."""
    return getattr(ctypes.CDLL(str(LIBRARY)), name)
