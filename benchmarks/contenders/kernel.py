"""Steps that call the library's C functions directly, without MindSpore: the kernels' own time.

Results go into memory that is already there, which MindSpore's pool also gives from the second call on.
"""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Dict, List, Sequence, Tuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from aclnn_adapter.operators import resolve
from ms_mhc import csrc
from ms_mhc.bench.contenders import Contender, Step
from ms_mhc.bench.task import CONTRACTS, EPS, NUM_ITERS, Array, Inputs, Task, present, symbols

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_Any = NDArray[Any]


def _prepared(library: ctypes.CDLL, name: str, arrays: Sequence[_Any]) -> Callable[[], None]:
    """A call of a C function (see ms_mhc/csrc/mindspore_aot.cc) with everything that can be ready before it."""
    count = len(arrays)
    shapes = [(ctypes.c_int64 * a.ndim)(*a.shape) for a in arrays]
    arguments = (
        ctypes.c_int(count),
        (ctypes.c_void_p * count)(*(a.ctypes.data for a in arrays)),
        (ctypes.c_int * count)(*(a.ndim for a in arrays)),
        (ctypes.POINTER(ctypes.c_int64) * count)(*(ctypes.cast(s, ctypes.POINTER(ctypes.c_int64)) for s in shapes)),
        (ctypes.c_char_p * count)(*(a.dtype.name.encode() for a in arrays)),
        None,
        None,
    )
    function = getattr(library, name)

    def call(alive: Sequence[_Any] = tuple(arrays)) -> None:  # the arguments hold only addresses
        status = function(*arguments)
        if status != 0:
            raise RuntimeError(f"{name} returned status {status}")

    return call


def _outputs(task: Task, backward: bool, dtype: np.dtype[Any]) -> Dict[str, _Any]:
    found = present(CONTRACTS[task.operator][backward].outputs)
    sizes = symbols(task)
    return {a.snake_name: np.zeros(resolve(a.shape, sizes), dtype if a.dtype == "x" else np.float32) for a in found}


def _scalars(task: Task, backward: bool) -> _Any:
    """The mask of the optional inputs that are there, the library's version, then the operator's scalars.

    h_res is there, gamma and grad_x_post are not.
    """
    mask, values = 0, [EPS] if backward else [EPS, EPS]
    if task.operator == "mhc_post":
        mask, values = 1, []
    elif task.operator == "mhc_sinkhorn":
        values = [EPS, NUM_ITERS, 0]
    return np.array([mask, csrc.version(), *values], np.float32)


def _arrays(results: Any) -> List[Array]:
    return [np.asarray(a, np.float32) for a in results]


def _in_order(task: Task, tensors: Dict[str, _Any], cotangents: List[_Any], saved: Dict[str, _Any]) -> List[_Any]:
    """The backward's inputs in the order of its C function."""
    if task.operator == "mhc_pre":
        kept = [saved[name] for name in ("inv_rms", "h_mix", "h_pre", "h_post")]
        return [tensors["x"], tensors["phi"], tensors["alpha"], *cotangents, *kept]
    return [*cotangents, *tensors.values()]


def make(task: Task, inputs: Inputs) -> Step:
    """One or two C calls. A HyperConnection is not one: its branch is the user's."""
    if task.operator == "hyper_connection":
        raise RuntimeError("a HyperConnection is several kernels and a branch")
    reason = csrc.refusal()
    if reason is not None:
        raise RuntimeError(reason)
    library = ctypes.CDLL(str(csrc.loadable()))
    dtype = _BFLOAT16 if task.dtype == "bfloat16" else np.dtype(np.float32)
    tensors = {k: v.astype(dtype) if k in inputs.streams else v for k, v in inputs.tensors.items()}
    name = "".join(word.capitalize() for word in task.operator.split("_"))
    outputs = _outputs(task, False, dtype)
    forward = _prepared(library, name, [_scalars(task, False), *tensors.values(), *outputs.values()])
    if task.passes == "forward":
        count = len(inputs.cotangents)  # the rest is what backward needs
        return _step((forward,), list(outputs.values())[:count])

    cotangents = [c.astype(dtype) if inputs.streams and i == 0 else c for i, c in enumerate(inputs.cotangents)]
    gradients = _outputs(task, True, dtype)
    given = _in_order(task, tensors, cotangents, outputs)
    backward = _prepared(library, name + "Backward", [_scalars(task, True), *given, *gradients.values()])
    return _step((forward, backward), list(gradients.values()))


def _step(calls: Tuple[Callable[[], None], ...], results: List[_Any]) -> Step:
    def run() -> List[_Any]:
        for call in calls:
            call()
        return results

    return Step(run, _arrays)


CONTENDERS = (Contender("kernel", make),)
