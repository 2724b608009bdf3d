"""Settings: what a file in ``configs`` and the flags of the programs may say."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import math
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

HERE = Path(__file__).resolve().parent
DEFAULT_CONFIG = "configs/tiny.yaml"


class SettingsError(ValueError):
    """A setting that cannot be used; the message is for the user."""


def _setting(
    default: Any, description: str, *, least: float = 0, choices: Tuple[str, ...] = (), free: bool = False
) -> Any:
    """One setting: its default, what it is, the least value, the accepted words.

    ``free`` settings do not decide what is computed, so a resumed run may change them.
    """
    facts = {"help": description, "least": least, "choices": choices, "free": free}
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata=facts)
    return dataclasses.field(default=default, metadata=facts)


@dataclasses.dataclass(frozen=True)
class Settings:
    """All settings of a run. ``python -m model_zoo_example.train --help`` prints what each means."""

    # the network
    hidden_size: int = _setting(64, "D, a multiple of num_heads", least=1)
    num_layers: int = _setting(2, "blocks of attention and MLP", least=1)
    num_heads: int = _setting(4, "attention heads", least=1)
    mlp_size: int = _setting(256, "width of the MLP", least=1)
    context: int = _setting(64, "S, the bytes that the network sees", least=1)
    residual: str = _setting(
        "mhc",
        "mHC, hyper-connections without Sinkhorn, or the ordinary transformer",
        choices=("mhc", "unconstrained", "plain"),
    )
    num_streams: int = _setting(4, "N, the residual streams of mhc and unconstrained", least=1)
    dtype: str = _setting(
        "float32", "of the activations; parameters are float32", choices=("float32", "float16", "bfloat16")
    )
    recompute: bool = _setting(False, "compute the blocks again in the backward pass to save memory", free=True)
    backend: str = _setting("auto", "what computes mHC: auto, or a backend by name", free=True)

    # the data
    data: List[str] = _setting(  # noqa: RUF009 (it is a field with a default_factory)
        [], "text files or folders, separated by commas; without any, the help topics of Python", free=True
    )
    batch_size: int = _setting(16, "windows of text per step, over all processes", least=1)

    # the training
    steps: int = _setting(600, "length of the run and of its learning-rate schedule", least=1)
    accumulation: int = _setting(1, "parts in which a process computes its share of a batch, one by one", least=1)
    learning_rate: float = _setting(4e-3, "the highest one, reached after warmup_steps")
    final_rate: float = _setting(0.1, "share of learning_rate at which the cosine ends")
    warmup_steps: int = _setting(40, "steps in which the learning rate grows linearly")
    weight_decay: float = _setting(0.05, "of the matrices of the transformer")
    beta1: float = _setting(0.9, "AdamW's decay of the mean")
    beta2: float = _setting(0.98, "AdamW's decay of the mean square")
    clip_norm: float = _setting(1.0, "gradients with a larger norm are scaled down to it; 0: never")
    loss_scale: float = _setting(65536.0, "where dynamic loss scaling starts, for float16", least=1)
    loss_scale_window: int = _setting(1000, "steps without overflow after which it doubles", least=1)
    seed: int = _setting(1, "decides weights and batches")

    # the run
    device: str = _setting("CPU", "the device target", choices=("CPU", "Ascend"), free=True)
    mode: str = _setting("graph", "MindSpore's mode", choices=("graph", "pynative"), free=True)
    output: str = _setting("", "folder of this run; without one, runs/NAME-OF-THE-CONFIG, then -2, -3, ...", free=True)
    stop_at: int = _setting(0, "stop after this step as if interrupted; 0: at the end", free=True)
    save_every: int = _setting(200, "steps between two checkpoints; 0: only at the end", free=True)
    keep: int = _setting(3, "checkpoints kept", least=1, free=True)
    validate_every: int = _setting(100, "steps between two validations; 0: only at the end", free=True)
    validation_batches: int = _setting(40, "batches that one validation reads", least=1, free=True)
    log_every: int = _setting(1, "steps between two lines of metrics.csv", least=1, free=True)
    print_every: int = _setting(25, "steps between two printed lines where there is no terminal", least=1, free=True)
    sample: int = _setting(300, "bytes that the network writes at the end", free=True)
    events: bool = _setting(False, "also write event files (MindSpore's SummaryRecord)", free=True)

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_heads:
            raise SettingsError(f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}")
        if self.batch_size % self.accumulation:
            raise SettingsError(f"batch_size {self.batch_size} is not a multiple of accumulation {self.accumulation}")
        if self.warmup_steps > self.steps:
            raise SettingsError(f"warmup_steps {self.warmup_steps} is more than steps {self.steps}")
        if self.device == "CPU" and self.dtype == "bfloat16":
            raise SettingsError(
                "dtype bfloat16 needs device Ascend: MindSpore's CPU backend cannot multiply such matrices; "
                "float32 and float16 work there"
            )
        for name in ("beta1", "beta2", "final_rate"):
            if not getattr(self, name) <= 1 or (name != "final_rate" and getattr(self, name) in (0, 1)):
                raise SettingsError(f"{name} must be between 0 and 1, but got {getattr(self, name)}")


FIELDS: Dict[str, dataclasses.Field[Any]] = {field.name: field for field in dataclasses.fields(Settings)}


def from_mapping(values: Mapping[str, Any], where: str) -> Settings:
    """Settings from names and values as YAML or a command line has them.

    Raises:
        SettingsError: an unknown name, with the nearest known one, or a value that cannot be used.
    """
    for name in values:
        if name not in FIELDS:
            raise SettingsError(f"{where}: unknown setting {name!r}{nearest(str(name))}")
    try:
        return Settings(**{name: _value(FIELDS[name], value) for name, value in values.items()})
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from None


def nearest(name: str, known: Sequence[str] = tuple(FIELDS)) -> str:
    """A hint at the known name that looks most like this one, or at ``--help``."""
    close = difflib.get_close_matches(name.replace("-", "_"), known, n=1)
    return f"; did you mean {close[0]!r}?" if close else "; --help lists those there are"


def _value(field: dataclasses.Field[Any], value: Any) -> Any:
    kind: type = list if field.default is dataclasses.MISSING else type(field.default)
    facts = field.metadata
    if kind is list:
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, (list, tuple)) or not all(isinstance(part, str) for part in parts):
            raise SettingsError(f"{field.name} must be a list of paths, but got {value!r}")
        return [part for part in parts if part]
    if kind is bool:
        words = {"true": True, "false": False, "yes": True, "no": False}
        value = words.get(value.lower(), value) if isinstance(value, str) else value
        if not isinstance(value, bool):
            raise SettingsError(f"{field.name} must be true or false, but got {value!r}")
        return value
    if kind is str:
        if not isinstance(value, str) or (facts["choices"] and value not in facts["choices"]):
            accepted = ", ".join(facts["choices"]) or "a string"
            raise SettingsError(f"{field.name}: accepted are {accepted}, but got {value!r}")
        return value
    return _number(field.name, kind, value, facts["least"])


_MOST = 2**32 - 1  # NumPy takes no larger seed; no count comes near


def _number(name: str, kind: type, value: Any, least: float) -> Any:
    # YAML reads 1e-3 as a string: its numbers want a point in them
    try:
        number = kind(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    accepted = (int, float) if kind is float else (int,)
    if isinstance(number, bool) or not isinstance(number, accepted):
        raise SettingsError(f"{name} must be {'a number' if kind is float else 'an integer'}, but got {value!r}")
    if not number >= least or math.isinf(number):
        raise SettingsError(f"{name} must be {least:g} or more, but got {value}")
    if kind is int and number > _MOST:
        raise SettingsError(f"{name} must be {_MOST} or less, but got {value}")
    return kind(number)


def find_config(name: str) -> Path:
    """A config file: as the path says, or else in this package, with or without ``configs/`` and ``.yaml``.

    Raises:
        SettingsError: there is none.
    """
    given = Path(name)
    places = [given, HERE / given, HERE / "configs" / given, HERE / "configs" / f"{name}.yaml"]
    for place in places:
        if place.is_file():
            return place
    there = ", ".join(sorted(path.name for path in (HERE / "configs").glob("*.yaml")))
    raise SettingsError(f"--config: there is no file {name}, neither here nor among the package's configs ({there})")


def read_config(path: Path) -> Dict[str, Any]:
    """The names and values in a YAML file.

    Raises:
        SettingsError: it cannot be read, or does not hold names and values.
    """
    try:
        import yaml
    except ImportError as error:
        raise SettingsError("reading configs needs PyYAML: pip install 'ms-mhc[example]'") from error
    try:
        text = path.read_text(encoding="utf-8")
        values, node = yaml.safe_load(text), yaml.compose(text, yaml.SafeLoader)
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise SettingsError(f"{path} must hold lines of the form 'name: value'")
    keys = [key.value for key, _ in node.value]
    twice = [key for key in dict.fromkeys(keys) if keys.count(key) > 1]  # of which the last would silently win
    if twice:
        raise SettingsError(f"{path} names {' and '.join(twice)} twice")
    return values


def add_flags(parser: argparse.ArgumentParser, names: Sequence[str] = tuple(FIELDS)) -> None:
    """One flag per setting; one that is not given leaves the setting as it is."""
    group = parser.add_argument_group("settings, which win over the config file")
    for name in names:
        facts = FIELDS[name].metadata
        choices = f" ({', '.join(facts['choices'])})" if facts["choices"] else ""
        spellings = sorted({f"--{name}", f"--{name.replace('_', '-')}"}, reverse=True)
        text = (facts["help"] + choices).replace("%", "%%")
        group.add_argument(*spellings, dest=name, default=argparse.SUPPRESS, metavar="VALUE", help=text)


def count(text: str) -> int:
    """A flag's whole number of at least 1."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 1 <= number <= _MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return number


