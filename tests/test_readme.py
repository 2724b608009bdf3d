"""What the READMEs show runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def quick_start(readme: str) -> str:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / readme).read_text(encoding="utf-8"), re.DOTALL)
    return block


@pytest.mark.parametrize("mode", ["graph", "pynative"])
def test_quick_start_runs_and_is_short(mode: str, tmp_path: Path) -> None:
    code = quick_start("README.md")
    assert len([line for line in code.splitlines() if line.strip()]) <= 22
    program = tmp_path / "quick_start.py"
    switch = f"import mindspore\nmindspore.set_context(mode={0 if mode == 'graph' else 1})\n"
    program.write_text(switch + code)
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == "(2, 16, 64)"


def test_both_languages_show_the_same_program() -> None:
    assert quick_start("README.md") == quick_start("README.zh-CN.md")
