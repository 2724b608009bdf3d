"""The first losses of every config are those in the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_zoo_example import train
from tests.example import column
from tests.example_losses import CONFIGS, expected, flags


@pytest.mark.parametrize("config", CONFIGS)
def test_a_config_begins_as_it_did(config: str) -> None:
    assert train.main(flags(config)) == 0
    losses = column(Path(config))
    assert len(losses) == 20
    # the last bits of a sum depend on the processor, and grow with every step
    assert losses == pytest.approx(expected(config), abs=2e-3)
