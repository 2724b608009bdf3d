"""Where `make zoo` puts MindSpore Transformers, and why it cannot be used where it cannot."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path(os.environ.get("MINDFORMERS_PACKAGES", ROOT / "build/mindformers"))
VERSIONS = ("2.0.0", "2.1.0")


def package(version: str) -> Path:
    """The folder into which a version was installed, whether it is there or not."""
    return FOLDER / version


def interpreter() -> Path:
    """The Python that can import all of 2.1.0."""
    return FOLDER / "venv/bin/python"


def problem(version: str) -> str:
    """Why the classes of a version cannot be used here, or an empty string."""
    if (package(version) / "mindformers").is_dir():
        return ""
    reason = FOLDER / "missing"
    if reason.is_file():
        return reason.read_text().strip()
    return f"no MindSpore Transformers: {package(version)} does not exist (make zoo)"


def whole_problem() -> str:
    """Why the whole of 2.1.0 cannot be imported here, or an empty string."""
    if (FOLDER / "missing").is_file() or not interpreter().exists():
        return problem("2.1.0") or f"no MindSpore Transformers: {interpreter()} does not exist (make zoo)"
    return problem("2.1.0")
