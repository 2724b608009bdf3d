"""Settings: what a file in ``configs`` and the flags of ``train.py`` may say."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Dict, Tuple

from model import ModelConfig

CHOICES: Dict[str, Tuple[str, ...]] = {
    "residual": ("mhc", "plain"),
    "dtype": ("float32", "float16", "bfloat16"),
}
MAY_BE_ZERO = ("steps", "warmup_steps", "weight_decay", "sample_length", "seed")


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """How to train.

    Attributes:
        steps: number of training steps.
        batch_size: windows of text per step.
        learning_rate: the highest one, reached after warmup_steps; a cosine then takes it down to a tenth.
        warmup_steps: steps in which the learning rate grows linearly.
        weight_decay: of the matrices of the transformer.
        validation_batches: batches of validation text that one evaluation reads.
        sample_length: characters that the model writes at the end.
        seed: decides weights, batches and the sampled text.
    """

    steps: int = 600
    batch_size: int = 16
    learning_rate: float = 4e-3
    warmup_steps: int = 40
    weight_decay: float = 0.05
    validation_batches: int = 40
    sample_length: int = 400
    seed: int = 1


def load(path: Path, overrides: Dict[str, Any]) -> Tuple[ModelConfig, TrainingConfig]:
    """Settings from a JSON file, with the values that flags gave put over them.

    Raises:
        ValueError: the file cannot be read, or a setting is unknown or has a value that cannot be used.
    """
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    sections = {"model": ModelConfig, "training": TrainingConfig}
    if not isinstance(stored, dict) or not set(stored) <= set(sections):
        raise ValueError(f"{path} must hold an object with the sections {' and '.join(sections)}")
    model = _section(ModelConfig, stored.get("model", {}), overrides, f"{path}, section model")
    training = _section(TrainingConfig, stored.get("training", {}), overrides, f"{path}, section training")
    if model.hidden_size % model.num_heads:
        raise ValueError(f"hidden_size {model.hidden_size} is not a multiple of num_heads {model.num_heads}")
    return model, training


def _section(kind: Any, stored: Any, overrides: Dict[str, Any], where: str) -> Any:
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    if not isinstance(stored, dict):
        raise ValueError(f"{where}: expected an object, but got {stored!r}")
    unknown = sorted(set(stored) - set(defaults))
    if unknown:
        raise ValueError(f"{where}: unknown setting {unknown[0]!r}; known are {', '.join(defaults)}")
    values = dict(stored)
    values.update((name, value) for name, value in overrides.items() if name in defaults)
    for name, value in values.items():
        _check(name, value, defaults[name])
    return kind(**values)


def _check(name: str, value: Any, default: Any) -> None:
    if isinstance(default, str):
        accepted = CHOICES.get(name)
        if not isinstance(value, str) or (accepted and value not in accepted):
            raise ValueError(f"{name} must be {' or '.join(accepted or ('a string',))}, but got {value!r}")
        return
    kind, numbers = ("a number", (int, float)) if isinstance(default, float) else ("an integer", (int,))
    if isinstance(value, bool) or not isinstance(value, numbers):
        raise ValueError(f"{name} must be {kind}, but got {value!r}")
    enough = value >= 0 if name in MAY_BE_ZERO else value > 0
    if not enough or value == float("inf"):
        least = "0 or more" if name in MAY_BE_ZERO else "greater than 0"
        raise ValueError(f"{name} must be {kind}, {least}, but got {value}")
