"""The compiled library belongs to its sources, and says so when it does not."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Iterator

import pytest

from ms_mhc import csrc
from ms_mhc.csrc import build

REPOSITORY = Path(csrc.__file__).parents[2]
needs_library = pytest.mark.skipif(not csrc.LIBRARY.is_file(), reason="the library was not compiled")


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the C++ sources that is compared in place of the package's own."""
    folder = tmp_path / "sources"
    shutil.copytree(build.SOURCES, folder, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    monkeypatch.setattr(build, "SOURCES", folder)
    return folder


@pytest.fixture(autouse=True)
def _fresh_answers() -> Iterator[None]:
    csrc.refusal.cache_clear()
    csrc.loadable.cache_clear()
    yield
    csrc.refusal.cache_clear()
    csrc.loadable.cache_clear()


@needs_library
def test_sources_elsewhere_and_touched_are_the_same_sources(sources: Path) -> None:
    for path in sources.iterdir():
        os.utime(path, (1, 1))
    assert csrc.refusal() is None


@needs_library
@pytest.mark.parametrize("name", ["kernels.cc", "vector.h", "mhc.h"])
def test_an_edit_of_any_source_is_seen(sources: Path, name: str) -> None:
    with (sources / name).open("a") as file:
        file.write("\n")
    assert "was compiled from other C++ sources than those beside it" in str(csrc.refusal())
    assert str(csrc.refusal()).endswith("python -m ms_mhc.csrc.build")


@needs_library
def test_a_source_more_or_under_another_name_is_seen(sources: Path) -> None:
    (sources / "more.h").touch()
    assert "other C++ sources" in str(csrc.refusal())
    csrc.refusal.cache_clear()
    (sources / "more.h").unlink()
    (sources / "tile.h").rename(sources / "tiles.h")
    assert "other C++ sources" in str(csrc.refusal())


@needs_library
@pytest.mark.parametrize("name", ["FLAGS", "VARIANTS"])
def test_other_flags_are_seen(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(build, name, ("-std=c++17",) if name == "FLAGS" else {})
    assert "other C++ sources" in str(csrc.refusal())


@needs_library
def test_no_sources_to_compare_with(sources: Path) -> None:
    shutil.rmtree(sources)
    assert "cannot be compared with its sources" in str(csrc.refusal())
    csrc.refusal.cache_clear()
    shutil.copytree(Path(build.__file__).parent, sources)
    (sources / "more.h").mkdir()
    assert "the C++ sources cannot be read" in str(csrc.refusal())


def test_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csrc, "LIBRARY", tmp_path / "libms_mhc_cpu.so")
    assert str(csrc.refusal()).startswith("libms_mhc_cpu.so was not compiled")
    assert str(csrc.refusal()).endswith("python -m ms_mhc.csrc.build")


def test_something_else_in_place_of_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csrc, "LIBRARY", tmp_path / "libms_mhc_cpu.so")
    csrc.LIBRARY.write_text("not a library")
    assert str(csrc.refusal()).startswith("libms_mhc_cpu.so cannot be loaded")


@needs_library
@pytest.mark.parametrize("left", [100, 0.5, 0.999])
def test_a_library_of_which_a_part_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: float) -> None:
    whole = csrc.LIBRARY.read_bytes()
    monkeypatch.setattr(csrc, "LIBRARY", tmp_path / "libms_mhc_cpu.so")
    csrc.LIBRARY.write_bytes(whole[: int(left * len(whole)) if left < 1 else int(left)])
    assert str(csrc.refusal()).startswith("libms_mhc_cpu.so cannot be loaded (a part of the file is missing)")


