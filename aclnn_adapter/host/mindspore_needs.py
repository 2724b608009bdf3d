"""What MindSpore's Ascend plugin wants from CANN, read off the installed wheel."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import List, Set

from . import elf

# The libraries that any C++ program on this machine finds without CANN.
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
# The interpreter and the wheel itself, which define these when the plugin is loaded.
_FOREIGN = re.compile(r"_?Py|__stack_chk|.*mindspore")
_HCCL_NAMES = tuple(re.compile(prefix + rb"[A-Za-z0-9]+\0") for prefix in (b"Hccl", b"Hcom", b"hcom"))
_PRINTABLE = range(0x20, 0x7F)
_DLOPENED = re.compile(r"ORIGIN_METHOD\w*\((\w+),")


class MindSporeMissingError(RuntimeError):
    """MindSpore cannot be found, or it comes without the Ascend plugin."""


@dataclass(frozen=True)
class Wheel:
    """An installed MindSpore."""

    root: Path
    version: str

    @staticmethod
    def installed() -> Wheel:
        """The MindSpore of this interpreter, without importing it."""
        spec = importlib.util.find_spec("mindspore")
        if spec is None or spec.origin is None:
            raise MindSporeMissingError(
                "MindSpore is not installed in this Python; the host CANN serves MindSpore's wheel"
            )
        root = Path(spec.origin).parent
        if not (root / "lib/plugin/ascend").is_dir():
            raise MindSporeMissingError(f"{root} comes without the Ascend plugin (lib/plugin/ascend)")
        version_file = root / "version.py"
        match = re.search(r"['\"]([0-9][^'\"]*)['\"]", version_file.read_text()) if version_file.is_file() else None
        return Wheel(root, match.group(1) if match else "unknown")

    def libraries(self) -> List[Path]:
        """Every shared library that a process with the Ascend plugin may load."""
        found = (p for p in (self.root / "lib").rglob("*.so*") if p.is_file())
        return sorted(p for p in found if "plugin/gpu" not in p.as_posix() and "_gpu." not in p.name)

    def ascend_libraries(self) -> List[Path]:
        """The libraries that are linked against CANN."""
        plugin = [p for p in self.libraries() if "lib/plugin/" in p.as_posix() and "ascend" in p.as_posix()]
        return [p for p in plugin if "op_impl" not in p.as_posix()] + [self.root / "lib/libmindspore_ge_backend.so"]

    def linked_symbols(self) -> Set[str]:
        """The symbols that the Ascend libraries leave open and nothing in the wheel defines."""
        defined: Set[str] = set()
        for library in self.libraries() + _system_libraries():
            defined |= elf.dynamic_symbols(library).defined
        wanted: Set[str] = set()
        for library in self.ascend_libraries():
            wanted |= elf.dynamic_symbols(library).undefined
        return {name for name in wanted - defined if not _FOREIGN.match(name)}

    def looked_up_symbols(self) -> Set[str]:
        """The runtime functions that the plugin looks up by name, from its own headers."""
        folder = self.root / "include/mindspore/ccsrc/plugin/ascend/res_manager/symbol_interface"
        return {name for header in folder.glob("*.h") for name in _DLOPENED.findall(header.read_text())}

    def collective_symbols(self) -> Set[str]:
        """The HCCL functions whose names stand in the plugin as strings."""
        names: Set[str] = set()
        for library in self.ascend_libraries():
            image = library.read_bytes()
            for match in (match for pattern in _HCCL_NAMES for match in pattern.finditer(image)):
                if image[match.start() - 1] not in _PRINTABLE:  # a whole string, not the end of a longer one
                    names.add(match.group()[:-1].decode())
        return names


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
