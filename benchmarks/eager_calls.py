"""What a kernel costs that is called from Python: through MindSpore's extension, and through a small graph of its own.

The two take turns. On an Ascend machine, or on the host CANN, where the kernel's own work is small at these sizes::

    PYTHONPATH=. python -m aclnn_adapter.host benchmarks/eager_calls.py
"""

from __future__ import annotations

import statistics
import time
from typing import Any, Callable, Dict, List, Tuple

import mindspore as ms
import numpy as np
from mindspore import Tensor

from aclnn_adapter import extension
from aclnn_adapter.custom import AclnnKernel
from aclnn_adapter.operators import MHC_POST, resolve

SIZES = {"T": (4,), "N": (4,), "D": (128,)}
TURNS, CALLS = 12, 200
COLUMNS = ("a call takes", "processor time", "of the calling thread")


def timed(call: Callable[[], Any]) -> Tuple[float, float, float]:
    """Microseconds of one call, averaged over some."""
    ms.runtime.synchronize()
    wall, process, thread = time.perf_counter(), time.process_time(), time.thread_time()
    for _ in range(CALLS):
        call()
    thread = time.thread_time() - thread
    ms.runtime.synchronize()
    return tuple(1e6 * t / CALLS for t in (time.perf_counter() - wall, time.process_time() - process, thread))


def main() -> None:
    """Prints the medians."""
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="Ascend")
    reason = extension.refusal()
    if reason:
        raise SystemExit(reason)
    kernel, rng = AclnnKernel(MHC_POST), np.random.default_rng(0)
    tensors = [
        Tensor(
            rng.normal(size=resolve(a.shape, SIZES)).astype(np.float32), ms.float16 if a.dtype == "x" else ms.float32
        )
        for a in MHC_POST.inputs
    ]

    @ms.jit(jit_level="O0")
    def graph(x: Tensor, h_res: Tensor, h_out: Tensor, h_post: Tensor) -> Tensor:
        return kernel(x, h_res, h_out, h_post)

    ways: Dict[str, Callable[..., Any]] = {"extension": kernel, "small graph": graph}
    found: Dict[str, List[Tuple[float, float, float]]] = {way: [] for way in ways}
    for turn in range(TURNS + 2):
        for way, function in ways.items():
            times = timed(lambda function=function: function(*tensors))
            if turn >= 2:
                found[way].append(times)
    print(f"{MHC_POST.name}, T=4, N=4, D=128, microseconds, medians of {TURNS} turns")
    print(f"{'':14s}" + "".join(f"{column:>24s}" for column in COLUMNS))
    for way, times in found.items():
        print(f"{way:14s}" + "".join(f"{statistics.median(column):24.0f}" for column in zip(*times)))


if __name__ == "__main__":
    main()
