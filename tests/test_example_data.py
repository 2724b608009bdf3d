"""The example's text: any files, memory-mapped, in an order that depends on seed and step alone."""

from __future__ import annotations

import dataclasses
import resource
from pathlib import Path

import numpy as np
import pytest

from model_zoo_example.data import Corpus, CorpusError, open_corpus, train_batches, validation_batches
from model_zoo_example.settings import Settings

SETTINGS = Settings(batch_size=8, context=16, steps=50, seed=3)


def corpus(size: int = 4000) -> Corpus:
    values = np.random.default_rng(0).integers(0, 256, size).astype(np.uint8)
    return Corpus([values[:7], values[7:7], values[7:1500], values[1500:]], "test")


def test_a_target_is_the_byte_behind_its_token_also_across_texts() -> None:
    parts = [np.frombuffer(text, np.uint8) for text in (b"abc", b"", b"d", b"efghij")]
    tokens, targets = Corpus(parts, "t").windows(np.array([0, 1, 5]), 4)
    assert [bytes(row.astype(np.uint8)) for row in tokens] == [b"abcd", b"bcde", b"fghi"]
    assert [bytes(row.astype(np.uint8)) for row in targets] == [b"bcde", b"cdef", b"ghij"]


def test_files_and_folders_are_read_in_order(tmp_path: Path) -> None:
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    (tmp_path / "folder" / "b.txt").write_bytes(b"B")
    (tmp_path / "folder" / "deep" / "a.txt").write_bytes(b"D")
    (tmp_path / "folder" / ".hidden").write_bytes(b"no")
    (tmp_path / "first.txt").write_bytes(b"first")
    found = open_corpus([str(tmp_path / "first.txt"), str(tmp_path / "folder")])
    assert bytes(found.read(0, found.size)) == b"firstBD"


def test_a_folder_may_hold_more_files_than_a_process_can_open(tmp_path: Path) -> None:
    for number in range(600):
        (tmp_path / f"{number:03d}").write_bytes(number.to_bytes(2, "big"))
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 300, allowed[1]))
    try:
        found = bytes(open_corpus([str(tmp_path)]).read(0, 1200))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, allowed)
    assert found == b"".join(number.to_bytes(2, "big") for number in range(600))


def test_training_never_reads_the_text_of_validation() -> None:
    text = corpus()
    highest = max(text.train_starts(step, 64, 16, 1).max() for step in range(100))
    assert highest + 16 + 1 <= text.train_size
    lowest = text.validation_starts(20, 16)
    assert lowest[0] == text.train_size
    assert lowest[-1] + 16 + 1 <= text.size


@pytest.mark.parametrize("processes", [2, 4])
def test_the_processes_together_read_what_one_reads(processes: int) -> None:
    text = corpus()
    alone = train_batches(text, SETTINGS, 5)
    others = [train_batches(text, SETTINGS, 5, rank, processes) for rank in range(processes)]
    for _ in range(3):
        tokens, targets = (t.asnumpy() for t in next(alone))
        parts = [[t.asnumpy() for t in next(other)] for other in others]
        np.testing.assert_array_equal(np.concatenate([part[0] for part in parts]), tokens)
        np.testing.assert_array_equal(np.concatenate([part[1] for part in parts]), targets)
    whole = np.concatenate([tokens for tokens, _ in validation_batches(text, SETTINGS)])
    shares = [
        np.concatenate([t for t, _ in validation_batches(text, SETTINGS, r, processes)]) for r in range(processes)
    ]
    assert sorted(map(bytes, np.concatenate(shares))) == sorted(map(bytes, whole))


def test_parts_of_a_batch_are_the_batch() -> None:
    whole = next(train_batches(corpus(), SETTINGS, 2))[0].asnumpy()
    parts = train_batches(corpus(), dataclasses.replace(SETTINGS, accumulation=4), 2)
    np.testing.assert_array_equal(np.concatenate([next(parts)[0].asnumpy() for _ in range(4)]), whole)


def test_a_later_start_gives_the_later_batches() -> None:
    run = train_batches(corpus(), SETTINGS, 0)
    batches = [next(run)[0].asnumpy() for _ in range(12)]
    np.testing.assert_array_equal(next(train_batches(corpus(), SETTINGS, 11))[0].asnumpy(), batches[11])
    assert (batches[0] != batches[1]).any()
    other = dataclasses.replace(SETTINGS, seed=4)
    assert (next(train_batches(corpus(), other, 0))[0].asnumpy() != batches[0]).any()


@pytest.mark.parametrize(("text", "words"), [(b"", "is empty"), (b"one line\n", "has 9 bytes")])
def test_a_text_that_is_too_short_is_told_how_long_it_must_be(tmp_path: Path, text: bytes, words: str) -> None:
    path = tmp_path / "corpus.txt"
    path.write_bytes(text)
    with pytest.raises(CorpusError, match=rf"{words}; with context 16 at least 170"):
        open_corpus([str(path)]).check(16)
    path.write_bytes(b"x" * 170)
    short = open_corpus([str(path)])
    short.check(16)
    assert short.windows(short.validation_starts(3, 16), 16)[0].shape == (3, 16)
    assert short.windows(short.train_starts(0, 3, 16, 1), 16)[0].shape == (3, 16)


def test_bytes_that_are_no_text_are_tokens_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "latin.bin"
    path.write_bytes(bytes(range(256)) * 2)
    assert bytes(open_corpus([str(path)]).read(250, 12)) == bytes([*range(250, 256), *range(6)])


def own_memory() -> int:
    """KiB of this process that are no pages of a file; those the system takes back when it needs them."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon:"))
    return int(line.split()[1])


def test_300_megabytes_are_not_read_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "large.bin"
    with path.open("wb") as file:
        file.write(b"begin")
        file.truncate(300 << 20)
        file.seek(0, 2)
        file.write(b"end")
    before = own_memory()
    large = open_corpus([str(path)])
    large.check(SETTINGS.context)
    batches = train_batches(large, SETTINGS, 0)
    for _ in range(50):
        next(batches)
    large.fingerprint()
    assert bytes(large.read(large.size - 3, 3)) == b"end"
    assert own_memory() - before < 50 << 10


def test_another_text_has_another_fingerprint() -> None:
    values = np.random.default_rng(0).integers(0, 256, 100_000).astype(np.uint8)
    changed = values.copy()
    changed[-1] ^= 1
    prints = {Corpus([v], "t").fingerprint() for v in (values, values[:-1], changed)}
    assert len(prints) == 3
    assert Corpus([values[:10], values[10:]], "t").fingerprint() == Corpus([values], "t").fingerprint()


def test_the_help_topics_of_python_are_there_without_any_file() -> None:
    topics = open_corpus([])
    topics.check(64)
    assert b"statement" in bytes(topics.read(0, topics.size))
