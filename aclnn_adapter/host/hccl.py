"""Collective communication: the Python package that CANN brings for it, and one rank of several in simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, Optional

SITE_PACKAGES = "python/site-packages"  # where CANN keeps its own Python packages, below its root


def write_package(root: Path, version: str) -> None:
    """The package ``hccl``: MindSpore imports it in ``init()`` and reads its version."""
    folder = root / SITE_PACKAGES / "hccl"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text('"""Stands in for the package of CANN."""\n')
    (folder / "sys_version.py").write_text(
        f'"""The version that this package states."""\n\n__sys_version__ = "{version}"\n'
    )


def problem(ranks: Optional[int], rank: Optional[int]) -> str:
    """What is wrong with ``--ranks`` and ``--rank``, or an empty string."""
    if ranks is None:
        return "" if rank is None else "--rank says which one of --ranks, which is missing"
    if ranks < 1:
        return f"--ranks {ranks}: a whole number from 1 on is needed"
    if rank is not None and not 0 <= rank < ranks:
        return f"--rank {rank} is not one of 0 to {ranks - 1} (--ranks {ranks})"
    return ""


def simulation(ranks: int, rank: int) -> Dict[str, str]:
    """The environment in which MindSpore compiles rank ``rank`` of ``ranks`` and launches nothing."""
    return {"MS_SIMULATION_LEVEL": "0", "RANK_SIZE": str(ranks), "RANK_ID": str(rank)}
