"""aclnn calls through ctypes, as a C program would make them. For programs that run on the host CANN."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

import ml_dtypes
import numpy as np

from aclnn_adapter.operators import OPERATORS, TENSOR, Operator, resolve

LIBRARIES = Path(os.environ["ASCEND_HOME_PATH"], "lib64")
runtime = ctypes.CDLL(str(LIBRARIES / "libascendcl.so"))
opapi = ctypes.CDLL(str(LIBRARIES / "libopapi.so"))

runtime.aclGetRecentErrMsg.restype = ctypes.c_char_p
opapi.aclCreateTensor.restype = ctypes.c_void_p
_DTYPES = {"float32": 0, "float16": 1, "int32": 3, "int64": 9, "bool": 12, "bfloat16": 27}
_C_TYPES = {"double": ctypes.c_double, "float": ctypes.c_float, "int64_t": ctypes.c_int64, "bool": ctypes.c_bool}
ND = 2


def error() -> str:
    """The text of the last failure."""
    return runtime.aclGetRecentErrMsg().decode()


class DeviceTensor:
    """An aclTensor on device memory of its own, with the strides of ``array``'s view of its base."""

    def __init__(self, array: np.ndarray, fmt: int = ND, address: Optional[int] = None) -> None:
        base = array
        while base.base is not None and isinstance(base.base, np.ndarray):
            base = base.base
        self.dtype, self.shape = array.dtype, array.shape
        self.base_shape, self.size = base.shape, max(base.nbytes, 1)
        self.strides = [s // array.itemsize for s in array.strides]
        self.offset = (array.ctypes.data - base.ctypes.data) // array.itemsize
        self.memory = ctypes.c_void_p()
        assert runtime.aclrtMalloc(ctypes.byref(self.memory), ctypes.c_size_t(self.size), 0) == 0
        dense = np.ascontiguousarray(base)
        self._copy(self.memory, dense.ctypes.data, dense.nbytes, 1)
        rank, base_rank = array.ndim, base.ndim
        self.handle = opapi.aclCreateTensor(
            (ctypes.c_int64 * rank)(*array.shape), ctypes.c_uint64(rank), _DTYPES[str(array.dtype)],
            (ctypes.c_int64 * rank)(*self.strides), ctypes.c_int64(self.offset), fmt,
            (ctypes.c_int64 * base_rank)(*base.shape), ctypes.c_uint64(base_rank),
            self.memory if address is None else ctypes.c_void_p(address),
        )  # fmt: skip

    def _copy(self, to: Any, source: Any, size: int, kind: int) -> None:
        if size:
            status = runtime.aclrtMemcpy(
                ctypes.c_void_p(getattr(to, "value", to)), ctypes.c_size_t(size),
                ctypes.c_void_p(getattr(source, "value", source)), ctypes.c_size_t(size), kind,
            )  # fmt: skip
            assert status == 0, error()

    def numpy(self) -> np.ndarray:
        """The view's elements."""
        base = np.empty(self.base_shape, self.dtype)
        self._copy(base.ctypes.data, self.memory, base.nbytes, 2)
        flat = base.reshape(-1)[self.offset :]
        strides = [s * base.itemsize for s in self.strides]
        return np.lib.stride_tricks.as_strided(flat, self.shape, strides).copy()

    def destroy(self) -> None:
        opapi.aclDestroyTensor(ctypes.c_void_p(self.handle))
        runtime.aclrtFree(self.memory)


class Call:
    """The two phases of one operator of the contract."""

    def __init__(self, name: str, *arguments: Any) -> None:
        self.operator: Operator = OPERATORS[name]
        self.tensors: List[Optional[DeviceTensor]] = []
        self.workspace, self.executor = ctypes.c_uint64(), ctypes.c_void_p()
        self.arguments = [self._argument(a.c_type, v) for a, v in zip(self.operator.arguments, arguments)]
        self.prepare = getattr(opapi, name + "GetWorkspaceSize")
        self.launch = getattr(opapi, name)

    def _argument(self, c_type: str, value: Any) -> Any:
        if c_type != TENSOR:
            return _C_TYPES[c_type](value)
        tensor = DeviceTensor(value) if isinstance(value, np.ndarray) else value
        self.tensors.append(tensor)
        return ctypes.c_void_p(tensor.handle if tensor is not None else None)

    def first_phase(self) -> int:
        return int(self.prepare(*self.arguments, ctypes.byref(self.workspace), ctypes.byref(self.executor)))

    def second_phase(self, missing: int = 0) -> int:
        """``missing`` is by how many bytes the workspace is too small."""
        memory = ctypes.c_void_p()
        size = max(self.workspace.value - missing, 0)
        if size:
            assert runtime.aclrtMalloc(ctypes.byref(memory), ctypes.c_size_t(size), 0) == 0
        status = int(self.launch(memory, ctypes.c_uint64(size), self.executor, None))
        if size:
            runtime.aclrtFree(memory)
        return status

    def outputs(self) -> Dict[str, np.ndarray]:
        named = zip((a for a in self.operator.arguments if a.c_type == TENSOR), self.tensors)
        return {a.snake_name: t.numpy() for a, t in named if a.role == "output" and t is not None}

    def run(self) -> Dict[str, np.ndarray]:
        """Both phases, and the outputs."""
        assert self.first_phase() == 0, error()
        assert self.second_phase() == 0, error()
        return self.outputs()

    def destroy(self) -> None:
        for tensor in self.tensors:
            if tensor is not None:
                tensor.destroy()


def example(
    name: str, tokens: Optional[Sequence[int]] = None, n: int = 4, d: Optional[int] = None,
    dtype: Any = ml_dtypes.bfloat16, seed: int = 0, **attrs: float,
) -> Tuple[Operator, Dict[str, Any]]:  # fmt: skip
    """Random arguments by name, in the contract's order; outputs are filled with a pattern. All optionals are given.

    Sizes that are not given are six tokens and the smallest hidden size from 128 on that every soc accepts.
    """
    operator = OPERATORS[name]
    limits = list(operator.limits.values())
    if tokens is None:
        tokens = (6,) if all(1 in limit.token_dims for limit in limits) else (2, 3)
    if d is None:
        d = max([128, *(min(limit.hidden_sizes) for limit in limits if limit.hidden_sizes)])
    rng = np.random.default_rng(seed)
    iterations = int(attrs.get("numIters", 20))
    sizes: Dict[str, Tuple[int, ...]] = {
        "T": tuple(tokens),
        "N": (n,),
        "D": (d,),
        "F": (n * n + 2 * n,),
        "I": (iterations,),
    }
    values: Dict[str, Any] = {}
    for argument in operator.arguments:
        if argument.role == "attr":
            values[argument.name] = attrs.get(argument.name, argument.default)
            continue
        shape = resolve(argument.shape, sizes)
        kind = dtype if argument.dtype == "x" else np.float32
        scale = (n * d) ** -0.5 if argument.name == "phi" else 1.0  # gates that are not saturated
        values[argument.name] = (
            (rng.standard_normal(shape) * scale).astype(kind) if argument.role == "input" else np.full(shape, 77, kind)
        )
    return operator, values
