"""What a checkpoint's configuration says of the numbers that are no weights, against what a network has."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
from numbers import Real
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from mindspore import nn

from ms_mhc import MhcPre, MhcSinkhorn
from ms_mhc.interop.files import PathLike
from ms_mhc.interop.versions import Convention

# What Transformers and MindSpore Transformers write beside the weights.
CONFIG_FILES = ("config.json", "mindspore_model.yaml")

ConfigLike = Union[None, PathLike, Mapping[str, Any]]


class Config(NamedTuple):
    """A configuration, and what to call it in a message."""

    title: str
    values: Mapping[str, Any]


class Expected(NamedTuple):
    """One number that must be so for the weights to mean what they meant.

    Attributes:
        setting: the argument of :class:`ms_mhc.HyperConnection` that holds it.
        value: what it must be.
        source: who says so, the beginning of a sentence that ends with the value.
    """

    setting: str
    value: Any
    source: str


class _Key(NamedTuple):
    """A key of a configuration, the settings it stands for, and its value where the file leaves it out."""

    key: str
    settings: Tuple[str, ...]
    default: Any = None


_HF_KEYS = (
    _Key("hc_mult", ("num_streams",), 4),
    _Key("hidden_size", ("hidden_size",)),
    _Key("rms_norm_eps", ("norm_eps",), 1e-6),
    _Key("hc_eps", ("hc_eps", "sinkhorn_eps"), 1e-6),
    _Key("hc_sinkhorn_iters", ("num_iters",), 20),
)
# hc_eps is the epsilon of the norm there, not of the gates; it and two others have a name of Hugging Face's as well
_MINDFORMERS_KEYS = (
    _Key("num_residual_streams", ("num_streams",), 4),
    _Key("hidden_size", ("hidden_size",)),
    _Key("mhc_layernorm_epsilon", ("norm_eps",), 1e-6),
    _Key("mhc_sinkhorn_iterations", ("num_iters",), 20),
)
_ALIASES = {
    "num_residual_streams": "hc_mult",
    "mhc_layernorm_epsilon": "hc_eps",
    "mhc_sinkhorn_iterations": "hc_sinkhorn_iters",
}


def config(folder: Path, given: ConfigLike) -> Optional[Config]:
    """The configuration that was given, or that lies in the folder of a checkpoint.

    Raises:
        FileNotFoundError: a file that was given and is not there.
        TypeError: neither a path nor a mapping.
        ValueError: a file that cannot be read, or holds no mapping.
    """
    if given is None:
        found = next((folder / name for name in CONFIG_FILES if (folder / name).is_file()), None)
        return None if found is None else Config(str(found), _read(found))
    if isinstance(given, Mapping):
        return Config("config", _model_part(given))
    if not isinstance(given, (str, os.PathLike)):
        raise TypeError(f"interop: config must be a path or a mapping, but got {type(given).__name__}")
    path = Path(given)
    if not path.is_file():
        raise FileNotFoundError(f"interop: there is no configuration {path}")
    return Config(str(path), _read(path))


def _read(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text) if path.suffix == ".json" else _yaml(path, text)
    except ValueError as error:
        raise ValueError(f"interop: {path} cannot be read as a configuration: {error}") from error
    if not isinstance(values, Mapping):
        raise ValueError(f"interop: {path} is no configuration: it holds {type(values).__name__}, not a mapping")
    return _model_part(values)


def _yaml(path: Path, text: str) -> Any:
    try:
        yaml = importlib.import_module("yaml")  # only MindSpore Transformers writes YAML, and has the package
    except ImportError as error:
        raise ValueError(
            "this needs the package pyyaml; or give config= as a mapping, or check_settings=False"
        ) from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _model_part(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of a configuration of a whole run, what is about the model."""
    for key in ("model", "model_config"):
        inner = values.get(key)
        if isinstance(inner, Mapping):
            values = inner
    return values


