"""What MindSpore's Ascend plugin wants from CANN, read off the installed wheel."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional, Set

from . import elf

_HCCL_NAMES = tuple(re.compile(prefix + rb"[A-Za-z0-9]+\0") for prefix in (b"Hccl", b"Hcom", b"hcom"))
_PRINTABLE = range(0x20, 0x7F)
_DLOPENED = re.compile(r"ORIGIN_METHOD\w*\((\w+),")


@dataclass(frozen=True)
class MindSpore:
    """An installed MindSpore with its Ascend plugin."""

    root: Path
    version: str
    name = "mindspore"
    preloaded = ("libshmem",)  # the wheel brings one that wants a driver

    @staticmethod
    def installed() -> Optional[MindSpore]:
        """The MindSpore of this interpreter, without importing it; ``None`` if there is none with the plugin."""
        spec = importlib.util.find_spec("mindspore")
        if spec is None or spec.origin is None:
            return None
        root = Path(spec.origin).parent
        if not (root / "lib/plugin/ascend").is_dir():
            return None
        version_file = root / "version.py"
        match = re.search(r"['\"]([0-9][^'\"]*)['\"]", version_file.read_text()) if version_file.is_file() else None
        return MindSpore(root, match.group(1) if match else "unknown")

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
        opened = elf.open_symbols(self.ascend_libraries(), self.libraries())
        return {name for name in opened if "mindspore" not in name}

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
