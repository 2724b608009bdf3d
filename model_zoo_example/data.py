"""The corpus: any text as bytes, memory-mapped, and the batches that a step reads of it.

A token is a byte, so every file is a text: there is no vocabulary to build, and none to store. Which windows a step
reads depends on seed and step alone; a process takes its share of them.
"""

from __future__ import annotations

import mmap
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any, Iterator, List, Sequence, Tuple, Union

import numpy as np
from numpy.typing import NDArray

VOCABULARY_SIZE = 256
VALIDATION_SHARE = 10  # the last tenth
FINGERPRINT_SAMPLES = 64
FINGERPRINT_BYTES = 4096
OPEN_FILES = 256  # mapped at a time: a map takes a file descriptor, and a process has about a thousand

Bytes = NDArray[np.uint8]
Batch = Tuple[NDArray[np.int32], NDArray[np.int32]]


class CorpusError(ValueError):
    """A text that cannot be used; the message is for the user."""


class MappedFile:
    """A file as an array of bytes of which only what is read comes into memory.

    Raises:
        CorpusError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self.size = file.seek(0, 2)
        except OSError as error:
            raise CorpusError(f"data: cannot read {path}: {error.strerror}") from error

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, piece: slice) -> Bytes:
        return _mapped(self.path)[piece]


@lru_cache(maxsize=OPEN_FILES)
def _mapped(path: Path) -> Bytes:
    try:
        with path.open("rb") as file:
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    except (OSError, ValueError) as error:  # gone, or empty by now
        raise CorpusError(f"data: cannot read {path} any more: {error}") from error


class Corpus:
    """Texts one behind the other, the last tenth of all kept for validation.

    Args:
        parts: the texts, in memory or memory-mapped.
        name: what to call it in messages.

    Attributes:
        train_size, validation_size: bytes in the two parts.
    """

    def __init__(self, parts: Sequence[Union[Bytes, MappedFile]], name: str) -> None:
        self.name = name
        self._parts = [part for part in parts if len(part)]
        self._ends = np.cumsum([len(part) for part in self._parts], dtype=np.int64)
        self.size = int(self._ends[-1]) if self._parts else 0
        self.validation_size = self.size // VALIDATION_SHARE
        self.train_size = self.size - self.validation_size

    def check(self, context: int) -> None:
        """See that both parts hold at least one window.

        Raises:
            CorpusError: they do not.
        """
        least = VALIDATION_SHARE * (context + 1)
        if self.size < least:
            held = "is empty" if self.size == 0 else f"has {self.size} bytes"
            raise CorpusError(
                f"data: {self.name} {held}; with context {context} at least {least} are needed, "
                f"because a tenth of the text is kept for validation"
            )

    def read(self, start: int, length: int) -> Bytes:
        """``length`` bytes from ``start`` on, across the borders of texts where need be."""
        place = int(np.searchsorted(self._ends, start, side="right"))
        pieces: List[Bytes] = []
        end = start + length
        while start < end:
            before = int(self._ends[place - 1]) if place else 0
            pieces.append(np.array(self._parts[place][start - before : end - before]))
            start += len(pieces[-1])
            place += 1
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def windows(self, starts: NDArray[np.int64], context: int) -> Batch:
        """Tokens and targets, both [len(starts), context], int32; a target is the byte after its token."""
        rows = np.stack([self.read(int(start), context + 1) for start in starts]).astype(np.int32)
        return np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, 1:])

    def train_starts(self, step: int, batch_size: int, context: int, seed: int) -> NDArray[np.int64]:
        """Where the windows of a training step begin: all of them, whatever the number of processes."""
        return np.random.default_rng((seed, step)).integers(0, self.train_size - context, batch_size)

    def validation_starts(self, count: int, context: int) -> NDArray[np.int64]:
        """Where ``count`` windows begin that are spread evenly over the validation text."""
        last = self.validation_size - context - 1
        return self.train_size + np.linspace(0, last, count).astype(np.int64)

    def fingerprint(self) -> str:
        """Length, and a checksum of samples: enough to notice another text, quick for one of any length."""
        count = min(FINGERPRINT_SAMPLES, 1 + self.size // FINGERPRINT_BYTES)
        length = min(FINGERPRINT_BYTES, self.size)
        checksum = 0
        for start in np.linspace(0, self.size - length, count).astype(np.int64):
            checksum = zlib.crc32(self.read(int(start), length).tobytes(), checksum)
        return f"{self.size} bytes, checksum {checksum:08x}"


def open_corpus(paths: Sequence[str]) -> Corpus:
    """The text of files and of the files in folders, in the order given; within a folder sorted by path.

    Without any path, Python's own help topics: they come with CPython, and differ a little between its versions.
    Hidden files are left out.

    Raises:
        CorpusError: a path that is not there or cannot be read.
    """
    if not paths:
        from pydoc_data.topics import topics

        text = "\n\n".join(topics[name] for name in sorted(topics))
        return Corpus([np.frombuffer(text.encode("utf-8"), np.uint8)], "the help topics of Python")
    files: List[Path] = []
    for name in paths:
        path = Path(name)
        if path.is_dir():
            files += _files_in(path)
        elif path.is_file():
            files.append(path)
        else:
            raise CorpusError(f"data: there is no file or folder {name}")
    return Corpus([MappedFile(path) for path in files], ", ".join(paths))


def _files_in(folder: Path) -> List[Path]:
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return [path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts)]


class _Batches:
    """What MindSpore's ``GeneratorDataset`` reads: part number ``i`` of the run, with this process's share of it."""

    def __init__(self, corpus: Corpus, settings: Any, rank: int, processes: int) -> None:
        self.corpus, self.settings = corpus, settings
        self.rank, self.processes = rank, processes

    def __len__(self) -> int:
        return int(self.settings.steps * self.settings.accumulation)

    def __getitem__(self, index: int) -> Batch:
        step, part = divmod(int(index), self.settings.accumulation)
        starts = self.corpus.train_starts(step, self.settings.batch_size, self.settings.context, self.settings.seed)
        mine = np.split(np.split(starts, self.settings.accumulation)[part], self.processes)[self.rank]
        return self.corpus.windows(mine, self.settings.context)


def train_batches(corpus: Corpus, settings: Any, first_step: int, rank: int = 0, processes: int = 1) -> Iterator[Any]:
    """The batches from a step on, as a ``mindspore.dataset`` pipeline that reads ahead in a thread of its own.

    Yields:
        tokens and targets as Tensors, ``accumulation`` pairs per step.
    """
    import mindspore.dataset as ds

    source = _Batches(corpus, settings, rank, processes)
    sampler = ds.SequentialSampler(start_index=first_step * settings.accumulation)
    pipeline = ds.GeneratorDataset(source, ["tokens", "targets"], sampler=sampler, num_parallel_workers=1)
    return iter(pipeline.create_tuple_iterator(num_epochs=1))


def validation_batches(corpus: Corpus, settings: Any, rank: int = 0, processes: int = 1) -> Iterator[Batch]:
    """The validation batches, always the same."""
    starts = corpus.validation_starts(settings.validation_batches * settings.batch_size, settings.context)
    for chunk in np.split(starts, settings.validation_batches):
        for part in np.split(chunk, settings.accumulation):
            yield corpus.windows(np.split(part, processes)[rank], settings.context)
