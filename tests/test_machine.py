"""Odd machines: right numbers, or one clear sentence. Several oddities in one process, since each imports MindSpore."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Dict, List

import pytest

from ms_mhc import csrc
from tests.launch import unmeasured

REPOSITORY = Path(csrc.__file__).parents[2]
PACKAGES = ("ms_mhc", "aclnn_adapter")

PROGRAM = """
import sys
sys.path[:0] = sys.argv[1:]
import numpy as np
import mindspore as ms
from mindspore import Tensor
import ms_mhc
from ms_mhc import MhcPre, csrc, reference

n, d = 4, 16
rng = np.random.default_rng(0)
cell = MhcPre(n, d, use_gamma=True)
cell.phi.set_data(Tensor(rng.normal(0, 0.1, cell.phi.shape).astype(np.float32)))
x = rng.normal(size=(3, n, d)).astype(np.float32)
parameters = [p.asnumpy() for p in (cell.phi, cell.alpha, cell.bias, cell.gamma)]
want = reference.mhc_pre(x, *parameters)
zeros = np.zeros_like(want.h_post), np.zeros_like(want.h_res)
saved = want.inv_rms, want.h_mix, want.h_pre, want.h_post
back = reference.mhc_pre_backward(x, *parameters[:2], np.ones_like(want.h_in), *zeros, *saved, parameters[3])


def total(x):
    return cell(x)[0].sum()


for mode in (ms.GRAPH_MODE, ms.PYNATIVE_MODE):
    ms.set_context(mode=mode)
    pairs = [*zip(cell(Tensor(x)), want), (ms.grad(total)(Tensor(x)), back.grad_x)]
    off = max(np.abs(got.asnumpy() - right).max() for got, right in pairs)
    print("RIGHT" if off < 1e-5 else f"off by {off}")
print(ascii(ms_mhc.__file__))
print(csrc.refusal())
"""


def run(folder: Path, *command: str, paths: str = str(REPOSITORY), **environment: str) -> List[str]:
    """The lines that the program prints; ``command`` is what it runs under."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    every: Dict[str, str] = {**os.environ, "PYTHONPATH": "", "GLOG_v": "3", **environment}
    every = unmeasured(every) if "unshare" in command else every
    command = (*(command or (sys.executable,)), str(program), paths)
    done = subprocess.run(command, cwd=folder, env=every, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert lines[:2] == ["RIGHT", "RIGHT"], done.stdout + done.stderr[-3000:]
    return [*lines[2:], done.stderr]


def copied(folder: Path) -> Path:
    for name in PACKAGES:
        shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_paths_with_blanks_colons_and_chinese_under_optimisation_and_strict_warnings(tmp_path: Path) -> None:
    package = copied(tmp_path / "我的 包:a")
    (tmp_path / "t m:p").mkdir()
    python = (sys.executable, "-OO", "-W", "error", "-bb")
    where, refusal, _ = run(
        tmp_path, *python, paths=str(package), TMPDIR=str(tmp_path / "t m:p"), LC_ALL="C", PYTHONHASHSEED="1"
    )
    assert ascii(str(package))[1:-1] in where
    assert (refusal == "None") == csrc.LIBRARY.is_file()
    assert not list((tmp_path / "t m:p").iterdir())


READ_ONLY = """
mount --make-rprivate / && mount -t tmpfs none "$TMPDIR" || exit 77
for place in / /dev/shm; do mount -o remount,bind,ro "$place" || exit 77; done
touch "$1" 2>/dev/null && exit 77
shift
exec "$@"
"""


def test_nothing_but_the_folder_for_temporary_files_can_be_written(tmp_path: Path) -> None:
    """Current folder, home and site-packages: in a mount namespace, where the kernel lets us make one."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    inside = ("unshare", "--mount", "--map-root-user", "sh", "-c", READ_ONLY, "sh", str(tmp_path / "written"))
    environment = {**os.environ, "TMPDIR": str(temporary)}
    try:
        tried = subprocess.run((*inside, "true"), env=environment, check=False, capture_output=True).returncode
    except FileNotFoundError:
        tried = 127
    if tried:
        pytest.skip("no file system can be made read-only here")
    _, _, errors = run(tmp_path, *inside, sys.executable, TMPDIR=str(temporary))
    assert "Read-only" not in errors
    assert sorted(p.name for p in tmp_path.iterdir()) == ["program.py", "tmp"]


def test_no_compiler_no_library_and_an_environment_that_names_no_cann(tmp_path: Path) -> None:
    package = copied(tmp_path / "package")
    (package / "ms_mhc/csrc" / csrc.LIBRARY.name).unlink(missing_ok=True)
    wrong = {"ASCEND_OPP_PATH": "/etc/passwd/opp", "ASCEND_HOME_PATH": "", "ASCEND_CUSTOM_OPP_PATH": "/nowhere:::"}
    _, refusal, errors = run(tmp_path, paths=str(package), PATH="/nowhere", **wrong)
    assert refusal.startswith("libms_mhc_cpu.so was not compiled when the package was installed")
    assert "Traceback" not in errors
