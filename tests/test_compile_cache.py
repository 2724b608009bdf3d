"""MindSpore's compile cache, where it was filled by another version of this package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ms_mhc import csrc
from tests.launch import with_root

pytestmark = pytest.mark.skipif(csrc.refusal() is not None, reason=f"the library cannot be used: {csrc.refusal()}")

_PROGRAM = """
import sys
import mindspore as ms, numpy as np
from mindspore import Tensor
from ms_mhc import MhcSinkhorn, csrc
if len(sys.argv) > 1:
    csrc.version = lambda: float(sys.argv[1])
ms.set_context(mode=ms.GRAPH_MODE)
print(MhcSinkhorn(backend="cpu")(Tensor(np.zeros((3, 4, 4), np.float32))).asnumpy().sum())
"""


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    (folder / "program.py").write_text(_PROGRAM)
    own = {"MS_COMPILER_CACHE_ENABLE": "1", "MS_COMPILER_CACHE_PATH": str(folder / "cache"), "GLOG_v": "2"}
    return subprocess.run(
        [sys.executable, "program.py", *arguments],
        cwd=folder,
        env={**with_root(os.environ), **own},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_a_graph_of_another_version_is_refused_in_a_sentence(tmp_path):
    graphs = tmp_path / "cache"
    written = _run(tmp_path, "1")  # what a graph of another version has in it
    assert "another version of ms_mhc" in written.stderr
    assert list(graphs.rglob("*.mindir")), written.stderr
    taken = _run(tmp_path)
    assert "Use the compilation cache" in taken.stderr
    assert taken.returncode != 0
    assert "another version of ms_mhc" in taken.stderr
    assert "MS_COMPILER_CACHE_PATH" in taken.stderr
