"""The symbols of 64-bit ELF libraries and objects, read without binutils."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterable, Iterator, List, Set, Tuple

_SECTION_SYMTAB, _SECTION_DYNSYM = 2, 11
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_LOCAL, _WEAK = 0, 2
_SECTION_DYNAMIC, _TAG_NEEDED = 6, 1
_DYNAMIC = struct.Struct("<qQ")
# The libraries that any C++ program on this machine finds.
_SYSTEM = (
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libgomp.so.1",
    "libm.so.6",
    "libpthread.so.0",
    "librt.so.1",
    "libstdc++.so.6",
)
_INTERPRETER = re.compile(r"_?Py|__stack_chk")  # defined by the program that loads a library


@dataclass(frozen=True)
class Symbols:
    """What a library offers to others and what it wants from them."""

    defined: Set[str]
    undefined: Set[str]


def dynamic_symbols(library: Path) -> Symbols:
    """The symbols of a shared library."""
    return _symbols(library, _SECTION_DYNSYM)


def object_symbols(path: Path) -> Symbols:
    """The symbols of an object file."""
    return _symbols(path, _SECTION_SYMTAB)


def open_symbols(libraries: Iterable[Path], others: Iterable[Path]) -> Set[str]:
    """The symbols that libraries leave open and neither they, nor others, nor the system, nor Python defines."""
    found = [dynamic_symbols(library) for library in libraries]
    beside = [dynamic_symbols(library) for library in (*others, *_system_libraries())]
    defined: Set[str] = set().union(*(symbols.defined for symbols in found + beside))
    wanted: Set[str] = set().union(*(symbols.undefined for symbols in found))
    return {name for name in wanted - defined if not _INTERPRETER.match(name)}


def _system_libraries() -> List[Path]:
    """Where this process finds the system's libraries: load them, then look at its own memory map."""
    for name in _SYSTEM:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue  # newer C libraries have merged some of them into libc
    mapped = {line.split(maxsplit=5)[-1].strip() for line in Path("/proc/self/maps").read_text().splitlines()}
    stems = {name.split(".so")[0] for name in _SYSTEM} | {"ld-linux-x86-64", "ld-linux-aarch64"}
    return sorted(Path(p) for p in mapped if ".so" in p and Path(p).name.split(".so")[0] in stems)


def needed_libraries(library: Path) -> List[str]:
    """The file names of the libraries that a shared library is linked against."""
    with _image(library) as image:
        sections = list(_sections(image))
        names: List[str] = []
        for kind, offset, size, link in sections:
            if kind != _SECTION_DYNAMIC:
                continue
            _, texts_at, texts_size, _ = sections[link]
            texts = image[texts_at : texts_at + texts_size]
            entries = _DYNAMIC.iter_unpack(image[offset : offset + size])
            names += [texts[at : texts.index(b"\0", at)].decode() for tag, at in entries if tag == _TAG_NEEDED]
    return names


@contextlib.contextmanager
def _image(path: Path) -> Iterator[mmap.mmap]:
    """The bytes of a file that this module can read."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image:
        if image[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{path} is not a little-endian 64-bit ELF file")
        yield image


def _symbols(path: Path, table: int) -> Symbols:
    found = Symbols(set(), set())
    with _image(path) as image:
        sections = list(_sections(image))
        for kind, offset, size, link in sections:
            if kind != table:
                continue
            _, names_at, names_size, _ = sections[link]
            names = image[names_at : names_at + names_size]
            for name_at, info, _, section, _, _ in _SYMBOL.iter_unpack(image[offset : offset + size]):
                binding = info >> 4
                if binding == _LOCAL:
                    continue
                name = names[name_at : names.index(b"\0", name_at)].decode()
                if section:
                    found.defined.add(name)
                elif binding != _WEAK:
                    found.undefined.add(name)
    return found


def _sections(image: mmap.mmap) -> Iterator[Tuple[int, int, int, int]]:
    """(type, offset, size, link) of every section."""
    (table,) = struct.unpack_from("<Q", image, 0x28)
    entry_size, count = struct.unpack_from("<HH", image, 0x3A)
    for index in range(count):
        _, kind, _, _, offset, size, link, *_ = _SECTION_HEADER.unpack_from(image, table + index * entry_size)
        yield kind, offset, size, link


def constructors(mangled: Set[str]) -> Dict[str, str]:
    """The C++ constructors among mangled names, with the class that each constructs."""
    return {name: path[-1] for name in mangled for path, rest in [_nested(name)] if path and rest[:2] in ("C1", "C2")}


def _nested(mangled: str) -> Tuple[List[str], str]:
    """The plain components of a nested name ``_ZN<length><name>...`` and what follows them."""
    rest = mangled[3:].lstrip("K") if mangled.startswith("_ZN") else ""
    path: List[str] = []
    while rest[:1].isdigit():
        digits = len(rest) - len(rest.lstrip("0123456789"))
        length = int(rest[:digits])
        path.append(rest[digits : digits + length])
        rest = rest[digits + length :]
    return path, rest
