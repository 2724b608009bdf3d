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
from typing import List, Sequence

HERE = pathlib.Path(__file__).resolve().parent
CORE = HERE.parent.parent / "ms_mhc" / "csrc"
NOT_HERE = 101  # what the test returns where the machine lacks the instruction set


def _load(path: pathlib.Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


builder = _load(CORE / "build.py")
INSTRUCTION_SETS = ("baseline", *builder.VARIANTS.get(platform.machine(), {}))


def build_test(program: pathlib.Path, library: pathlib.Path, flags: Sequence[str] = ()) -> pathlib.Path:
    """Compile the test against a library of the core, and return it."""
    common = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-fopenmp", f"-I{CORE}"]
    sources = [str(HERE / "core_test.cc"), str(library), f"-Wl,-rpath,{library.parent}"]
    subprocess.run([*builder.find_compiler(), *common, *flags, *sources, "-o", str(program)], check=True)
    return program


def run_test(program: pathlib.Path, isa: str, small: bool = False) -> subprocess.CompletedProcess[str]:
    """Run the test with one instruction set."""
    command = [str(program), isa, *(["--small"] if small else [])]
    # more threads than processors: none of them may wait by spinning
    environment = {**os.environ, "MS_MHC_CPU_ISA": isa, "OMP_WAIT_POLICY": "passive"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def main(arguments: List[str]) -> int:
    """Return the number of instruction sets that failed."""
    flags = [flag for flag in arguments if flag != "--small"]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        library = builder.build(folder / "libcore.so", ["-Werror", *flags])
        program = build_test(folder / "core_test", library, flags)
        failed = 0
        for isa in INSTRUCTION_SETS:
            done = run_test(program, isa, "--small" in arguments)
            print(f"{isa}: {done.stdout}{done.stderr}", end="", flush=True)
            failed += done.returncode not in (0, NOT_HERE)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
