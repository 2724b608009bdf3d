"""A training step called eagerly on the CPU: four hyper-connections around an MLP, T=512, N=4, D=256, float32.

MindSpore computes such a step with several threads that spin while they wait, and OpenMP's threads spin as well after
each of their tasks. Where there are fewer cores than threads they hinder one another. Compare::

    python benchmarks/eager_training.py
    OMP_WAIT_POLICY=passive python benchmarks/eager_training.py
"""

from __future__ import annotations

import os
import statistics
import time

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from ms_mhc import HyperConnection

T, N, D, DEPTH = 512, 4, 256, 4
STEPS = 20


class Mlp(nn.Cell):
    """The branch."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Dense(D, 2 * D), nn.Dense(2 * D, D)

    def construct(self, h: Tensor) -> Tensor:
        return self.down(ops.tanh(self.up(h)))


def main() -> None:
    """Prints the median and the extremes of some steps."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    network = nn.SequentialCell([HyperConnection(N, D, Mlp()) for _ in range(DEPTH)])
    x = Tensor(np.random.default_rng(0).normal(size=(T, N, D)).astype(np.float32))
    gradient = ms.value_and_grad(lambda x: ops.square(network(x)).mean(), None, network.trainable_params())
    optimizer = nn.SGD(network.trainable_params(), 1e-4)
    times = []
    for _ in range(STEPS + 4):
        start = time.perf_counter()
        loss, gradients = gradient(x)
        optimizer(gradients)
        loss.asnumpy()
        times.append(1e3 * (time.perf_counter() - start))
    times = times[4:]
    policy = os.environ.get("OMP_WAIT_POLICY", "not set")
    print(
        f"OMP_WAIT_POLICY {policy}, {os.cpu_count()} cores: {statistics.median(times):.0f} ms a step "
        f"({min(times):.0f} to {max(times):.0f})"
    )


if __name__ == "__main__":
    main()
