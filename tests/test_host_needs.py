"""What the host CANN reads off installed frameworks, out of files as compilers write them, and where it is built."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Dict, Optional

import pytest

from aclnn_adapter.host import build, clients, elf
from aclnn_adapter.host.clients import NoClientError
from aclnn_adapter.host.mindspore_needs import MindSpore
from aclnn_adapter.host.torch_needs import TorchNpu

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="the libraries are compiled here")


def library(path: Path, code: str, *linked: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = ["-shared", "-fPIC", f"-Wl,-soname,{path.name}"]
    command = ["g++", *flags, "-x", "c++", "-", "-o", str(path), "-x", "none", *map(str, linked)]
    subprocess.run(command, input=code, text=True, check=True)
    return path


def packages(monkeypatch: pytest.MonkeyPatch, found: Dict[str, Optional[Path]]) -> None:
    """Packages in these folders, and no others."""

    def find_spec(name: str) -> Optional[importlib.machinery.ModuleSpec]:
        folder = found.get(name)
        return importlib.util.spec_from_file_location(name, folder / "__init__.py") if folder else None

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)


@needs_compiler
def test_torch_npu_needs_what_it_loads_leaves_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, torch = tmp_path / "torch_npu", tmp_path / "torch"
    library(torch / "lib/libtorch.so", "void of_torch() {}")
    npu = library(
        root / "lib/libtorch_npu.so",
        'extern "C" int aclrtMalloc(), aclrtMaybe() __attribute__((weak)); void of_torch();'
        "int npu() { of_torch(); return aclrtMalloc() + (aclrtMaybe ? 1 : 0); }",
    )
    library(root / "lib/libunused.so", 'extern "C" int aclnnOther(); int unused() { return aclnnOther(); }')
    module = library(root / "_C.cpython.so", "int npu(); int module() { return npu(); }", npu)
    (root / "version.py").write_text("__version__ = '2.1.0.post1'\n")
    packages(monkeypatch, {"torch_npu": root, "torch": torch})

    found = TorchNpu.installed()
    assert found == TorchNpu(root, torch, "2.1.0.post1")
    assert found.libraries() == [module, npu]
    assert found.linked_symbols() == {"aclrtMalloc"}
    assert "aclrtSynchronizeDevice" in found.looked_up_symbols()
    assert found.collective_symbols() == {"HcclSetConfig"}


def test_torch_npu_without_torch_is_no_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages(monkeypatch, {"torch_npu": tmp_path})
    assert TorchNpu.installed() is None


def test_a_mindspore_without_the_plugin_is_no_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages(monkeypatch, {})
    assert MindSpore.installed() is None
    packages(monkeypatch, {"mindspore": tmp_path})
    assert MindSpore.installed() is None
    with pytest.raises(NoClientError, match="neither a MindSpore with the Ascend plugin nor torch_npu"):
        clients.installed()
    (tmp_path / "lib/plugin/ascend").mkdir(parents=True)
    (tmp_path / "version.py").write_text("__version__ = '2.10.0'\n")
    assert clients.installed() == [MindSpore(tmp_path, "2.10.0")]


@needs_compiler
def test_libraries_of_the_system_that_are_not_there_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elf, "_SYSTEM", ("libnothing.so.0", *elf._SYSTEM))
    path = library(tmp_path / "lib.so", '#include <cstdlib>\nextern "C" int own(); int f() { return own() + rand(); }')
    assert "libc.so.6" in elf.needed_libraries(path)
    assert elf.open_symbols([path], []) == {"own"}


def test_a_file_that_is_no_library_is_named(tmp_path: Path) -> None:
    (tmp_path / "lib.so").write_text("no library")
    with pytest.raises(ValueError, match=r"lib.so is not a little-endian 64-bit ELF file"):
        elf.dynamic_symbols(tmp_path / "lib.so")


def test_the_folder_of_somebody_else_is_not_linked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    monkeypatch.setattr(build.tempfile, "tempdir", str(folder))
    root = tmp_path / "a b"
    root.mkdir()
    try:
        link = build._usable_path(root)
        assert link.resolve() == root
        shutil.move(folder / f"aclnn-host-cann-{os.getuid()}", folder / "other")
        (folder / f"aclnn-host-cann-{os.getuid()}").symlink_to(folder / "other")
        with pytest.raises(build.BuildError, match=r"belongs to somebody else; \$TMPDIR names another folder"):
            build._usable_path(root)
    finally:
        shutil.rmtree(folder)


@needs_compiler
def test_what_the_compiler_says_is_in_the_message(tmp_path: Path) -> None:
    (tmp_path / "broken.cc").write_text("int f() { return nothing; }")
    with pytest.raises(build.BuildError, match=r"the compiler failed:\ng\+\+ -c [\s\S]*nothing"):
        build._run(["g++", "-c", str(tmp_path / "broken.cc"), "-o", str(tmp_path / "broken.o")])


def test_a_machine_that_does_not_describe_itself_is_known_by_its_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "Path", lambda _: tmp_path / "nothing")
    monkeypatch.setattr(build.platform, "machine", lambda: "riscv64")
    assert build._machine() == b"riscv64"
