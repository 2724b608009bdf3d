"""Two Python threads call one cell, each with its own inputs. Does each get its own answers?

    python -m tests.threads --backend cpu --mode graph --locked
    python -m aclnn_adapter.host -m tests.threads --device Ascend --backend aclnn --mode pynative

Answers are compared with the float64 reference, gradients (``--gradients``) with those of one thread. ``--locked``
puts a lock around every call. ``--new-shapes 100``: each of 100 calls has a shape that neither thread had before.
``--backend none`` does the same with a cell of MindSpore.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, BrokenBarrierError, Lock
from typing import Any, Callable, ContextManager, List, Optional, Sequence, Tuple

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from ms_mhc import MhcPre, reference
from ms_mhc.accuracy import to_float64

STREAMS, SIZE = 4, 128
TOKENS = (3, 24, 7)
THREADS, ROUNDS = 2, 15
MODES = {"graph": ms.GRAPH_MODE, "pynative": ms.PYNATIVE_MODE}

Arrays = List[np.ndarray]


class Plain(nn.Cell):
    """A cell of MindSpore."""

    def __init__(self, dtype: Any) -> None:
        super().__init__()
        self.dense = nn.Dense(SIZE, SIZE).to_float(dtype)

    def construct(self, x: Tensor) -> Tuple[Tensor, ...]:
        return (self.dense(x),)


def expected(cell: nn.Cell, x: Tensor) -> Arrays:
    """What the cell's results should be, in float64."""
    parameters = {p.name.rsplit(".", 1)[-1]: to_float64(p) for p in cell.get_parameters()}
    if isinstance(cell, MhcPre):
        return list(reference.mhc_pre(to_float64(x), parameters["phi"], parameters["alpha"], parameters["bias"])[:3])
    return [to_float64(x) @ parameters["weight"].T + parameters["bias"]]


def errors(got: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> List[float]:
    """The largest error of each result, relative to its largest entry."""
    assert [a.shape for a in got] == [a.shape for a in wanted]
    return [float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(got, wanted)]


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Print the largest error."""
    parser = argparse.ArgumentParser(prog="python -m tests.threads", description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", default="cpu", help="cpu, composite, aclnn (on Ascend or the host CANN), or none")
    parser.add_argument("--mode", default="graph", choices=MODES)
    parser.add_argument("--device", default="CPU")
    parser.add_argument("--gradients", action="store_true")
    parser.add_argument("--locked", action="store_true")
    parser.add_argument("--new-shapes", type=int, metavar="COUNT")
    given = parser.parse_args(arguments)
    ms.set_context(device_target=given.device, mode=MODES[given.mode], jit_config={"jit_level": "O0"})
    on_ascend = given.device == "Ascend"
    dtype, limit = (ms.float16, 2e-3) if on_ascend else (ms.float32, 2e-5)

    tokens, rounds = (TOKENS, ROUNDS) if given.new_shapes is None else (range(1, given.new_shapes + 1), 1)
    rng = np.random.default_rng(0)
    cell = Plain(dtype) if given.backend == "none" else MhcPre(STREAMS, SIZE, backend=given.backend)
    for p in cell.get_parameters():
        p.set_data(Tensor(rng.standard_normal(p.shape).astype(np.float32) * (0.05 if p.ndim == 2 else 1)))
    inputs = [
        [Tensor(rng.standard_normal((t, STREAMS, SIZE)).astype(np.float32)).astype(dtype) for t in tokens]
        for _ in range(THREADS)
    ]
    call: Callable[[Tensor], Any] = cell
    wanted = [[expected(cell, x) for x in of_thread] for of_thread in inputs]
    if given.gradients:

        def loss(x: Tensor) -> Tensor:
            return (cell(x)[0].astype(ms.float32) ** 2).sum()

        gradient = ms.grad(loss, 0, cell.trainable_params())

        def call(x: Tensor) -> Tuple[Tensor, ...]:
            of_x, of_parameters = gradient(x)
            return (of_x, *of_parameters)

        wanted = [[[to_float64(tensor) for tensor in call(x)] for x in of_thread] for of_thread in inputs]

    meeting = Barrier(THREADS)
    lock: ContextManager[Any] = Lock() if given.locked else contextlib.nullcontext()

    def work(number: int) -> float:
        try:
            return worst_of(number)
        except BrokenBarrierError:
            return 0.0  # the other thread says why
        except BaseException:
            meeting.abort()
            raise

    def worst_of(number: int) -> float:
        found = []
        for turn in range(rounds):
            for x, of_x in zip(inputs[number], wanted[number]):
                if turn == 0:
                    meeting.wait()
                with lock:
                    got = [to_float64(tensor) for tensor in call(x)]
                found += errors(got, of_x)
        return float(np.max(found))  # NaN where one is NaN

    with ThreadPoolExecutor(THREADS) as pool:
        worst = float(np.max(list(pool.map(work, range(THREADS)))))
    print(f"{given.backend}, {given.mode}: the largest error is {worst:.2g}")
    return int(not worst < limit)


if __name__ == "__main__":
    sys.exit(main())
