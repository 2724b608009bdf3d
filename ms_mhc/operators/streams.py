"""Where the residual streams begin and end."""

from __future__ import annotations

from typing import Any

from mindspore import Tensor

from ms_mhc.dispatch import spec
from ms_mhc.operators.ends import expanding, merging


def expand_streams(h: Tensor, num_streams: int, *, layout: Any = None) -> Tensor:
    """Start the residual streams: every stream a copy of h.

    Args:
        h: [..., D], float32, bfloat16 or float16.
        num_streams: N, >= 1.
        layout: how the streams, [B, S, N, D] or [T, N, D], are split under semi_auto_parallel, see
            :class:`ms_mhc.HyperConnection`. h is split likewise.

    Returns:
        [..., N, D], in the dtype of h.
    """
    return expanding(spec(h), num_streams, layout)((h,))[0]


def merge_streams(x: Tensor, *, layout: Any = None) -> Tensor:
    """End the residual streams: their mean.

    Args:
        x: [..., N, D], float32, bfloat16 or float16.
        layout: how x, [B, S, N, D] or [T, N, D], is split under semi_auto_parallel, see
            :class:`ms_mhc.HyperConnection`. The result is split likewise.

    Returns:
        [..., D], in the dtype of x. The mean is taken in float32.
    """
    return merging(spec(x), layout)((x,))[0]
