"""What a run tells: a progress bar or lines, ``metrics.csv``, and event files."""

from __future__ import annotations

import contextlib
import csv
import io
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, TextIO

COLUMNS = (
    "step",
    "loss",
    "learning_rate",
    "gradient_norm",
    "loss_scale",
    "tokens_per_second",
    "seconds",
    "validation_loss",
)
Row = Dict[str, Any]


def write_whole(path: Path, text: str) -> None:
    """A file's text. At any time a whole file lies there.

    Raises:
        OSError: it cannot be written; what was there is still there.
    """
    unfinished = path.with_suffix(".unfinished")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):  # a file system that may only be read has nothing to remove
            unfinished.unlink()
        raise _named(error, path) from error


class Metrics:
    """``metrics.csv``: a row per logged step, at once on its way to the disk.

    Args:
        path: the file. Rows of steps after ``first_step``, which an interrupted run left, are removed.
        first_step: the step from which the run goes on.

    Raises:
        OSError: it cannot be read or written.
    """

    def __init__(self, path: Path, first_step: int) -> None:
        self.path = path
        rows = [row for row in read_metrics(path) if int(row["step"]) <= first_step] if path.exists() else []
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
        write_whole(path, text.getvalue())

    def write(self, row: Row) -> None:
        """Append a row. Numbers are written so that reading them gives the same bits."""
        text = io.StringIO()
        csv.DictWriter(text, COLUMNS).writerow(row)
        try:
            with self.path.open("a", encoding="utf-8", newline="") as file:
                file.write(text.getvalue())
        except OSError as error:
            raise _named(error, self.path) from error


def _named(error: OSError, path: Path) -> OSError:
    # a full disk is found by a write, which knows no name
    return OSError(error.errno, error.strerror, str(path))


def read_metrics(path: Path) -> List[Dict[str, str]]:
    """The rows of a ``metrics.csv``; a last line that was cut short is left out."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [row for row in rows if None not in row.values() and row.get("step", "").isdigit()]


class Events:
    """The same numbers as event files, through MindSpore's own ``SummaryRecord``."""

    def __init__(self, folder: Path) -> None:
        import mindspore as ms

        self._record: Optional[Any] = ms.SummaryRecord(str(folder))

    def write(self, row: Row) -> None:
        """Record a row. Where MindSpore cannot (the host CANN has no channel for it), say so once and go on."""
        import mindspore as ms

        if self._record is None:
            return
        try:
            for name, value in row.items():
                if name != "step":
                    self._record.add_value("scalar", name, ms.Tensor([value], ms.float32))
            self._record.record(row["step"])
        except RuntimeError as error:
            self._record = None
            reason = str(error).strip().splitlines()[0]
            print(f"no event files: MindSpore cannot write them here ({reason})", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Finish the file."""
        if self._record is not None:
            self._record.close()


class Progress:
    """A bar on a terminal, a line every few steps elsewhere.

    Args:
        first_step, steps: where the run starts and ends.
        print_every: steps between two lines.
        quiet: show nothing, as the processes beside the first one do.
        stream: where to show it; standard output.
    """

    def __init__(
        self, first_step: int, steps: int, print_every: int, *, quiet: bool = False, stream: Optional[TextIO] = None
    ) -> None:
        self.stream = stream if stream is not None else sys.stdout
        self.quiet = quiet
        self.steps, self.print_every = steps, print_every
        self._begun, self._first = time.perf_counter(), first_step
        self._bar: Any = None
        if self.stream.isatty() and not quiet:
            try:
                from tqdm import tqdm

                self._bar = tqdm(total=steps, initial=first_step, file=self.stream, unit="step", dynamic_ncols=True)
            except ImportError:  # a line will do
                pass

    def show(self, row: Row) -> None:
        """Show the numbers of a step."""
        if self.quiet:
            return
        step = row["step"]
        numbers = (
            f"loss {row['loss']:.4f}  lr {row['learning_rate']:.2e}  grad norm {row['gradient_norm']:.2f}  "
            f"{row['tokens_per_second']:.0f} tokens/s"
        )
        if self._bar is not None:
            self._bar.set_postfix_str(numbers.replace("  ", ", "), refresh=False)
            self._bar.update(step - self._bar.n)
            return
        if step == self._first + 1:  # its time is that of compiling
            self._begun = time.perf_counter()
            self.say(f"step {step:5d}/{self.steps}  {numbers} (with compiling)")
        elif step % self.print_every == 0 or step == self.steps:
            per_step = (time.perf_counter() - self._begun) / (step - self._first - 1)
            self.say(f"step {step:5d}/{self.steps}  {numbers}  {_clock((self.steps - step) * per_step)} left")

    def say(self, text: str) -> None:
        """A line of text, above the bar where there is one."""
        if self._bar is not None:
            self._bar.write(text, file=self.stream)
        elif not self.quiet:
            print(text, file=self.stream, flush=True)

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
