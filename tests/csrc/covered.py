# SPDX-License-Identifier: Apache-2.0
"""Which lines of the C++ core its tests execute, counted by gcov.

python -m tests.csrc.covered

The core is compiled for counting, with all its instruction sets. Then run what tests it: ``core_test.cc`` once for
every instruction set, and the tests of the C functions that MindSpore calls. A line of the kernels counts as executed
where one instruction set has executed it. Printed are a row for each file and the lines that nothing executed.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections import defaultdict
from typing import Dict, List

from tests.csrc import run

FLAGS = ["-O1", "--coverage", "-fprofile-update=atomic"]
INTERFACE = ["tests/test_core_interface.py"]
ROOT = pathlib.Path(__file__).resolve().parents[2]
LEAST = 95.0  # percent of the lines

_WITH_LIBRARY = """
import pathlib, sys
import pytest
from ms_mhc import csrc
csrc.LIBRARY = pathlib.Path(sys.argv[1])
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[2:]]))
"""

Lines = Dict[int, int]


def counted(folder: pathlib.Path) -> Dict[str, Lines]:
    """How often each line of each file was executed, by what lies in the folder of the objects."""
    found: Dict[str, Lines] = defaultdict(lambda: defaultdict(int))
    for data in sorted(folder.glob("*.gcda")):
        command = ["gcov", "--json-format", "--stdout", data.name]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        for text in filter(None, done.stdout.splitlines()):
            report = json.loads(text)
            for file in report["files"]:
                path = pathlib.Path(report["current_working_directory"], file["file"]).resolve()
                if path.parent == run.CORE:
                    for line in file["lines"]:
                        found[path.name][line["line_number"]] += line["count"]
    return found


def main() -> int:
    """Print the rows. The status is 1 where too few lines were executed."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        library = run.builder._compile(run.builder.find_compiler(), folder, FLAGS)
        program = run.build_test(folder / "core_test", library)
        for isa in run.INSTRUCTION_SETS:
            done = run.run_test(program, isa, small=True)
            assert done.returncode in (0, run.NOT_HERE), done.stdout + done.stderr
        command = [sys.executable, "-c", _WITH_LIBRARY, str(library), *INTERFACE]
        subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
        files = counted(folder)
    missed: Dict[str, List[int]] = {
        f: sorted(n for n, count in lines.items() if not count) for f, lines in files.items()
    }
    for file, lines in sorted(files.items()):
        percent = 100 * (1 - len(missed[file]) / len(lines))
        print(f"{file:28} {len(lines):4} lines {percent:6.1f} %  {', '.join(map(str, missed[file]))}".rstrip())
    total = sum(map(len, files.values()))
    percent = 100 * (1 - sum(map(len, missed.values())) / total)
    print(f"{'all':28} {total:4} lines {percent:6.1f} %")
    return int(percent < LEAST)


if __name__ == "__main__":
    sys.exit(main())
