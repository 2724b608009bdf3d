"""JSON that every reader takes: the format has no NaN and no infinity, so these become their names. And files of it."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any


def dumps(value: Any, **options: Any) -> str:
    """``json.dumps`` with ``"NaN"``, ``"Infinity"`` and ``"-Infinity"`` as texts, at any depth."""
    return json.dumps(_named(value), allow_nan=False, **options)


def write(value: Any, path: Path) -> None:
    """The text of a value as a file. At any time a whole file lies there, even after a kill.

    Raises:
        OSError: it cannot be written; what was there is still there.
    """
    path = path.resolve()  # a link stays one
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_text(dumps(value, indent=1) + "\n", encoding="utf-8")
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def _named(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _named(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_named(entry) for entry in value]
    return value
