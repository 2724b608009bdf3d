"""What the package configuration names is what lies in the folders, and what is built from it works by itself."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from importlib import util
from pathlib import Path
from typing import Any, Set

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("ms_mhc", "aclnn_adapter")
NOT_BUILT_FROM = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info", ".*", "build")


def test_every_package_is_in_the_configuration() -> None:
    folders = [p.parent.relative_to(ROOT) for top in PACKAGES for p in (ROOT / top).rglob("__init__.py")]
    there = {".".join(folder.parts) for folder in folders}
    (listed,) = re.findall(r"\npackages = \[\n(.*?)\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL)
    assert set(re.findall(r'"([\w.]+)"', listed)) == there


def run(*command: Any, folder: Path, **environment: str) -> str:
    """What a command prints. It does not see the repository."""
    words, every = [str(word) for word in command], {"PATH": "/usr/bin:/bin", **environment}
    done = subprocess.run(words, cwd=folder, env=every, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout + done.stderr


SMOKE = """
import numpy as np, mindspore as ms, ms_mhc
from ms_mhc import reference
x = np.random.default_rng(0).normal(size=(2, 4, 8)).astype(np.float32)
for backend in ("composite", BACKEND):
    cell = ms_mhc.MhcPre(4, 8, backend=backend)
    want = reference.mhc_pre(x, *(p.asnumpy() for p in (cell.phi, cell.alpha, cell.bias)))
    assert np.abs(cell(ms.Tensor(x))[0].asnumpy() - want.h_in).max() < 1e-5
print(ms_mhc.__file__)
"""


def built(sources: Path, name: str, out: Path) -> Path:
    """A wheel or an sdist, built by what pyproject.toml names. Nothing is fetched, and nothing optimised."""
    out.mkdir()
    compiler = out.with_name("compiler")
    compiler.write_text('#!/bin/sh\nexec g++ "$@" -O0\n')
    compiler.chmod(0o755)
    code = f"from setuptools import build_meta; build_meta.build_{name}({str(out)!r})"
    run(sys.executable, "-c", code, folder=sources, CXX=str(compiler))
    (path,) = out.iterdir()
    return path


def sources_in(folder: Path) -> Set[str]:
    return {
        str(p.relative_to(folder))
        for top in PACKAGES
        for p in (folder / top).rglob("*")
        if p.suffix in (".py", ".cc", ".h", ".typed")
    }


@pytest.mark.skipif(util.find_spec("setuptools") is None, reason="setuptools is not installed")
def test_wheel_of_the_sdist_works_in_a_clean_environment(tmp_path: Path) -> None:
    """Beside the MindSpore that is installed: by itself it is 3 GB."""
    shutil.copytree(ROOT, tmp_path / "copy", ignore=NOT_BUILT_FROM)
    sdist = built(tmp_path / "copy", "sdist", tmp_path / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    assert sources_in(unpacked) == sources_in(tmp_path / "copy")
    wheel = built(unpacked, "wheel", tmp_path / "wheel")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert sources_in(tmp_path / "copy") <= names
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == set(PACKAGES)

    clean = tmp_path / "clean"
    run(sys.executable, "-m", "venv", "--without-pip", clean, folder=tmp_path)
    site = next(clean.glob("lib/python*/site-packages"))
    (site / "shared.pth").write_text(sysconfig.get_path("purelib"))
    python = clean / "bin/python"
    run(python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel, folder=tmp_path)
    library = site / "ms_mhc/csrc/libms_mhc_cpu.so"
    backend = "cpu" if library.is_file() else "auto"
    assert library.is_file() == (shutil.which("g++", path="/usr/bin:/bin") is not None)
    assert str(site) in run(python, "-c", SMOKE.replace("BACKEND", repr(backend)), folder=tmp_path)
    assert "No broken requirements" in run(python, "-m", "pip", "check", folder=tmp_path)
    assert f"mhc_pre       {backend}" in run(python, "-m", "ms_mhc", "info", folder=tmp_path) or backend == "auto"


IMPORTED = """
import sys, time
import mindspore
before, start = set(sys.modules), time.process_time()
import ms_mhc
seconds, new = time.process_time() - start, set(sys.modules) - before
print(seconds, len(new), *sorted({name.split(".")[0] for name in new}))
"""


def test_import_is_quick_and_silent() -> None:
    """Beyond MindSpore's own; in processor time, because other tests run beside this one."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{IMPORTED}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    (line,) = done.stdout.splitlines()
    assert not done.stderr
    seconds, modules, *packages = line.split()
    assert float(seconds) < 0.3
    assert int(modules) < 80
    assert not {"matplotlib", "yaml", "torch", "safetensors"} & set(packages)
