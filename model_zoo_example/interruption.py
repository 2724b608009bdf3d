"""SIGINT and SIGTERM as a request to stop at the end of the step. Imports nothing, so it is there from the start."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType, TracebackType
from typing import Any, Dict, List, Optional, Type

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_entered: List[Interruption] = []


def _in_forked_process() -> None:
    """It is not the run's to go on with: MindSpore ends the processes that write event files with a SIGTERM each."""
    while _entered:
        _entered.pop().restore()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_forked_process)


class Interruption:
    """While it is entered, the first signal is noted, and a second one does what it does elsewhere.

    Attributes:
        signal: the signal that came, or None. While a graph runs, MindSpore turns a SIGINT into a SIGTERM.
    """

    def __init__(self) -> None:
        self.signal: Optional[signal.Signals] = None
        self._before: Dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruption:
        self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        _entered.append(self)
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if self in _entered:
            _entered.remove(self)
        self.restore()

    @property
    def status(self) -> int:
        """What a shell reports of a program that this signal ended."""
        return 0 if self.signal is None else 128 + self.signal

    def restore(self) -> None:
        """Put the handlers from before back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: Optional[FrameType]) -> None:
        self.signal = signal.Signals(number)
        self.restore()
        print("\nstopping after this step (again: at once)", file=sys.stderr, flush=True)
