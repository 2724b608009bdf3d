"""MindSpore's extension for kernels called eagerly, as far as a machine without CANN shows it: text, cache, fall-back.

What it computes is tested in tests/host/test_eager_kernels.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Iterator, List

import pytest

from aclnn_adapter import extension
from aclnn_adapter.operators import OPERATORS

COMPILING = """
import logging, sys, time
from pathlib import Path
from aclnn_adapter import extension

def compile_(self, text, library):
    with open("compiled", "a") as file:
        file.write("once\\n")
    time.sleep(0.5)
    library.write_bytes(b"not ELF, but whole")

extension._Builder._compile = compile_
Path(f"ready{sys.argv[1]}").touch()
while len(list(Path().glob("ready*"))) < PROCESSES:
    time.sleep(0.01)
print(extension._Builder("x", [], backend="Ascend").cached())
"""


@pytest.fixture
def builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A builder with an empty cache that compiles a line of text."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("ASCEND_OPP_PATH", str(tmp_path / "cann/opp"))
    made = extension._Builder("x", [], backend="Ascend")
    made.compiled = []

    def compile_(text: str, library: Path) -> None:
        made.compiled.append(text)
        library.write_text("compiled")

    monkeypatch.setattr(made, "_compile", compile_)
    yield made
    extension.refusal.cache_clear()
    extension._loaded.cache_clear()


def test_it_is_compiled_once_and_again_when_its_text_changes(builder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = builder.cached()
    assert builder.cached() == first
    assert len(builder.compiled) == 1
    monkeypatch.setattr(extension, "source", lambda: "another")
    assert builder.cached() != first
    assert builder.compiled[1:] == ["another"]


def test_a_damaged_one_is_compiled_again(builder: Any) -> None:
    library = builder.cached()
    whole = Path(sys.executable).resolve().read_bytes()
    library.write_bytes(whole)
    assert builder.cached() == library
    assert len(builder.compiled) == 1
    library.write_bytes(whole[: len(whole) // 2])
    builder.cached()
    assert len(builder.compiled) == 2


def test_another_cann_has_another_one(builder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = builder.cached()
    monkeypatch.setattr(extension.platform, "cann_version", lambda: "99.9")
    assert builder.cached() != first


def test_without_a_folder_that_lasts_it_goes_to_the_temporary_one(
    builder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(extension.folders.tempfile, "tempdir", str(tmp_path))
    assert tmp_path in builder.cached().parents
    (folder,) = tmp_path.glob("ms_mhc-*")
    assert folder.stat().st_mode & 0o077 == 0


def test_a_temporary_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    extension.folders.private(tmp_path / "real")
    with pytest.raises(FileExistsError, match=r"link belongs to somebody else; \$TMPDIR names another folder"):
        extension.folders.private(tmp_path / "link")


def test_a_forked_process_leaves_the_folder_of_its_parent_alone(tmp_path: Path) -> None:
    extension.folders._remove(tmp_path, os.getpid() + 1)
    assert tmp_path.is_dir()
    extension.folders._remove(tmp_path, os.getpid())
    assert not tmp_path.exists()


def test_processes_that_start_together_compile_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("ASCEND_OPP_PATH", str(tmp_path / "cann/opp"))
    monkeypatch.setenv("PYTHONPATH", str(Path(extension.__file__).parents[1]))
    code = COMPILING.replace("PROCESSES", "3")
    started = [
        subprocess.Popen([sys.executable, "-c", code, str(i)], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        for i in range(3)
    ]
    found = {process.communicate(timeout=120)[0] for process in started}
    assert [process.returncode for process in started] == [0] * 3
    assert len(found) == 1
    assert (tmp_path / "compiled").read_text() == "once\n"


@pytest.mark.parametrize("compiler", ["g++ is not here", "false"])
def test_where_it_cannot_be_compiled_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, compiler: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("ASCEND_OPP_PATH", str(tmp_path / "opp"))
    monkeypatch.setattr(extension, "_COMPILER", compiler)
    extension.refusal.cache_clear()
    extension._loaded.cache_clear()
    reasons: List[Any] = [extension.refusal(), extension.refusal()]
    extension.refusal.cache_clear()
    assert compiler in reasons[0]
    said = [r.getMessage() for r in caplog.records if "cannot be had" in r.getMessage()]
    assert said == [f"{reasons[0]}; each eager call goes through a small graph, which is slower"]


def test_the_text_has_a_function_for_every_operator_with_the_contracts_c_types() -> None:
    text = extension.source()
    for name, operator in OPERATORS.items():
        (line,) = [line for line in text.splitlines() if line.startswith(f"pybind11::object {name}(")]
        parameters = line[line.index("(") + 1 : line.rindex(", const Shapes")].split(", ")
        arguments = [*operator.inputs, *operator.attrs]
        types = {"aclTensor*": "const Tensor &"}
        assert parameters == [f"{types.get(a.c_type, a.c_type + ' ')}{a.name}" for a in arguments]
