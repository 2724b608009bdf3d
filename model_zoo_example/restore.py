"""The network of a checkpoint, without what trained it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Tuple

from mindspore import Tensor

from model_zoo_example import checkpoint as checkpoints
from model_zoo_example.checkpoint import Checkpoint
from model_zoo_example.machine import set_up
from model_zoo_example.model import Transformer
from model_zoo_example.settings import Settings, from_mapping

PREFIX = "network."


def restore(path: Path, overrides: Dict[str, Any]) -> Tuple[Settings, Transformer, Checkpoint]:
    """Settings and network of a checkpoint, or of the newest in a folder.

    Args:
        path: the file or folder.
        overrides: settings to change: device, mode, backend and the like.

    Raises:
        SettingsError: a setting that cannot be used.
        CheckpointError: the file cannot be read, or does not fit its own settings.
    """
    stored = checkpoints.load(path)
    settings = from_mapping({**stored.facts["settings"], **overrides}, str(stored.path))
    set_up(settings)
    network = Transformer(settings)
    parameters = dict(network.parameters_and_names())
    mine = {name[len(PREFIX) :]: array for name, array in stored.arrays.items() if name.startswith(PREFIX)}
    checkpoints.check_names(stored._replace(arrays=mine), parameters)
    for name, parameter in parameters.items():
        parameter.set_data(Tensor(mine[name]))
    return settings, network, stored
