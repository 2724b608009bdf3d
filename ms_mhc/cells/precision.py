"""Where mixed precision stops.

``amp`` marks every cell of a network with a 16-bit dtype; MindSpore then casts parameters and inputs of marked cells.
The gates of mHC are fp32 whatever ``amp`` does: their cells drop the mark, and x passes through in the dtype it has.
"""

from __future__ import annotations

from typing import Any, Dict

_MARKS = ("fp16", "bf16", "fp32")


def unmarked(flags: Dict[str, Any]) -> Dict[str, Any]:
    """The flags of a cell without those of mixed precision."""
    return {name: value for name, value in flags.items() if name not in _MARKS}
