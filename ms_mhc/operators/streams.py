"""Where the residual streams begin and end."""

from __future__ import annotations

from typing import Any, Tuple

import mindspore as ms
from mindspore import Tensor, mint, ops
from mindspore.ops import constexpr

from ms_mhc import checks
from ms_mhc.dispatch import spec


def expand_streams(h: Tensor, num_streams: int) -> Tensor:
    """Start the residual streams: every stream a copy of h.

    Args:
        h: [..., D], float32, bfloat16 or float16.
        num_streams: N, >= 1.

    Returns:
        [..., N, D], in the dtype of h.
    """
    repeats, float32 = _expand_repeats(spec(h), num_streams)
    return ops.cast(ops.tile(ops.cast(h, float32).expand_dims(-2), repeats), h.dtype)


@constexpr(check=False)
def _expand_repeats(h: Any, num_streams: Any) -> Tuple[Tuple[int, ...], Any]:
    """How often h is repeated in each dimension, and the dtype to do it in: a graph then checks before it computes."""
    shape = checks.expand_streams("expand_streams", checks.tensor("expand_streams", "h", h), num_streams)
    return (1,) * (len(shape) - 1) + (int(num_streams), 1), ms.float32


def merge_streams(x: Tensor) -> Tensor:
    """End the residual streams: their mean.

    Args:
        x: [..., N, D], float32, bfloat16 or float16.

    Returns:
        [..., D], in the dtype of x. The mean is taken in float32.
    """
    n, float32 = _num_streams(spec(x))
    return ops.cast(mint.sum(ops.cast(x, float32), -2) / n, x.dtype)


@constexpr(check=False)
def _num_streams(x: Any) -> Tuple[int, Any]:
    return checks.merge_streams("merge_streams", checks.tensor("merge_streams", "x", x)), ms.float32
