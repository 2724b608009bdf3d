"""What the package configuration names is what lies in the folders."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_package_is_in_the_configuration() -> None:
    folders = [
        p.parent.relative_to(ROOT) for top in ("ms_mhc", "aclnn_adapter") for p in (ROOT / top).rglob("__init__.py")
    ]
    there = {".".join(folder.parts) for folder in folders}
    (listed,) = re.findall(r"\npackages = \[\n(.*?)\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL)
    assert set(re.findall(r'"([\w.]+)"', listed)) == there
