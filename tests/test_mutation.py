"""The mutations of ``python -m tests.mutation`` fit the code as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutation import core, host, python

ROOT = Path(__file__).parents[1]
EDITS = [*core.EDITS, *python.EDITS, *host.EDITS]


def test_there_are_over_a_hundred() -> None:
    assert len(EDITS) > 100


@pytest.mark.parametrize("edit", EDITS, ids=str)
def test_every_edit_applies(edit) -> None:
    edit.applied((ROOT / edit.file).read_text(encoding="utf-8"))
