"""The C++ core by itself: against plain formulas, for every instruction set, and under sanitizers.

ThreadSanitizer is left out: GCC's OpenMP runtime is not built for it and reports its own barriers as races.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, List

import pytest

from ms_mhc import csrc
from tests.csrc import run


def _has_compiler() -> bool:
    try:
        run.builder.find_compiler()
    except run.builder.BuildError:
        return False
    return True


needs_compiler = pytest.mark.skipif(not _has_compiler(), reason="there is no C++ compiler")
# not optimized: compiling takes longer than running, and nothing is optimized away before it is checked
SANITIZERS = ["-O0", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


@needs_compiler
def test_where_there_is_a_compiler_there_is_the_library() -> None:
    # without it, every test of the cpu backend would silently be left out
    assert csrc.refusal() is None


@pytest.fixture(scope="module")
def core_test(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The core's test against the installed library."""
    assert csrc.refusal() is None
    return run.build_test(tmp_path_factory.mktemp("core") / "core_test", csrc.LIBRARY)


def _how_much() -> List[Any]:
    """All of it with the first instruction set; with the others what is small, and the rest among the slow tests."""
    first, *others = run.INSTRUCTION_SETS
    whole = [pytest.param(isa, False, marks=pytest.mark.slow) for isa in others]
    return [(first, False), *((isa, True) for isa in others), *whole]


@needs_compiler
@pytest.mark.parametrize(("isa", "small"), _how_much())
def test_core_computes_the_plain_formulas(isa: str, small: bool, core_test: Path) -> None:
    done = run.run_test(core_test, isa, small)
    if done.returncode == run.NOT_HERE:
        pytest.skip(f"this machine has no {isa}")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert done.stdout.endswith("0 failures\n")


@needs_compiler
def test_core_under_address_and_undefined_behaviour_sanitizers() -> None:
    command = [sys.executable, str(Path(run.__file__)), "--small", *SANITIZERS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "0 failures" in done.stdout


@needs_compiler
def test_core_test_notices_another_instruction_set(core_test: Path) -> None:
    done = subprocess.run([str(core_test), "baseline"], env={}, capture_output=True, text=True, check=False)
    names = done.stdout
    if names.endswith("0 failures\n"):
        pytest.skip("this machine has no other instruction set than the baseline")
    assert done.returncode == 1
    assert "not baseline" in done.stdout
