"""The guide's programs run, one behind the other as it shows them, and the messages it explains are the real ones."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List

import pytest

from tests.example import ROOT, environment

GUIDE = ROOT / "docs" / "guide.md"
CHINESE = ROOT / "docs" / "guide.zh-CN.md"


def blocks(page: Path, language: str) -> List[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def patched(text: str, diff: str) -> str:
    """What the diff makes of the text; every hunk must fit at exactly one place."""
    for hunk in re.split(r"^@@.*@@\n", diff, flags=re.MULTILINE)[1:]:
        lines = hunk.splitlines()
        before = "".join(f"{line[1:]}\n" for line in lines if line[:1] != "+")
        after = "".join(f"{line[1:]}\n" for line in lines if line[:1] != "-")
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    return text


_BEGIN = """
ms.set_context(mode={mode})
ms.set_seed(1)
tokens = Tensor(np.random.default_rng(0).integers(0, 256, (2, 16)), ms.int32)
"""
_PLAIN = """
network = Transformer(vocabulary=256, size=64, heads=4, depth=2)
ms.save_checkpoint(network, "plain.ckpt")
np.save("plain.npy", network(tokens).asnumpy())
"""
_SAME = """
plain, found = np.load("plain.npy"), new(tokens).asnumpy()
assert np.abs(found - plain).max() <= 1e-4 * np.abs(plain).max(), np.abs(found - plain).max()
"""
_TRAINS = """
def loss(tokens):
    return ops.cross_entropy(network(tokens).astype(ms.float32).reshape(-1, 256), tokens.reshape(-1))
value, gradients = ms.value_and_grad(loss, None, network.trainable_params())(tokens)
assert all(np.isfinite(g.astype(ms.float32).asnumpy()).all() for g in gradients)
assert abs(float(value.asnumpy()) - np.log(256)) < 1.0
"""


def program(mode: int) -> List[str]:
    (plain,), (diff,) = blocks(GUIDE, "python plain"), blocks(GUIDE, "diff")
    begin = _BEGIN.format(mode=mode)
    (checkpoint,), (precision,), (recompute,) = (
        blocks(GUIDE, f"python {name}") for name in ("checkpoint", "precision", "recompute")
    )
    rest = [checkpoint, _SAME, precision, _TRAINS, recompute, _TRAINS]
    return [plain + begin + _PLAIN, patched(plain, diff) + begin + "".join(rest)]


@pytest.mark.parametrize("mode", [0, 1], ids=["graph", "pynative"])
def test_the_programs_of_the_guide_run(mode: int, tmp_path: Path) -> None:
    both = ""
    for number, code in enumerate(program(mode)):
        path = tmp_path / f"program{number}.py"
        path.write_text(code, encoding="utf-8")
        both += f"runpy.run_path({str(path)!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", "import runpy\n" + both],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_change_is_a_diff_of_twenty_lines() -> None:
    (diff,) = blocks(GUIDE, "diff")
    assert sum(line[:1] in "+-" for line in diff.splitlines()[2:]) <= 20


def test_both_languages_show_the_same_programs_and_messages() -> None:
    for language in ("python plain", "diff", "python checkpoint", "python precision", "python recompute", "sh"):
        strip = [re.sub(r"\s*#.*", "", block) for block in blocks(GUIDE, language)]
        assert strip == [re.sub(r"\s*#.*", "", block) for block in blocks(CHINESE, language)], language
    assert explained(GUIDE) == explained(CHINESE)


def explained(page: Path) -> List[str]:
    """The quoted words in the first column of the tables of messages."""
    rows = re.findall(r"^\| (`.*?) \| ", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [words for row in rows for words in re.findall(r"`([^`]+)`", row)]


def _messages() -> Dict[str, Callable[[], Any]]:
    """Of the words that the guide explains, those of the package, and how one gets to read them."""
    import mindspore as ms
    from mindspore import Tensor, mint, nn

    from ms_mhc import HyperConnection, MhcPre, MhcSinkhorn

    def connection() -> HyperConnection:
        return HyperConnection(4, 64, nn.Dense(64, 64))

    return {
        "x has rank": lambda: connection()(mint.zeros((3, 5))),
        "so 16 streams of size 64; expected num_streams=4": lambda: connection()(mint.zeros((2, 16, 64))),
        "x is empty": lambda: connection()(mint.zeros((0, 3, 4, 64))),
        "accepted: bfloat16, float16, float32": lambda: connection()(Tensor([[[1] * 64] * 4], ms.int32)),
        "expected num_streams=4 and hidden_size=64": lambda: connection()(mint.zeros((2, 3, 4, 32))),
        "branch must be a mindspore.nn.Cell": lambda: HyperConnection(4, 64, lambda h: h),
        "backend='aclnn' cannot be used": lambda: MhcPre(4, 64, backend="aclnn"),
        "backend must be one of": lambda: MhcSinkhorn(backend="fast"),
    }


@pytest.mark.parametrize("words", list(_messages()))
def test_a_message_that_the_guide_explains_is_the_real_one(words: str) -> None:
    assert any(words in entry for entry in explained(GUIDE))
    with pytest.raises((TypeError, ValueError, RuntimeError), match=re.escape(words)):
        _messages()[words]()


def test_the_programs_messages_that_the_guide_explains_are_in_its_source() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "model_zoo_example").glob("*.py"))
    flat = re.sub(r'"\s*\n\s*f?"', "", source)
    rows = GUIDE.read_text(encoding="utf-8").split("And of the training program:")[1]
    for words in re.findall(r"^\| (`.*?) \| ", rows, re.MULTILINE):
        for entry in re.findall(r"`([^`]+)`", words):
            for piece in entry.replace("2 processes", "...").split("..."):
                assert piece.strip() in flat, entry
