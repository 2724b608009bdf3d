"""The example's experiment and its measure of speed: small, from end to end, and what they make of given numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, Tuple

import pytest

from model_zoo_example import compare, speed
from tests.example import TEXT

FLAGS = ("--depths", "1", "--seeds", "1", "--steps", "2", "--warmup_steps", "0", "--points", "1", "--data", TEXT)


def test_three_residuals_are_trained_and_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main([*FLAGS, "--validation_batches", "1", "--json", "found.json", "--plot", "found.png"]) == 0
    results = json.loads(Path("found.json").read_text(encoding="utf-8"))["results"]
    by_kind: Dict[str, Any] = {result["residual"]: result for result in results}
    assert set(by_kind) == set(compare.KINDS)
    first = [result["losses"][0] for result in results]
    assert max(first) - min(first) < 5e-4  # all start as the same network
    assert by_kind["mhc"]["parameters"] == by_kind["unconstrained"]["parameters"]
    for name in compare.GAINS:
        assert all(abs(row[name] - 1) < 0.05 for row in by_kind["mhc"]["gains"])
        assert any(row[name] > 1.01 for row in by_kind["unconstrained"]["gains"])  # two steps at the full rate
    assert Path("found.png").read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()

    again = [*FLAGS, "--validation_batches", "1", "--json", "found.json"]
    assert compare.main(again) == 0
    assert "done" not in capsys.readouterr().out  # nothing was missing
    assert compare.main([*again, "--learning_rate", "0.1"]) == 2
    assert "learning_rate: 0.012 -> 0.1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("program", "flags", "words"),
    [
        (compare, ("--kinds", "plain,foo"), "--kinds: 'foo' is none of plain, unconstrained, mhc"),
        (
            compare,
            ("--depths", "1,,2"),
            "--depths: '1,,2' is no list of numbers: '' is not a whole number of at least 1",
        ),
        (compare, ("--points", "0"), "--points: '0' is not a whole number of at least 1"),
        (
            compare,
            ("--json", "nowhere/x.json"),
            "--json: 'nowhere/x.json' cannot be written: No such file or directory",
        ),
        (compare, ("--plot", "."), "--plot: '.' is a folder"),
        (compare, ("--from", "missing.json"), "--from: cannot read missing.json: No such file or directory"),
        (compare, ("--from", "broken.json"), "--from: broken.json is no JSON: "),
        (compare, ("--from", "other.json"), "--from: other.json holds no results of this program"),
        (compare, (*FLAGS, "--json", "broken.json"), "--json: broken.json is no JSON: "),
        (speed, ("--rounds", "0"), "--rounds: '0' is not a whole number of at least 1"),
        (speed, ("--steps-per-round", "x"), "--steps-per-round: 'x' is not a whole number of at least 1"),
    ],
)
def test_what_cannot_be_used_is_told_before_anything_is_trained(
    program: Any, flags: Tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("broken.json").write_text("{", encoding="utf-8")
    Path("other.json").write_text("[]", encoding="utf-8")
    try:
        status = program.main(list(flags))
    except SystemExit as ended:
        status = int(str(ended.code))
    assert status == 2
    printed = capsys.readouterr()
    assert words in printed.err.splitlines()[-1]
    assert not printed.out


def result(kind: str, seed: int, loss: float, gain: float) -> Dict[str, Any]:
    rows = [dict.fromkeys(compare.GAINS, gain ** (layer + 1)) for layer in range(2)]
    gains = [] if kind == "plain" else rows
    return {
        "residual": kind,
        "layers": 1,
        "seed": seed,
        "validation": [5.0, loss],
        "norms": [1.0] * 8 + [9.0, 2.0],
        "gains": gains,
    }


def test_the_table_has_the_ranges_over_the_seeds() -> None:
    runs = [result("unconstrained", 1, 2.0, 3.0), result("unconstrained", 2, 3.0, 5.0), result("plain", 1, 2.5, 1.0)]
    plain, unconstrained = compare.summary(runs)[2:]
    assert plain == "| 1 | plain | 1 | 2.500 | 2.00 | 9.0 | 1 / 1 | 1 / 1 |"
    assert "| 2.500 (2.000 to 3.000) |" in unconstrained
    assert "9 to 25 / 3 to 5 |" in unconstrained  # forward at the last layer, backward at the first


def test_a_ratio_is_taken_within_a_round() -> None:
    """A machine that slows down in every round by half disturbs no ratio."""
    slower = [2.0**number for number in range(5)]
    factors = dict(zip([contender.name for contender in speed.CONTENDERS], (1.0, 2.0, 1.0, 0.5, 4.0)))
    lines = speed.report({name: [t * factor for t in slower] for name, factor in factors.items()}, 1000)
    assert "| plain residual | 500 | 0.50 (0.50 to 0.50) |" in lines
    assert any("takes 0.50 of the time that mHC takes with backend auto, and 0.25 of what" in line for line in lines)
    assert any("more than 2.00 times as fast" in line for line in lines)
    assert any("4.0 times as long" in line for line in lines)
