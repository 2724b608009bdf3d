"""``python -m tests.mutation``: break the code in over a hundred ways; the tests must notice each of them.

Every edit is made in a copy of the repository, where the smallest set of tests runs that should notice it. An edit that
no test notices has survived: write the test. An edit whose old text is gone no longer applies: write it anew.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Dict, Iterator, List, Optional

from aclnn_adapter.host.build import CACHE_VARIABLE
from ms_mhc import csrc
from tests.csrc import run as core_test
from tests.mutation import core, host, python
from tests.mutation.core_build import Core
from tests.mutation.edit import Edit, Killer

ROOT = Path(__file__).resolve().parents[2]
GROUPS = {"core": core.EDITS, "python": python.EDITS, "host": host.EDITS}
_COPIED = ("ms_mhc", "aclnn_adapter", "tests", "benchmarks", "model_zoo_example", "docs")
_LONGEST = 1800  # seconds of one edit's tests


class Copy:
    """A copy of the repository that one edit at a time is made in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.core: Optional[Core] = None
        ignored = shutil.ignore_patterns("__pycache__", "*.ckpt", "rank_*", "kernel_meta")
        for name in _COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        for path in (*ROOT.glob("*.toml"), *ROOT.glob("*.md"), *ROOT.glob("*.py"), ROOT / "Makefile"):
            shutil.copy(path, folder)
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "XDG_CACHE_HOME": str(folder / "cache"),
        }
        self.environment.pop(CACHE_VARIABLE, None)

    def passes(self, killer: Killer, file: str) -> bool:
        """Whether the tests pass with a file as it is now."""
        if killer.isa:
            if self.core is None:
                self.core = Core(self.folder / "ms_mhc" / "csrc", self.folder / "objects")
            library = self.folder / (f"ms_mhc/csrc/{csrc.LIBRARY.name}" if killer.arguments else "libcore.so")
            if not self.core.library(self.folder / file, killer.isa, library):
                raise ValueError("it does not compile")
            if not killer.arguments:
                return core_test.run_test(self.core.test(library), killer.isa, small=True).returncode == 0
        try:
            done = self._run([sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *killer.arguments])
        except subprocess.TimeoutExpired:
            return False
        if done.returncode == 5 or (done.returncode == 0 and " passed" not in done.stdout):
            raise SystemExit(f"{killer.name}: no test ran\n{done.stdout[-2000:]}")
        return done.returncode == 0

    def _run(self, command: List[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=_LONGEST,
            check=False,
        )


def _chosen(groups: List[str], word: Optional[str]) -> List[Edit]:
    found = itertools.chain.from_iterable(GROUPS[group] for group in groups)
    return [edit for edit in found if word is None or word in str(edit) or word in edit.killer.name]


def _by_killer(edits: List[Edit]) -> Iterator[Edit]:
    """In the order of their tests, so that what an edit does not touch need not be done again."""
    order: Dict[Killer, int] = {}
    for edit in edits:
        order.setdefault(edit.killer, len(order))
    yield from sorted(edits, key=lambda edit: order[edit.killer])


def main() -> int:
    """Return 0 when every edit applies and is noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--group", choices=GROUPS, action="append", help="repeatable; default: all of them")
    parser.add_argument("--only", metavar="WORD", help="edits whose file, text or tests contain it")
    parser.add_argument("--check", action="store_true", help="only see whether every edit still applies")
    options = parser.parse_args()
    chosen = _chosen(options.group or list(GROUPS), options.only)
    gone = []
    for edit in chosen:
        try:
            edit.applied((ROOT / edit.file).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            gone.append(f"NO LONGER APPLIES  {edit}: {error}")
    print("\n".join([*gone, f"{len(chosen)} edits, {len(gone)} of them no longer apply"]), flush=True)
    if options.check or not chosen:
        return int(bool(gone) or not chosen)

    survivors: List[Edit] = []
    sound: Dict[Killer, bool] = {}
    with tempfile.TemporaryDirectory(prefix="mutation_") as folder:
        copy = Copy(Path(folder))
        for edit in _by_killer(chosen):
            path = copy.folder / edit.file
            text = path.read_text(encoding="utf-8")
            if edit.killer not in sound:
                sound[edit.killer] = copy.passes(edit.killer, edit.file)
                if not sound[edit.killer]:
                    print(f"NOT SOUND  {edit.killer.name}: its tests fail without any edit", flush=True)
            if not sound[edit.killer]:
                continue
            start = time.monotonic()
            try:
                path.write_text(edit.applied(text), encoding="utf-8")
                noticed = not copy.passes(edit.killer, edit.file)
            except ValueError as error:
                gone.append(f"{edit}: {error}")
                print(f"NO FAULT  {gone[-1]}", flush=True)
                continue
            finally:
                path.write_text(text, encoding="utf-8")
                if edit.killer.isa:
                    shutil.copy(csrc.LIBRARY, copy.folder / "ms_mhc" / "csrc")
            print(f"{'noticed ' if noticed else 'SURVIVED'}  {time.monotonic() - start:4.0f} s  {edit}", flush=True)
            if not noticed:
                survivors.append(edit)
    unsound = [killer.name for killer, passed in sound.items() if not passed]
    print(f"{len(chosen)} edits: {len(survivors)} survived, {len(gone)} cannot be made")
    print(f"tests that fail without any edit: {', '.join(unsound) or 'none'}")
    return int(bool(survivors or gone or unsound))


if __name__ == "__main__":
    sys.exit(main())
