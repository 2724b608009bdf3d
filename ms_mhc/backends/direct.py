"""The C++ kernels called from Python, with nothing in between.

MindSpore hands a call to its own threads and wakes them. Where the tensors are small that takes longer than the kernel.
"""

from __future__ import annotations

import ctypes
import math
from functools import lru_cache
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import mindspore as ms
import ml_dtypes
import numpy as np
from mindspore import Tensor
from numpy.typing import NDArray

from ms_mhc import csrc

MOST_BYTES = 1 << 20  # of results: above, memory from MindSpore's pool saves more than its call costs
SHAPES_KEPT = 128

_DTYPES: Dict[Any, np.dtype[Any]] = {
    ms.float32: np.dtype(np.float32),
    ms.float16: np.dtype(np.float16),
    ms.bfloat16: np.dtype(ml_dtypes.bfloat16),
}

Shape = Tuple[int, ...]
Kind = Tuple[Shape, Any]  # a tensor's shape and dtype


class Direct:
    """A C function of the library with the scalars of one job.

    Args:
        name: of the function.
        scalars: what its first tensor holds.
        infer: gives the shapes and dtypes of the results, from those of the tensors.
    """

    def __init__(self, name: str, scalars: NDArray[np.float32], infer: Callable[[Sequence[Kind]], List[Kind]]) -> None:
        self._name = name
        self._function = csrc.function(name)
        self._scalars = scalars
        self._infer = infer
        self._signature = lru_cache(maxsize=SHAPES_KEPT)(self._made_signature)

    def __call__(self, *tensors: Tensor) -> Optional[Tuple[Tensor, ...]]:
        """Waits for the tensors, computes, and returns tensors that are ready; ``None`` where these would be large.

        Raises:
            RuntimeError: the C function has no memory.
        """
        signature = self._signature(tuple((tensor.shape, tensor.dtype) for tensor in tensors))
        if signature.bytes > MOST_BYTES:
            return None
        given = [t if t.is_contiguous() else t.contiguous() for t in tensors]
        results = [np.empty(shape, dtype) for shape, dtype in signature.results]
        pointers = signature.pointers(
            self._scalars.ctypes.data, *(t.data_ptr() for t in given), *(r.ctypes.data for r in results)
        )
        status = self._function(signature.count, pointers, *signature.described, None, None)
        if status:
            raise RuntimeError(f"{self._name}: the C++ function failed with status {status}")
        return tuple(Tensor.from_numpy(result) for result in results)

    def _made_signature(self, kinds: Tuple[Kind, ...]) -> _Signature:
        return _Signature([(self._scalars.shape, ms.float32), *kinds], self._infer(kinds))


class _Signature:
    """What the C function is told of its tensors beside where they lie: the same for all calls with these shapes."""

    def __init__(self, given: Sequence[Kind], results: Sequence[Kind]) -> None:
        kinds = [*given, *results]
        self.count = len(kinds)
        self.pointers = ctypes.c_void_p * self.count
        self.results = [(tuple(shape), _DTYPES[dtype]) for shape, dtype in results]
        self.bytes = sum(math.prod(shape) * dtype.itemsize for shape, dtype in self.results)
        self._shapes = [(ctypes.c_int64 * len(shape))(*shape) for shape, _ in kinds]
        names = [_DTYPES[dtype].name.encode() for _, dtype in kinds]
        self.described = (
            (ctypes.c_int * self.count)(*map(len, self._shapes)),
            (ctypes.c_void_p * self.count)(*map(ctypes.addressof, self._shapes)),
            (ctypes.c_char_p * self.count)(*names),
        )
