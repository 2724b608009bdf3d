"""Shared libraries as files."""

from __future__ import annotations

import struct
from pathlib import Path


def cut_short(library: Path) -> bool:
    """Whether it ends before its table of sections, which stands last: loading such a file kills the process."""
    with library.open("rb") as file:
        header = file.read(64)
    if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01":
        return False  # the loader says what else is wrong
    (table,) = struct.unpack_from("<Q", header, 0x28)
    size, count = struct.unpack_from("<HH", header, 0x3A)
    return library.stat().st_size < table + size * count
