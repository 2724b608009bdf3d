"""The environment with torch_npu, the vendor's own client of the operators. `make vendor` creates it."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Tuple

VARIABLE = "VENDOR_PYTHON"
ROOT = Path(__file__).resolve().parents[2]
WANTED = "2.13.0"  # of torch and of torch_npu, as the extra "vendor" pins them
_LOOK = "import importlib.metadata as m; print(m.version('torch'), m.version('torch_npu'))"


def interpreter() -> Path:
    """The Python with torch_npu, whether it is there or not."""
    return Path(os.environ.get(VARIABLE) or ROOT / ".venv-vendor/bin/python")


@cache
def problem() -> str:
    """Why the tests that need torch_npu cannot run here, or an empty string."""
    python = interpreter()
    if not python.is_file():
        reason = ROOT / ".venv-vendor/missing"
        return (
            reason.read_text().strip() if reason.is_file() else f"no torch_npu: {python} does not exist (make vendor)"
        )
    done = subprocess.run([str(python), "-c", _LOOK], capture_output=True, text=True, check=False)
    if done.returncode:
        return f"no torch_npu: {python} lacks it or torch"
    versions: Tuple[str, ...] = tuple(word.split("+")[0] for word in done.stdout.split())
    if versions != (WANTED, WANTED):
        return (
            f"torch {versions[0]} with torch_npu {versions[1]} at {python}; these tests are made for {WANTED} of both"
        )
    return ""
