"""An edit that makes the code wrong, and the tests that must notice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Tuple


@dataclass(frozen=True)
class Killer:
    """The smallest set of tests that should notice an edit.

    Attributes:
        name: for reports.
        arguments: of pytest. None: the C++ core's own test, which needs no Python.
        isa: what the C++ core is compiled for before, if it has to be compiled.
    """

    name: str
    arguments: Tuple[str, ...] = ()
    isa: str = ""


@dataclass(frozen=True)
class Edit:
    """``old``, which occurs once in the file, becomes ``new``."""

    file: str
    old: str
    new: str
    killer: Killer

    def __str__(self) -> str:
        return f"{self.file}: {_short(self.old)} -> {_short(self.new)}"

    def applied(self, text: str) -> str:
        """The file's text with the fault in it.

        Raises:
            ValueError: the old text is not there, or there more than once.
        """
        count = text.count(self.old)
        if count != 1:
            raise ValueError(f"the old text occurs {count} times")
        if self.old == self.new:
            raise ValueError("the edit changes nothing")
        return text.replace(self.old, self.new)


def _short(text: str) -> str:
    words = " ".join(text.split())
    return repr(words if len(words) <= 60 else words[:57] + "...")


def edits(file: str, killer: Killer, *pairs: Tuple[str, str]) -> List[Edit]:
    """Several edits of one file that the same tests must notice."""
    return [Edit(file, old, new, killer) for old, new in pairs]
