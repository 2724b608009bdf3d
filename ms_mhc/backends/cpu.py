"""Fused C++ kernels on the CPU.

The library is compiled when the package is installed. ``ops.Custom`` hands its functions the tensors as they are, in
graph mode and in PyNative mode; there calls with small results go straight to the function instead
(:mod:`ms_mhc.backends.direct`). In front of the tensors travels one small tensor with the scalars; its first number has
a bit for each optional tensor that is there, its second says which library they are for
(``ms_mhc/csrc/mindspore_aot.cc``).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy as np
from mindspore import Tensor, ops

from aclnn_adapter import platform
from aclnn_adapter.custom import infer_functions
from aclnn_adapter.operators import Operator
from ms_mhc import csrc
from ms_mhc.backends.direct import Direct, Kind
from ms_mhc.backends.registry import Backend, Job, Refusal
from ms_mhc.operation import FORWARD
from ms_mhc.operators.precision import Float32Cell

RECIPES = {"deepseek_v4": 0.0, "paper": 1.0}


def _within(path: Path, folder: Path) -> bool:
    return folder in (path, *path.parents)


def _function(contract: Operator) -> str:
    """The name of the C function for a contract."""
    return contract.name[len("aclnn") :]


class _Call(Float32Cell):
    """A C function with the scalars of one job."""

    def __init__(self, function: ops.Custom, direct: Direct, scalars: Tensor, single: bool) -> None:
        super().__init__()
        self.function = function
        self.direct = direct
        self.scalars = scalars
        self.single = single

    def __call__(self, *tensors: Tensor) -> Tuple[Tensor, ...]:
        # ops.Custom has no gradient and says so, where one is recorded
        if platform.called_eagerly() and not platform.recording():
            results = self.direct(*tensors)
            if results is not None:
                return results
        return self.construct(*tensors)

    def construct(self, *tensors: Tensor) -> Tuple[Tensor, ...]:
        out = self.function(self.scalars, *tensors)
        return (out,) if self.single else out


class Cpu(Backend):
    """The C++ kernels. They take any sizes that are known when a graph is compiled."""

    name = "cpu"

    def refusal(self, job: Job, direction: str = FORWARD) -> Optional[Refusal]:
        target = platform.device_target()
        if target != "CPU":
            return Refusal(f"the device target is {target}, not CPU")
        reason = csrc.refusal()
        if reason:
            return Refusal(reason)
        listed = os.environ.get("MS_CUSTOM_AOT_WHITE_LIST")
        if listed is not None and not _within(csrc.loadable(), Path(os.path.realpath(listed))):
            return Refusal(
                f"MS_CUSTOM_AOT_WHITE_LIST allows MindSpore only libraries below {listed}, and {csrc.loadable()} is not"
            )
        function = _function(job.operation.contracts[direction])
        if not csrc.has(function):
            return Refusal(f"the C++ library has no function {function}")
        if job.dynamic:
            return Refusal("MindSpore cannot call a C function from a graph with dynamic shapes", "job")
        return None

    def call(self, job: Job, direction: str, contract: Operator) -> Callable[..., Tuple[Any, ...]]:
        whole, values = job.operation.contracts[direction], dict(job.attributes)
        optional = [a.name for a in whole.inputs if a.optional]
        present = [a.name for a in contract.inputs]
        mask = sum(1 << bit for bit, name in enumerate(optional) if name in present)
        scalars = [RECIPES.get(values[a.snake_name], values[a.snake_name]) for a in whole.attrs]
        shapes, dtypes = infer_functions(contract, leading=1)
        name, single = _function(whole), len(contract.outputs) == 1

        def infer(kinds: Sequence[Kind]) -> List[Kind]:
            found = shapes((), *(shape for shape, _ in kinds)), dtypes(None, *(dtype for _, dtype in kinds))
            return [found] if single else list(zip(*found))

        row = np.array([mask, csrc.version(), *scalars], np.float32)
        function = ops.Custom(f"{csrc.loadable()}:{name}", shapes, dtypes, func_type="aot")
        return _Call(function, Direct(name, row, infer), Tensor(row), single)