def hf(found: Optional[Config]) -> List[Expected]:
    """What Hugging Face's DeepSeek-V4 computes with."""
    out = [Expected("recipe", "deepseek_v4", "Hugging Face's DeepSeek-V4 computes with")]
    if found is not None:
        complete = found.values.get("model_type") == "deepseek_v4"
        for key in _HF_KEYS:
            out += _expected(found, key, key.key, complete)
    return out


def mindformers(found: Optional[Config], version: Optional[str], convention: Optional[Convention]) -> List[Expected]:
    """What MindSpore Transformers computes with."""
    out: List[Expected] = []
    if convention is not None:
        source = f"MindSpore Transformers {version} ({convention.mixing}) computes with"
        out = [
            Expected("recipe", convention.recipe, source),
            Expected("hc_eps", convention.hc_eps, source),
            Expected("sinkhorn_eps", convention.sinkhorn_eps, source),
        ]
    if found is not None:
        values = found.values
        complete = values.get("model_type") == "deepseek_v4" or values.get("enable_hyper_connections") is True
        for key in _MINDFORMERS_KEYS:
            names = [name for name in (key.key, _ALIASES.get(key.key)) if name in values] or [key.key]
            for name in names:
                assert name is not None
                out += _expected(found, key, name, complete)
    return out


def _expected(found: Config, key: _Key, name: str, complete: bool) -> List[Expected]:
    """What a key says, or where it is missing and the file is of that model, its default there."""
    value = found.values.get(name)
    if value is None:
        if not complete or key.default is None:
            return []
        value, source = key.default, f"{found.title} leaves {name} at its default"
    else:
        source = f"{found.title} has {name}"
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                value = float(value)  # YAML reads 1e-6, which has no point, as a text
    if "num_iters" in key.settings and isinstance(value, Real):
        value = max(value, 1)  # both libraries begin with one iteration whatever the number
    return [Expected(setting, value, source) for setting in key.settings]


def problems(network: nn.Cell, cells: Mapping[str, nn.Cell], expected: Sequence[Expected]) -> List[str]:
    """Where a network's cells compute with other numbers, one line for each number and not for each cell.

    The Sinkhorn of a ``MhcPre`` is the ``MhcSinkhorn`` beside it, in the same cell; where there is not exactly one,
    its settings are not compared.
    """
    sinkhorns = _sinkhorns(network)
    wrong: Dict[Tuple[str, str, str], List[str]] = {}
    for name, cell in cells.items():
        has = _settings(cell, sinkhorns.get(id(cell)))
        for item in expected:
            if item.setting in has and not _same(has[item.setting], item.value):
                key = (f"{item.setting} is {has[item.setting]!r}", item.source, repr(item.value))
                wrong.setdefault(key, []).append(name)
    return [
        f"{has} in {names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}, but {source} {value}"
        for (has, source, value), names in wrong.items()
    ]


def _same(has: Any, value: Any) -> bool:
    if isinstance(has, str) or isinstance(value, (str, bool)) or not isinstance(value, Real):
        return type(has) is type(value) and bool(has == value)
    return float(has) == float(value)


def _settings(cell: nn.Cell, sinkhorn: Optional[nn.Cell]) -> Dict[str, Any]:
    has = {name: getattr(cell, name) for name in ("num_streams", "hidden_size", "norm_eps", "hc_eps")}
    if sinkhorn is not None:
        has.update(num_iters=sinkhorn.num_iters, sinkhorn_eps=sinkhorn.eps, recipe=sinkhorn.recipe)
    return has


def _sinkhorns(network: nn.Cell) -> Dict[int, nn.Cell]:
    """From the id of a ``MhcPre`` to the ``MhcSinkhorn`` that works on its logits."""
    out: Dict[int, nn.Cell] = {}
    for _, parent in network.cells_and_names():
        children = list(parent.cells())
        pres = [child for child in children if isinstance(child, MhcPre)]
        sinkhorns = [child for child in children if isinstance(child, MhcSinkhorn)]
        if len(pres) == len(sinkhorns) == 1:
            out[id(pres[0])] = sinkhorns[0]
    return out
