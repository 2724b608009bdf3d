"""Graphs whose batch and length are not known when they are compiled, on MindSpore's Ascend backend."""

from __future__ import annotations

from typing import Sequence

import pytest
from conftest import Host

_STEPS = """
import mindspore as ms, numpy as np
from mindspore import Tensor, nn, ops
from kernels import *
ms.set_context(device_target="Ascend", mode={mode}, jit_config={{"jit_level": "O0"}})
net = Net(hc_eps=1e-2, make={make})

def loss(x, *grads):  # its gradients are those that the net makes of `grads`
    total = 0
    for out, grad in zip(net(x), grads):
        total = total + (out.astype(ms.float32) * grad.astype(ms.float32)).sum()
    return total

class Step(nn.Cell):
    def __init__(self):
        super().__init__()
        self.gradients = ms.grad(loss, 0, net.trainable_params())
    def construct(self, x, *grads):
        return self.gradients(x, *grads)

step, shape = Step(), {shape}
dynamic = lambda kind, *last: Tensor(shape=(*shape, *last), dtype=kind)
b, f = ms.bfloat16, ms.float32
step.set_inputs(dynamic(b, 4, 128), dynamic(b, 128), dynamic(f, 4), dynamic(f, 4, 4), dynamic(b, 4, 128))
for tokens in {tokens}:
    flat, flat_grads = inputs(int(np.prod(tokens)), seed=sum(tokens))
    reshaped = lambda t: t.reshape(*tokens, *t.shape[1:])
    results = step(reshaped(flat), *(reshaped(g) for g in flat_grads))
    assert results[0].shape == (*tokens, 4, 128)
    flat_x = results[0].reshape(-1, 4, 128)
    check_gradients(net, flat, flat_grads, ((flat_x,), results[1]))
print("ALL RIGHT")
"""


@pytest.mark.parametrize(
    ("mode", "shape", "tokens"),
    [
        (0, "(None, None)", [(2, 3), (2, 5), (4, 5), (2, 3)]),
        (0, "(None,)", [(3,), (8,)]),
        (1, "(2, None)", [(2, 3), (2, 7)]),
    ],
)
def test_steps_of_any_batch_and_length_are_right(host: Host, mode: int, shape: str, tokens: Sequence[object]) -> None:
    code = _STEPS.format(mode=mode, make="dynamic_kernel", shape=shape, tokens=tokens)
    if mode == 1:
        code = code.replace("    def construct(self, x, *grads)", "    @ms.jit\n    def construct(self, x, *grads)")
    result = host.run(code, "--check-leaks")
    assert "ALL RIGHT" in result.output
    assert len(result.calls("aclnnMhcPreBackward")) == len(tokens)


def test_shapes_inferred_in_python_end_with_an_error(host: Host) -> None:
    """Why there is a way in C++: MindSpore cannot call Python while a graph runs."""
    code = _STEPS.format(mode=0, make="kernel", shape="(None, None)", tokens=[(2, 3)])
    assert "The prim is not a PrimitivePy" in host.run(code, expect=1).errors


_CONNECTION = """
import mindspore as ms, numpy as np
from mindspore import Tensor, nn
from ms_mhc import HyperConnection
ms.set_context(device_target="Ascend", mode=0, jit_config={{"jit_level": "{level}"}})
rng = np.random.default_rng(0)


class Branch(nn.Cell):
    def construct(self, h):
        return h * 0.5


connection = HyperConnection(4, 128, Branch(), precision="{precision}")
connection.pre.phi.set_data(Tensor(rng.normal(0, 0.05, connection.pre.phi.shape).astype(np.float32)))
connection.pre.alpha.set_data(Tensor(np.ones(3, np.float32)))


class Loss(nn.Cell):
    def __init__(self):
        super().__init__()
        self.connection = connection

    def construct(self, x):
        return (self.connection(x).astype(ms.float32) ** 2).sum()


class Step(nn.Cell):
    def __init__(self):
        super().__init__()
        self.loss = Loss()
        self.step = ms.value_and_grad(self.loss, 0, connection.trainable_params())

    def construct(self, x):
        return self.step(x)


def results(dynamic):
    step = Step()
    if dynamic:
        step.set_inputs(Tensor(shape=(None, None, 4, 128), dtype=ms.bfloat16))
    found = []
    for tokens in ((2, 3), (2, 5), (1, 4)):
        x = Tensor(np.random.default_rng(tokens).normal(size=(*tokens, 4, 128)).astype(np.float32)).astype(ms.bfloat16)
        loss, (grad_x, grads) = step(x)
        found.append([loss.asnumpy(), grad_x.astype(ms.float32).asnumpy(), *(g.asnumpy() for g in grads)])
    return found


for fixed, unknown in zip(results(False), results(True)):
    assert all(np.array_equal(one, other) for one, other in zip(fixed, unknown))
print("EQUAL BITS")
"""


@pytest.mark.parametrize(
    ("soc", "precision", "level", "kernels"),
    [
        ("Ascend950PR_9579", "float32", "O0", ["aclnnMhcPre", "aclnnMhcSinkhorn", "aclnnMhcPost"]),
        pytest.param(
            *("Ascend950PR_9579", "float32", "O1", ["aclnnMhcPre", "aclnnMhcSinkhorn", "aclnnMhcPost"]),
            marks=pytest.mark.slow,
        ),
        ("Ascend910B1", "hf32", "O0", ["aclnnMhcPreSinkhorn", "aclnnMhcPost"]),
    ],
)
def test_connections_keep_their_kernels_and_bits(
    host: Host, soc: str, precision: str, level: str, kernels: Sequence[str]
) -> None:
    result = host.run(_CONNECTION.format(precision=precision, level=level), "--soc", soc)
    assert "EQUAL BITS" in result.output
    for kernel in kernels:
        assert len(result.calls(kernel)) == len(result.calls(kernel + "Backward")) == 6
