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
from tests.mutation.edit import Edit, Killer

ROOT = Path(__file__).resolve().parents[2]
GROUPS = {"core": core.EDITS, "python": python.EDITS, "host": host.EDITS}
_COPIED = ("ms_mhc", "aclnn_adapter", "tests", "benchmarks", "model_zoo_example", "docs")
_LONGEST = 1800  # seconds of one edit's tests


class Copy:
    """A copy of the repository that one edit at a time is made in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
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

    def passes(self, killer: Killer) -> bool:
        """Whether the tests pass."""
        if killer.isa and not self._compile(killer):
            return False
        if not killer.arguments:
            program = self.folder / "core_test"
            return core_test.run_test(program, killer.isa, small=True).returncode == 0
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *killer.arguments]
        try:
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=_LONGEST,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
        if done.returncode == 5 or " passed" not in done.stdout and done.returncode == 0:
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

    def _compile(self, killer: Killer) -> bool:
        """The core for one instruction set, without optimization: the formulas are what is tested."""
        source = self.folder / "ms_mhc" / "csrc"
        library = source / "libms_mhc_cpu.so" if killer.arguments else self.folder / "libcore.so"
        code = (
            "import pathlib, platform, sys\n"
            "from ms_mhc.csrc import build\n"
            "machine = build.VARIANTS.get(platform.machine(), {})\n"
            "build.VARIANTS[platform.machine()] = {n: f for n, f in machine.items() if n == sys.argv[2]}\n"
            "build.build(pathlib.Path(sys.argv[1]), ['-O0', '-w'])\n"
        )
        command = [sys.executable, "-c", code, str(library), killer.isa]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        if done.returncode == 0 and not killer.arguments:
            core_test.build_test(self.folder / "core_test", library, ["-O1"])
        return done.returncode == 0


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

    survivors, sound = [], {}
    with tempfile.TemporaryDirectory(prefix="mutation_") as folder:
        copy = Copy(Path(folder))
        for edit in _by_killer(chosen):
            path = copy.folder / edit.file
            text = path.read_text(encoding="utf-8")
            if edit.killer not in sound:
                sound[edit.killer] = copy.passes(edit.killer)
                if not sound[edit.killer]:
                    print(f"NOT SOUND  {edit.killer.name}: its tests fail without any edit", flush=True)
            if not sound[edit.killer]:
                continue
            try:
                broken = edit.applied(text)
            except ValueError:
                continue
            start = time.monotonic()
            path.write_text(broken, encoding="utf-8")
            noticed = not copy.passes(edit.killer)
            path.write_text(text, encoding="utf-8")
            if edit.killer.isa:
                shutil.copy(csrc.LIBRARY, copy.folder / "ms_mhc" / "csrc")
            print(f"{'noticed ' if noticed else 'SURVIVED'}  {time.monotonic() - start:4.0f} s  {edit}", flush=True)
            if not noticed:
                survivors.append(edit)
    unsound = [killer.name for killer, passed in sound.items() if not passed]
    print(
        f"{len(chosen)} edits: {len(survivors)} survived, {len(gone)} no longer apply, tests not sound: {unsound or 'none'}"
    )
    return int(bool(survivors or gone or unsound))


if __name__ == "__main__":
    sys.exit(main())
