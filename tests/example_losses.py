"""The first losses of every config, kept in ``example_losses.json``.

    python -m tests.example_losses > tests/example_losses.json

``tiny`` is checked as it is. ``small`` has two of its eight blocks, a shorter context and a smaller batch in one part,
``ascend`` its schedule, clipping and accumulation on a network that a CPU can train in float32, with a learning rate
that has an effect within its 2000 steps of warm-up: their full sizes do not fit into a test. The text is this
repository's licence, because the help topics of Python differ between its versions.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Dict, List, Tuple

from tests.example import TEXT, call, column

FILE = Path(__file__).with_suffix(".json")
COMMON = ("--data", TEXT, "--validation_batches", "1", "--validate_every", "0", "--sample", "0", "--log_every", "1")
ON_CPU = ("--device", "CPU", "--dtype", "float32")
SIZE = ("--hidden_size", "64", "--num_layers", "2", "--num_heads", "4", "--mlp_size", "128", "--context", "64")
CONFIGS: Dict[str, Tuple[str, ...]] = {
    "tiny": ("--stop_at", "20"),
    "small": ("--stop_at", "20", "--num_layers", "2", "--context", "64", "--batch_size", "2", "--accumulation", "1"),
    "ascend": (
        "--stop_at",
        "20",
        *ON_CPU,
        *SIZE,
        "--batch_size",
        "16",
        "--accumulation",
        "2",
        "--learning_rate",
        "0.2",
    ),
}


def flags(config: str) -> List[str]:
    return ["--config", config, *COMMON, *CONFIGS[config], "--output", config]


def expected(config: str) -> List[float]:
    values: List[float] = json.loads(FILE.read_text(encoding="utf-8"))[config]
    return values


def main() -> None:
    losses = {}
    with tempfile.TemporaryDirectory() as folder:
        for config in CONFIGS:
            call(Path(folder), "train", *flags(config))
            losses[config] = [round(loss, 6) for loss in column(Path(folder) / config)]
    print(json.dumps(losses, indent=1))


if __name__ == "__main__":
    main()
