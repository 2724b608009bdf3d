"""The corpus: the text of Python's own help topics, as characters.

It ships with CPython, so nothing is downloaded. The text differs a little from one Python version to the next;
therefore the vocabulary is built from the text itself.
"""

from __future__ import annotations

from pydoc_data.topics import topics
from typing import Iterator, Tuple

import numpy as np
from mindspore import Tensor
from numpy.typing import NDArray

VALIDATION_SHARE = 0.1


class Corpus:
    """A text as numbers, the last tenth of it kept for validation.

    Args:
        text: at least a few thousand characters.

    Attributes:
        vocabulary: the characters of the text, sorted. A character's number is its place in this string.
        train, validation: the two parts of the text as int32 arrays.
    """

    def __init__(self, text: str) -> None:
        self.vocabulary = "".join(sorted(set(text)))
        self._numbers = {character: number for number, character in enumerate(self.vocabulary)}
        encoded = self.encode(text)
        split = len(encoded) - int(len(encoded) * VALIDATION_SHARE)
        self.train, self.validation = encoded[:split], encoded[split:]

    def encode(self, text: str) -> NDArray[np.int32]:
        """Characters to numbers."""
        return np.array([self._numbers[character] for character in text], np.int32)

    def decode(self, numbers: NDArray[np.int32]) -> str:
        """Numbers to characters."""
        return "".join(self.vocabulary[number] for number in numbers)

    def batch(self, step: int, batch_size: int, context: int, seed: int) -> Tuple[Tensor, Tensor]:
        """Training batch number ``step``: random windows which depend on the arguments alone.

        Returns:
            tokens and targets, both [batch_size, context], int32; a target is the character after its token.
        """
        starts = np.random.default_rng((seed, step)).integers(0, len(self.train) - context, batch_size)
        return _windows(self.train, starts, context)

    def validation_batches(self, count: int, batch_size: int, context: int) -> Iterator[Tuple[Tensor, Tensor]]:
        """``count`` batches spread evenly over the validation text, always the same."""
        starts = np.linspace(0, len(self.validation) - context - 1, count * batch_size).astype(np.int64)
        for chunk in np.split(starts, count):
            yield _windows(self.validation, chunk, context)


def _windows(text: NDArray[np.int32], starts: NDArray[np.int64], context: int) -> Tuple[Tensor, Tensor]:
    windows = text[starts[:, None] + np.arange(context + 1)]
    return Tensor(np.ascontiguousarray(windows[:, :-1])), Tensor(np.ascontiguousarray(windows[:, 1:]))


def python_topics() -> Corpus:
    """The help topics that CPython's ``help()`` shows, in alphabetical order."""
    return Corpus("\n\n".join(topics[name] for name in sorted(topics)))
