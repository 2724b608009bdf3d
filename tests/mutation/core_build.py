"""The C++ core, compiled so that after an edit only what it touches is compiled again, without optimization."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from typing import Dict, List

from tests.csrc import run as core_test

_FLAGS = ("-O0", "-w", "-fopenmp")


class Core:
    """The objects of the sources in a folder as they are now, and libraries with an edit among them."""

    def __init__(self, sources: Path, folder: Path) -> None:
        self.sources = sources
        self.builder = core_test._load(sources / "build.py")
        self.folder = folder
        folder.mkdir()
        variants: Dict[str, List[str]] = self.builder.VARIANTS.get(platform.machine(), {})
        self.variants = {"baseline": [], **{name: list(flags) for name, flags in variants.items()}}
        names = (*self.variants, *self.builder.ONCE)
        self.objects = {name: self._compile(name, folder / f"{name}.o") for name in names}

    def library(self, edited: Path, isa: str, destination: Path) -> bool:
        """The library with an edited file, if it compiles. Kernels are those of one instruction set."""
        unit = edited.name if edited.name in self.builder.ONCE else isa
        objects = dict(self.objects)
        try:
            for name in (unit, "about.cc"):  # which holds the digest
                objects[name] = self._compile(name, self.folder / f"edited_{name}.o")
            linked = [*map(str, objects.values()), "-o", str(destination)]
            self._run([*self.builder.find_compiler(), "-shared", "-fopenmp", *linked])
        except subprocess.CalledProcessError:
            return False
        return True

    def test(self, library: Path) -> Path:
        """The core's test, which loads the library when it starts."""
        program = library.with_name("core_test")
        return program if program.exists() else core_test.build_test(program, library)

    def _compile(self, name: str, target: Path) -> Path:
        if name in self.variants:
            own, source = [f"-DMHC_ISA={name}", *self.variants[name]], self.builder.KERNELS
        else:
            own, source = [f"-DMHC_HAS_{isa.upper()}" for isa in self.variants if isa != "baseline"], name
            own.append(f'-DMHC_SOURCE_DIGEST="{self.builder.source_digest()}"')
        self._run([*self.builder.find_compiler(), *self.builder.FLAGS, *_FLAGS, *own, "-c", source, "-o", str(target)])
        return target

    def _run(self, command: List[str]) -> None:
        subprocess.run(command, cwd=self.sources, check=True, capture_output=True)