def file_to_write(text: str) -> Path:
    """A flag's file that can be written; told before hours of work are for nothing."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder")
    try:
        with tempfile.TemporaryFile(dir=path.absolute().parent):
            return path
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written: {error.strerror}") from error


def parse(parser: argparse.ArgumentParser, argv: Optional[Sequence[str]]) -> Tuple[argparse.Namespace, Dict[str, Any]]:
    """The program's own flags, and the settings among them.

    Raises:
        SettingsError: a flag that there is not, with the nearest one that there is.
    """
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        known = [name for action in parser._actions for name in action.option_strings]
        flag = unknown[0].split("=")[0]
        close = difflib.get_close_matches(flag.replace("-", "_"), [name.replace("-", "_") for name in known], n=1)
        hint = f"; did you mean --{close[0].strip('_')}?" if close and flag.startswith("-") else ""
        raise SettingsError(f"unknown argument {flag!r}{hint or '; --help lists those there are'}")
    return args, {name: value for name, value in vars(args).items() if name in FIELDS}


def differences(stored: Settings, given: Settings, *, free: bool) -> List[str]:
    """``name: stored value -> given value`` of the settings that differ, either the free ones or the others."""
    return [
        f"{name}: {getattr(stored, name)!r} -> {getattr(given, name)!r}"
        for name, field in FIELDS.items()
        if bool(field.metadata["free"]) == free and getattr(stored, name) != getattr(given, name)
    ]
