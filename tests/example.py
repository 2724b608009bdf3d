"""Running the example's programs as users do: each in a process of its own, in a folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Dict, List

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT = 900
TEXT = str(ROOT / "LICENSE")  # the help topics of Python differ between its versions; this text does not
# one block, a short context, little validation: what is tested does not depend on the size
_SIZE = ("--num_layers", "1", "--mlp_size", "64", "--context", "32", "--batch_size", "8")
SHORT = ("--data", TEXT, *_SIZE, "--validation_batches", "2", "--sample", "0")


def environment() -> Dict[str, str]:
    """Where the package is found; ``python`` is this one (msrun starts it by name)."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    python = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PATH": os.pathsep.join([python, os.environ["PATH"]]),
    }


def command(program: str, *flags: str) -> List[str]:
    return [sys.executable, "-m", f"model_zoo_example.{program}", *flags]


def call(folder: Path, program: str, *flags: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, and see that it ended with this status and without a traceback."""
    done = subprocess.run(
        command(program, *flags),
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == status, f"status {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert "Traceback" not in done.stderr
    return done


def column(folder: Path, name: str = "loss") -> List[float]:
    """One column of a run's ``metrics.csv``, every step's, with all its bits."""
    from model_zoo_example.progress import read_metrics

    return [float(row[name]) for row in read_metrics(folder / "metrics.csv")]
