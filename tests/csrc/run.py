# SPDX-License-Identifier: Apache-2.0
"""Builds the C++ core and its test, and runs the test once for every instruction set.

python tests/csrc/run.py                                        # as it is installed, warnings are errors
python tests/csrc/run.py -O1 -g -fsanitize=address,undefined    # with these flags as well
python tests/csrc/run.py --small ...                            # only what is small, for slow tools
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
from types import ModuleType

HERE = pathlib.Path(__file__).resolve().parent
CORE = HERE.parent.parent / "ms_mhc" / "csrc"


def _load(path: pathlib.Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(flags: list[str]) -> int:
    """Return 0 if every run passed."""
    builder = _load(CORE / "build.py")
    arguments = [flag for flag in flags if flag == "--small"]
    flags = [flag for flag in flags if flag != "--small"]
    with tempfile.TemporaryDirectory() as folder:
        library = builder.build(pathlib.Path(folder) / "libcore.so", ["-Werror", *flags])
        program = pathlib.Path(folder) / "core_test"
        common = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-fopenmp", f"-I{CORE}"]
        sources = [str(HERE / "core_test.cc"), str(library), f"-Wl,-rpath,{folder}"]
        subprocess.run([*builder.find_compiler(), *common, *flags, *sources, "-o", str(program)], check=True)
        failed = 0
        for name in ("baseline", *builder.VARIANTS.get(platform.machine(), {})):
            print(f"{name}: ", end="", flush=True)
            run = subprocess.run([str(program), *arguments], env={**os.environ, "MS_MHC_CPU_ISA": name}, check=False)
            failed += run.returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
