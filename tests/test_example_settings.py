"""The example's settings: what a config and a command line may say, and what they are told otherwise."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Dict, List

import pytest

from model_zoo_example.settings import (
    FIELDS,
    HERE,
    Settings,
    differences,
    find_config,
    from_mapping,
    read_config,
)
from model_zoo_example.train import main, plan


def test_every_config_can_be_used() -> None:
    names = sorted(path.stem for path in (HERE / "configs").glob("*.yaml"))
    assert names == ["ascend", "compare", "small", "tiny"]
    for name in names:
        from_mapping(read_config(find_config(name)), name)


@pytest.mark.parametrize("name", ["tiny", "tiny.yaml", "configs/tiny.yaml", str(HERE / "configs" / "tiny.yaml")])
def test_a_config_of_the_package_is_found_from_any_folder(name: str) -> None:
    assert find_config(name).samefile(HERE / "configs" / "tiny.yaml")


def test_a_file_in_the_current_folder_comes_first() -> None:
    Path("tiny.yaml").write_text("steps: 7\n", encoding="utf-8")  # each test has a folder of its own
    assert plan(["--config", "tiny.yaml", "--warmup_steps", "2"]).settings.steps == 7


def test_flags_win_over_the_config_in_either_spelling() -> None:
    settings = plan(["--batch-size", "4", "--learning_rate=1e-3", "--recompute", "true", "--data", "a.txt,b"]).settings
    assert (settings.batch_size, settings.learning_rate, settings.recompute) == (4, 1e-3, True)
    assert settings.data == ["a.txt", "b"]
    assert settings.context == 64


def test_yaml_numbers_without_a_point_are_numbers() -> None:
    Path("c.yaml").write_text("learning_rate: 1e-3\n", encoding="utf-8")
    assert plan(["--config", "c.yaml"]).settings.learning_rate == 1e-3


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--batchsize", "4"], ["--batchsize", "did you mean --batch_size"]),
        (["--bogus", "4"], ["--bogus"]),
        (["--num_streams", "0"], ["num_streams", "1 or more", "got 0"]),
        (["--steps", "many"], ["steps", "an integer", "'many'"]),
        (["--steps", "99999999999999999999"], ["steps", "4294967295 or less", "99999999999999999999"]),
        (["--seed", "4294967296"], ["seed", "4294967295 or less", "4294967296"]),
        (["--config", "twice.yaml"], ["twice.yaml names steps twice"]),
        (["--steps", "10"], ["warmup_steps 40", "steps 10"]),
        (["--learning_rate", "nan"], ["learning_rate", "nan"]),
        (["--residual", "none"], ["residual", "mhc, unconstrained, plain", "'none'"]),
        (["--num_heads", "5"], ["hidden_size 64", "num_heads 5"]),
        (["--accumulation", "3"], ["batch_size 16", "accumulation 3"]),
        (["--beta2", "1"], ["beta2", "between 0 and 1"]),
        (["--dtype", "bfloat16"], ["bfloat16", "Ascend", "float16"]),
        (["--config", "missing.yaml"], ["missing.yaml", "tiny.yaml"]),
        (["--config", "list.yaml"], ["list.yaml", "name: value"]),
        (["--config", "broken.yaml"], ["broken.yaml", "not YAML"]),
        (["--config", "unknown.yaml"], ["unknown.yaml", "'learning_rat'", "did you mean 'learning_rate'"]),
        (["--data", "missing.txt"], ["data", "missing.txt"]),
        (["--resume", "missing"], ["missing"]),
    ],
    ids=lambda value: value[1] if value[0] == "--config" else value[0],
)
def test_what_cannot_be_used_is_told_in_one_line(
    flags: List[str], words: List[str], capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"list": "- 1\n", "broken": "a: [\n", "unknown": "learning_rat: 1\n", "twice": "steps: 1\nsteps: 2\n"}
    for name, text in files.items():
        Path(f"{name}.yaml").write_text(text, encoding="utf-8")
    assert main(flags) in (1, 2)
    message = capsys.readouterr().err
    assert len(message.splitlines()) == 1
    for word in words:
        assert word in message


def test_settings_that_decide_what_is_computed_are_told_from_those_that_do_not() -> None:
    one = Settings()
    other = dataclasses.replace(one, seed=2, learning_rate=1e-3, output="x", save_every=5)
    assert differences(one, other, free=False) == ["learning_rate: 0.004 -> 0.001", "seed: 1 -> 2"]
    assert [line.split(":")[0] for line in differences(one, other, free=True)] == ["output", "save_every"]


def test_the_ascend_config_is_a_size_for_eight_devices_and_the_kernels() -> None:
    """One block at full size is built; the network is 24 of them."""
    from model_zoo_example.model import Transformer

    values: Dict[str, Any] = read_config(find_config("ascend"))
    settings = from_mapping(values, "ascend")
    assert settings.hidden_size % 64 == 0
    assert settings.num_streams in (4, 6, 8)
    assert settings.batch_size % (8 * settings.accumulation) == 0
    one = dataclasses.replace(settings, num_layers=1, dtype="float32", device="CPU")
    network = Transformer(one)
    block = sum(p.size for p in network.blocks.trainable_params())
    rest = sum(p.size for p in network.trainable_params()) - block
    assert 1.15e9 < settings.num_layers * block + rest < 1.3e9


def test_every_setting_is_explained() -> None:
    for name, field in FIELDS.items():
        assert len(field.metadata["help"]) > 5, name
