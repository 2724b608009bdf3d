"""How many kernels a training step of one HyperConnection launches, counted on the host CANN.

    python benchmarks/launches.py

Forward and backward of one connection, N = 4, D = 128, bfloat16, and of what is around it in this program: a branch
that halves its input, a cast and a sum. The program without the connection is counted too, in the last row.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Counter as CounterOf
from typing import NamedTuple, Sequence

PROGRAM = """
import numpy as np
import mindspore as ms
from mindspore import Tensor, nn
from ms_mhc import HyperConnection

ms.set_context(device_target="Ascend", mode={mode})


class Half(nn.Cell):
    def construct(self, h):
        return h * 0.5


class Alone(nn.Cell):
    def __init__(self):
        super().__init__()
        self.weight = ms.Parameter(Tensor(np.ones(1, np.float32)))
        self.half = Half()

    def construct(self, x):
        return self.half(x) * self.weight.astype(ms.bfloat16)


step = HyperConnection(4, 128, Half(), backend="{backend}", precision="{precision}") if {with_connection} else Alone()
x = Tensor(np.random.default_rng(0).normal(size=(2, 3, 4, 128)).astype(np.float32)).astype(ms.bfloat16)


def loss(x):
    return step(x).float().sum()


print(ms.value_and_grad(loss, 0, step.trainable_params())(x)[0])
"""


class Case(NamedTuple):
    """A row: the soc, the backend and the precision, and operators that this CANN lacks."""

    name: str
    soc: str
    backend: str = "auto"
    precision: str = "float32"
    without: Sequence[str] = ()
    with_connection: bool = True


A2 = "Ascend910B1"
CASES = (
    Case("Ascend 950", "Ascend950PR_9579"),
    Case("A2", A2),
    Case("A2, precision hf32", A2, precision="hf32"),
    Case("A2, MindSpore ops", A2, backend="composite"),
    Case("none", A2, with_connection=False),
)
GRAPH, EAGER = 0, 1


def command(case: Case, mode: int, folder: Path) -> Sequence[str]:
    """The command that runs a case and writes its trace."""
    program = folder / "program.py"
    fields = case._asdict()
    program.write_text(PROGRAM.format(mode=mode, **{k: fields[k] for k in ("backend", "precision", "with_connection")}))
    hidden = [word for name in case.without for word in ("--without", name)]
    host = [sys.executable, "-m", "aclnn_adapter.host", "--soc", case.soc, *hidden]
    return [*host, "--trace", str(folder / "trace.jsonl"), str(program)]


def launches(case: Case, mode: int) -> CounterOf[str]:
    """How often each kernel is launched."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        done = subprocess.run(command(case, mode, folder), capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{case.name} ended with status {done.returncode}:\n{done.stderr[-4000:]}")
        calls = map(json.loads, (folder / "trace.jsonl").read_text().splitlines())
        return Counter(call["operator"] for call in calls if call["phase"] == 2)


def main() -> int:
    """Print the table."""
    print("| connection | graph mode | called eagerly |\n|---|---|---|")
    for case in CASES:
        counts = [sum(launches(case, mode).values()) for mode in (GRAPH, EAGER)]
        print(f"| {case.name} | {counts[0]} | {counts[1]} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