@needs_library
def test_a_library_of_a_version_without_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "old.cc"
    source.write_text('extern "C" int MhcPre() { return 0; }\n')
    library = tmp_path / "libms_mhc_cpu.so"
    subprocess.run([*build.find_compiler(), "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    monkeypatch.setattr(csrc, "LIBRARY", library)
    assert "other C++ sources" in str(csrc.refusal())


def _python(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    every = {**os.environ, "PYTHONPATH": str(REPOSITORY), **environment}
    return subprocess.run([sys.executable, "-c", program], env=every, capture_output=True, text=True, check=False)


@needs_library
def test_an_instruction_set_that_is_not_here_is_refused_by_name() -> None:
    program = "from ms_mhc import csrc; print(csrc.refusal())"
    refused = _python(program, MS_MHC_CPU_ISA="AVX-512").stdout
    assert refused.startswith("MS_MHC_CPU_ISA is 'AVX-512', which is not one of the instruction sets to be had here: ")
    assert "baseline" in refused
    assert _python(program, MS_MHC_CPU_ISA="baseline").stdout == "None\n"
    assert _python(program, MS_MHC_CPU_ISA="").stdout == "None\n"


@needs_library
def test_a_colon_in_the_path_of_the_package(tmp_path: Path) -> None:
    link = tmp_path / "a:b" / csrc.LIBRARY.name
    link.parent.mkdir()
    link.symlink_to(csrc.LIBRARY)
    done = _python(
        f"""
import pathlib
import mindspore as ms
import numpy as np
from mindspore import Tensor, ops
from ms_mhc import csrc
csrc.LIBRARY = pathlib.Path({str(link)!r})
path = csrc.loadable()
assert csrc.loadable() == path
function = ops.Custom(f"{{path}}:MhcPost", lambda scalars, x, h, p: x, lambda scalars, x, h, p: x, func_type="aot")
for mode in (ms.GRAPH_MODE, ms.PYNATIVE_MODE):
    ms.set_context(mode=mode)
    one = Tensor(np.ones((2, 1, 3), np.float32))
    print(function(Tensor(np.array([0, csrc.version()], np.float32)), one, one[:, 0], one[:, :, 0]).asnumpy().ravel())
print(path)
"""
    )
    first, second, path = done.stdout.splitlines() or ["", "", done.stderr]
    assert first == second == "[2. 2. 2. 2. 2. 2.]"
    assert ":" not in path
    assert not Path(path).parent.exists()


@needs_library
def test_a_colon_and_no_folder_for_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = tmp_path / "a:b" / csrc.LIBRARY.name
    link.parent.mkdir()
    link.symlink_to(csrc.LIBRARY)
    monkeypatch.setattr(csrc, "LIBRARY", link)
    monkeypatch.setattr(csrc.os, "access", lambda *_: False)
    assert "has a colon in its path" in str(csrc.refusal())


def test_a_path_without_colon_is_used_as_it_is() -> None:
    if ":" in str(csrc.LIBRARY):
        pytest.skip("the package itself lies under a colon")
    assert csrc.loadable() == csrc.LIBRARY


# ---- python -m ms_mhc.csrc.build ----


def fake_compiler(folder: Path, first: str = "") -> str:
    """A program that writes the file that stands last, as ``-o`` does."""
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{first}for output; do :; done\necho nothing > $output\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package without its library."""
    for name in ("ms_mhc", "aclnn_adapter"):
        ignore = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(REPOSITORY / name, tmp_path / "copy" / name, ignore=ignore)
    fake_compiler(tmp_path)
    return tmp_path / "copy"


def _build(package: Path, *arguments: str, compiler: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ms_mhc.csrc.build", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(package), "CXX": compiler}
    return subprocess.run(command, env=environment, cwd=package, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("stale", [False, True])
def test_the_build_runs_where_the_library_is_missing_or_stale(package: Path, tmp_path: Path, stale: bool) -> None:
    library = package / "ms_mhc/csrc" / csrc.LIBRARY.name
    if stale:
        library.write_text("stale")
    done = _build(package, compiler=str(tmp_path / "compiler"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(library)
    assert library.read_text() == "nothing\n"


def test_eight_builds_at_once_leave_one_complete_library(package: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(package / "ms_mhc/csrc/build.py")]
    environment = {**os.environ, "CXX": str(tmp_path / "compiler")}
    builds = [subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) for _ in range(8)]
    assert [build.wait(300) for build in builds] == [0] * 8
    assert (package / "ms_mhc/csrc" / csrc.LIBRARY.name).read_text() == "nothing\n"
    assert not list((package / "ms_mhc/csrc").glob("ms_mhc_build_*"))


@needs_library
def test_a_build_if_changed_leaves_a_library_of_these_sources_alone(sources: Path, tmp_path: Path) -> None:
    library = tmp_path / "library.so"
    shutil.copyfile(csrc.LIBRARY, library)
    assert build.main(["--if-changed", str(library)]) == f"{library} is up to date"
    with (sources / "kernels.h").open("a") as file:
        file.write("\n")
    assert not build.is_current(library)
    assert not build.is_current(tmp_path / "no library")


@pytest.mark.parametrize(
    ("destination", "complaint"),
    [("file/library.so", "cannot be written"), ("folder", "cannot be written"), ("library.so", "this command failed")],
)
def test_a_build_that_cannot_be_done_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, destination: str, complaint: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/something").touch()
    monkeypatch.setenv("CXX", "false" if complaint == "this command failed" else fake_compiler(tmp_path))
    monkeypatch.setattr(sys, "argv", ["build.py", str(tmp_path / destination)])
    with pytest.raises(SystemExit, match=complaint):
        runpy.run_path(build.__file__, run_name="__main__")
    assert not list(tmp_path.glob("**/ms_mhc_build_*"))


def test_a_compiler_that_knows_neither_openmp_nor_instruction_sets_compiles_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    plain = fake_compiler(tmp_path, f'echo "$@" >> {log}\ncase "$*" in *-fopenmp*|*-mavx*) exit 1;; esac\n')
    monkeypatch.setenv("CXX", f"{plain} -O1")
    assert build.main([str(tmp_path / "library.so"), "-g"]) == str(tmp_path / "library.so")
    refused, compiled = [], []
    for line in log.read_text().splitlines():
        (compiled if " -c " in line else refused).append(line)
    assert len(compiled) == 1 + len(build.ONCE)
    assert all("-O1 -std=c++17" in line and "-Wno-unknown-pragmas" in line and " -g " in line for line in compiled)
    assert not any("fopenmp" in line or "MHC_HAS" in line or "-mavx" in line for line in compiled)
    assert any("-fopenmp" in line for line in refused)


def test_no_compiler_and_one_that_cannot_be_run_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.BuildError, match=r"no C\+\+ compiler \(g\+\+, c\+\+, clang\+\+\); install one"):
        build.find_compiler()
    (tmp_path / "clang++").write_text("neither a script nor a program")
    (tmp_path / "clang++").chmod(0o755)
    assert build.find_compiler() == [str(tmp_path / "clang++")]
    with pytest.raises(build.BuildError, match=r"clang\+\+ cannot be run"):
        build._run([*build.find_compiler(), "--version"])


@pytest.mark.parametrize("compiler", ["no-such-compiler", "'g++"])
def test_a_compiler_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch, compiler: str) -> None:
    monkeypatch.setenv("CXX", compiler)
    with pytest.raises(build.BuildError, match=compiler):
        build.find_compiler()
