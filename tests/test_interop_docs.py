"""The page on moving weights: its program runs, its table of versions is what the code does, in both languages."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest

from ms_mhc.interop.versions import RELEASES

DOCS = Path(__file__).parents[1] / "docs"
PAGES = ("weights.md", "weights.zh-CN.md")


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def programs(name: str) -> List[str]:
    return re.findall(r"```python\n(.*?)```", page(name), re.DOTALL)


def test_both_languages_show_the_same_program_and_it_runs(tmp_path: Path) -> None:
    (program,) = programs(PAGES[0])
    assert programs(PAGES[1]) == [program]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == re.findall(r"# (\d+) tensors", program)


@pytest.mark.parametrize("name", PAGES)
def test_the_table_of_versions_is_what_the_code_does(name: str) -> None:
    old, new = RELEASES["2.0.0"], RELEASES["2.1.0"]
    columns = (old.module, old.fused, new.module)
    assert new.module == new.fused
    rows = [[cell.strip().strip("`").strip('"') for cell in row.split("|")[1:-1]] for row in page(name).splitlines()]
    found = {row[0]: row[1:] for row in rows if len(row) == 4}
    for setting in ("recipe", "hc_eps", "sinkhorn_eps"):
        text = found[setting]
        assert [cell if setting == "recipe" else float(cell) for cell in text] == [
            getattr(column, setting) for column in columns
        ]
    mixing = next(row for row in found.values() if row[0] == "h_res @ x")
    assert mixing == [column.mixing for column in columns]
