"""The C++ core by itself: against plain formulas, for every instruction set, and under sanitizers.

ThreadSanitizer is left out: GCC's OpenMP runtime is not built for it and reports its own barriers as races.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest

PROGRAM = Path(__file__).parent / "csrc" / "run.py"
HAS_COMPILER = any(shutil.which(name) for name in ("g++", "c++", "clang++"))


@pytest.mark.skipif(not HAS_COMPILER, reason="there is no C++ compiler")
@pytest.mark.parametrize(
    "flags",
    [["--small"], ["--small", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]],
    ids=["as installed", "address and undefined-behaviour sanitizers"],
)
def test_core_computes_the_plain_formulas(flags: List[str]) -> None:
    done = subprocess.run([sys.executable, str(PROGRAM), *flags], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "0 failures" in done.stdout
