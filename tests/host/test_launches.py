"""How many kernels a training step of one connection launches where MindSpore ops compute most of it."""

from __future__ import annotations

import pytest

PROGRAM = """
import numpy as np
import mindspore as ms
from mindspore import Tensor, nn
from ms_mhc import HyperConnection

ms.set_context(device_target="Ascend", mode={mode})


class Half(nn.Cell):
    def construct(self, h):
        return h * 0.5


connection = HyperConnection(4, 128, Half(), backend="{backend}")
x = Tensor(np.random.default_rng(0).normal(size=(2, 3, 4, 128)).astype(np.float32)).astype(ms.bfloat16)


def loss(x):
    return connection(x).float().sum()


print(ms.value_and_grad(loss, 0, connection.trainable_params())(x)[0])
"""
WITHOUT = [("--without", "aclnn" + name) for name in ("MhcPreBackward", "MhcPost", "MhcPostBackward")]


@pytest.mark.parametrize(
    ("backend", "mode", "most"),
    [("auto", 0, 200), ("auto", 1, 250), ("composite", 0, 230), ("composite", 1, 225)],
)
def test_a_step_on_a2_launches_few_kernels(host, backend, mode, most):
    options = ["--soc", "Ascend910B1"] + ([] if backend == "auto" else [word for pair in WITHOUT for word in pair])
    trace = host.run(PROGRAM.format(mode=mode, backend=backend), *options).trace
    launches = [call["operator"] for call in trace if call["phase"] == 2]
    products = launches.count("aclnnBaddbmm")
    assert products >= 77, "the steps of Sinkhorn, forward and backward, are products with an addend"
    assert len(launches) <= most
