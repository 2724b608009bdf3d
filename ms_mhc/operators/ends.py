"""The cells that begin and end the residual streams.

In a file of their own: amp O1 copies the functions that a construct calls, but not what stands beside them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Tuple

import mindspore as ms
from mindspore import Tensor, mint, ops
from mindspore.ops import constexpr

from aclnn_adapter.operators import Argument, Operator
from ms_mhc import checks, parallel
from ms_mhc.operators.precision import Float32Cell


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
def expanding(h: Any, num_streams: Any, layout: Any) -> Any:
    """The cell that copies what h is like: a graph then checks before it computes."""
    shape = checks.expand_streams("expand_streams", checks.tensor("expand_streams", "h", h), num_streams)
    n = int(num_streams)
    made = _expand((1,) * (len(shape) - 1) + (n, 1))
    placed = _placed("expand_streams", layout, len(shape) + 1)
    return made if placed is None else parallel.Placed(_EXPAND, placed, made.formula, known={"N": n})


@constexpr(check=False)
def merging(x: Any, layout: Any) -> Any:
    """The same for the mean."""
    n = checks.merge_streams("merge_streams", checks.tensor("merge_streams", "x", x))
    made = _merge(n)
    placed = _placed("merge_streams", layout, len(x[0]))
    return made if placed is None else parallel.Placed(_MERGE, placed, made.formula)


def _placed(caller: str, layout: Any, rank: int) -> Any:
    parallel.check(caller, layout)
    return parallel.for_mode(caller, layout, rank)
