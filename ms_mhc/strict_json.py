"""JSON that every reader takes: the format has no NaN and no infinity, so these become their names."""

from __future__ import annotations

import json
import math
from typing import Any


def dumps(value: Any, **options: Any) -> str:
    """``json.dumps`` with ``"NaN"``, ``"Infinity"`` and ``"-Infinity"`` as texts, at any depth."""
    return json.dumps(_named(value), allow_nan=False, **options)


def _named(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _named(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_named(entry) for entry in value]
    return value
