"""Where the residual streams begin and end."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Tuple

import mindspore as ms
from mindspore import Tensor, mint, ops
from mindspore.ops import constexpr

from aclnn_adapter.operators import Argument, Operator
from ms_mhc import checks, parallel
from ms_mhc.dispatch import spec
from ms_mhc.operators.precision import Float32Cell


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
    return _expanding(spec(h), num_streams, layout)((h,))[0]


def merge_streams(x: Tensor, *, layout: Any = None) -> Tensor:
    """End the residual streams: their mean.

    Args:
        x: [..., N, D], float32, bfloat16 or float16.
        layout: how x, [B, S, N, D] or [T, N, D], is split under semi_auto_parallel, see
            :class:`ms_mhc.HyperConnection`. The result is split likewise.

    Returns:
        [..., D], in the dtype of x. The mean is taken in float32.
    """
    return _merging(spec(x), layout)((x,))[0]


class _Expand(Float32Cell):
    def __init__(self, repeats: Tuple[int, ...]) -> None:
        super().__init__()
        self.repeats = repeats

    def construct(self, tensors: Tuple[Tensor]) -> Tuple[Tensor]:
        return (self.formula(tensors[0]),)

    def formula(self, h: Tensor) -> Tensor:
        return ops.cast(ops.tile(ops.cast(h, ms.float32).expand_dims(-2), self.repeats), h.dtype)


class _Merge(Float32Cell):
    def __init__(self, num_streams: int) -> None:
        super().__init__()
        self.num_streams = num_streams

    def construct(self, tensors: Tuple[Tensor]) -> Tuple[Tensor]:
        return (self.formula(tensors[0]),)

    def formula(self, x: Tensor) -> Tensor:
        return ops.cast(mint.sum(ops.cast(x, ms.float32), -2) / self.num_streams, x.dtype)


_expand, _merge = lru_cache(_Expand), lru_cache(_Merge)

_H = Argument("h", "input", dtype="x", shape=("T", "D"))
_X = Argument("x", "input", dtype="x", shape=("T", "N", "D"))
_EXPAND = Operator("ExpandStreams", (_H, Argument("out", "output", dtype="x", shape=_X.shape)), {})
_MERGE = Operator("MergeStreams", (_X, Argument("out", "output", dtype="x", shape=_H.shape)), {})


@constexpr(check=False)
def _expanding(h: Any, num_streams: Any, layout: Any) -> Any:
    """Of what h is like: a graph then checks before it computes."""
    shape = checks.expand_streams("expand_streams", checks.tensor("expand_streams", "h", h), num_streams)
    n = int(num_streams)
    made = _expand((1,) * (len(shape) - 1) + (n, 1))
    placed = _placed("expand_streams", layout, len(shape) + 1)
    return made if placed is None else parallel.Placed(_EXPAND, placed, made.formula, known={"N": n})


@constexpr(check=False)
def _merging(x: Any, layout: Any) -> Any:
    n = checks.merge_streams("merge_streams", checks.tensor("merge_streams", "x", x))
    made = _merge(n)
    placed = _placed("merge_streams", layout, len(x[0]))
    return made if placed is None else parallel.Placed(_MERGE, placed, made.formula)


def _placed(caller: str, layout: Any, rank: int) -> Any:
    parallel.check(caller, layout)
    return parallel.for_mode(caller, layout, rank)
