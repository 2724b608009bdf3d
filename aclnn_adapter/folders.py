"""Folders outside the package: of this process, of this user, and for caches."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Optional


def temporary_parent(unusable: str) -> Optional[str]:
    """A folder for temporary files that can be written and whose path the pattern does not match, or ``None``."""
    places = (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm")
    return next((p for p in places if not re.search(unusable, p) and os.access(p, os.W_OK | os.X_OK)), None)


def of_process(prefix: str, parent: Optional[str]) -> Path:
    """A new folder that is removed when this process ends; ``None`` stands for the usual parent."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked process leaves it alone
        shutil.rmtree(folder, ignore_errors=True)


def private(folder: Path) -> None:
    """Make a folder that nobody else can write, where others can make folders too.

    Raises:
        FileExistsError: somebody else made it.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise FileExistsError(f"{folder} belongs to somebody else; $TMPDIR names another folder")


def caches() -> Path:
    """Where this user's programs keep what they can make again.

    Raises:
        RuntimeError: the user has no home.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(base).absolute() if base else Path.home() / ".cache"
