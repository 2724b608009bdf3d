"""Where mixed precision stops.

``amp`` marks every cell of a network with a dtype; MindSpore then casts parameters and inputs of marked cells. The
gates of mHC are fp32 whatever ``amp`` does: their cells drop the mark, and only the streams take the network's dtype.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore._c_expression import MixedPrecisionType
from mindspore._c_expression.amp import AmpLevel, create_amp_strategy
from mindspore.train.amp import AmpDecorator

from aclnn_adapter.platform import pynative_executor
from ms_mhc import capture

# Eager calls of two threads take turns. MindSpore starts its own threads at the first operator, twice where two callers
# meet there, and aborts or hangs; and it fails ("runtime_info is null") where two meet at an operator's new shape.
_turn = [threading.RLock()]


def _new_turn() -> None:
    """In a forked process: the thread that had the turn may not be there."""
    _turn[0] = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_turn)

_MARKS = {"fp16": ms.float16, "bf16": ms.bfloat16, "fp32": ms.float32}


class GateCell(nn.Cell):
    """A cell whose parameters and gates stay in fp32, and whose streams take the network's dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.stream_dtype: Optional[Any] = None

    def add_flags(self, **flags: Any) -> nn.Cell:
        """Flags of a cell; those of mixed precision become the dtype of the streams."""
        for name, dtype in _MARKS.items():
            if flags.get(name):
                self.stream_dtype = dtype
        rest: Dict[str, Any] = {name: value for name, value in flags.items() if name not in _MARKS}
        return super().add_flags(**rest)

    def streams(self, x: Tensor) -> Tensor:
        """x in the dtype of the network, where ``amp`` set one."""
        return x if self.stream_dtype is None else ops.cast(x, self.stream_dtype)


class Float32Cell(nn.Cell):
    """A cell in which no mixed precision happens, whatever the cell is marked with that calls it.

    A graph that contains it compiles its ``construct``; called from Python it is a plain function.
    """

    # Level "auto" casts the inputs of single operators; what calls this cell has it, this cell has level O0.
    amp_strategy = create_amp_strategy(AmpLevel.AmpO0, ms.float32, [], [])

    def __init__(self) -> None:
        super().__init__()
        self.mixed_precision_type = MixedPrecisionType.NOTSET

    def __call__(self, *args: Any) -> Any:
        return self.construct(*args)


def run_eagerly(function: Callable[..., Any], *args: Any) -> Any:
    """A call in PyNative mode without the mixed precision of the cell that makes it, one thread at a time."""
    capture.refuse()
    with _turn[0]:
        pynative_executor.set_mixed_precision_type(MixedPrecisionType.NOTSET)
        try:
            with AmpDecorator(AmpLevel.AmpO0, ms.float32, [], []):
                return function(*args)
        finally:
            pynative_executor.set_mixed_precision_type(MixedPrecisionType.NOTSET, False)


def ready(operator: str, names: Sequence[str], tensors: Sequence[Tensor]) -> Tuple[Tensor, ...]:
    """The tensors of an eager call, on this device and with values.

    Raises:
        ValueError: only a part of one is here, or its initializer has not filled it yet. MindSpore hands that to a
            custom operator as it is.
    """
    _refuse_without_values(operator, names, tensors)
    return tuple(map(local, names, tensors))


def entering(operator: str, names: Sequence[str], tensors: Sequence[Tensor]) -> Tuple[Tensor, ...]:
    """The tensors of a call from Python in graph mode, as a graph takes them in a tuple.

    There MindSpore 2.10 takes no ``Parameter`` ("has no default param"), and zeros for what has no values yet.

    Raises:
        ValueError: an initializer has not filled one yet.
    """
    _refuse_without_values(operator, names, tensors)
    return tuple(Tensor(value) if isinstance(value, Parameter) else value for value in tensors)


def _refuse_without_values(operator: str, names: Sequence[str], tensors: Sequence[Tensor]) -> None:
    for name, value in zip(names, tensors):
        if getattr(value, "has_init", False):
            raise ValueError(f"{operator}: {name} has no values yet; call its init_data() first")


def local(name: str, value: Tensor) -> Tensor:
    """The tensor on this device of a distributed one (DTensor), whose gradient then arrives on it.

    Raises:
        ValueError: only a part of it is here.
    """
    if not hasattr(value, "to_local"):
        return value
    here = value.to_local()
    if tuple(here.shape) != tuple(value.shape):
        raise ValueError(
            f"{name} is a distributed tensor of shape {list(value.shape)}, of which only {list(here.shape)} is on this "
            f"device; pass its local part (to_local()) if it is split over tokens, else gather it first"
        )
    return here
