"""Reads what MindSpore's ``save_graphs`` wrote: the operators of a compiled step and the shapes of what they give."""

from __future__ import annotations

import re
from pathlib import Path
from typing import List, Tuple

Shape = Tuple[int, ...]


class Graph:
    """The last state of a training step before it goes to the device."""

    def __init__(self, folder: Path) -> None:
        files = sorted(folder.rglob("*_validate_*.ir"))
        assert files, f"no graphs below {folder}"
        self._lines = files[-1].read_text().splitlines()

    def outputs(self, operator: str) -> List[Shape]:
        """The shape of the (first) output of every node of this operator, in the graph's order."""
        node = re.compile(rf"= (PrimFunc_)?{operator}\(")
        found = []
        for line, types in zip(self._lines, self._lines[1:]):
            if node.search(line):
                shape = re.search(r"-> \(.*?\(([\d, ]*)\)", types)
                assert shape, f"no shape in {types}"
                found.append(tuple(int(size) for size in shape.group(1).split(",") if size.strip()))
        return found
