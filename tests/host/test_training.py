"""Whole networks: what MindSpore computes on the host CANN equals what it computes on its CPU backend."""

from __future__ import annotations

import subprocess
import sys

import pytest
from conftest import Host

_NETWORK = """
import json, sys
import mindspore as ms, numpy as np
from mindspore import Tensor, mint, nn, ops

device, mode, optimizer = sys.argv[1:4]
ms.set_context(device_target=device, mode=int(mode), jit_config={"jit_level": "O0"})
V, D, B, S, HEADS = 50, 32, 2, 16, 4

class Block(nn.Cell):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm((D,)), nn.LayerNorm((D,))
        self.qkv, self.out = nn.Dense(D, 3 * D), nn.Dense(D, D)
        self.up, self.down = nn.Dense(D, 4 * D, activation="gelu"), nn.Dense(4 * D, D)
        self.mask = Tensor(np.triu(np.full((S, S), -1e4, np.float32), 1))

    def heads(self, t):
        return t.reshape(B, S, HEADS, D // HEADS).transpose(0, 2, 1, 3)

    def construct(self, x):
        q, k, v = ops.split(self.qkv(self.norm_1(x)), D, -1)
        scores = ops.matmul(self.heads(q), self.heads(k).swapaxes(-1, -2)) / (D // HEADS) ** 0.5 + self.mask
        mixed = ops.matmul(ops.softmax(scores, -1), self.heads(v)).transpose(0, 2, 1, 3).reshape(B, S, D)
        x = x + self.out(mixed)
        return x + self.down(self.up(self.norm_2(x)))

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.embedding, self.blocks = nn.Embedding(V, D), nn.SequentialCell([Block(), Block()])
        self.head, self.loss = nn.Dense(D, V), nn.CrossEntropyLoss()

    def construct(self, tokens, targets):
        logits = self.head(self.blocks(self.embedding(tokens)))
        return self.loss(logits.reshape(-1, V), targets.reshape(-1))

net, rng = Net(), np.random.default_rng(0)
for p in net.trainable_params():
    p.set_data(Tensor((rng.standard_normal(p.shape) * 0.1 + ("gamma" in p.name)).astype(np.float32)))
make = {"AdamWeightDecay": lambda p: nn.AdamWeightDecay(p, 3e-3, weight_decay=0.1), "Adam": lambda p: nn.Adam(p, 3e-3)}
update = make[optimizer](net.trainable_params())
gradients = ms.value_and_grad(net, None, update.parameters)

class Step(nn.Cell):
    def construct(self, tokens, targets):
        loss, grads = gradients(tokens, targets)
        return ops.depend(loss, update(grads))

step, losses = Step(), []
for _ in range(20):
    tokens, targets = (Tensor(rng.integers(0, V, (B, S)), ms.int32) for _ in range(2))
    losses.append(float(step(tokens, targets)))
print("LOSSES", json.dumps(losses))
"""


def _losses(output: str) -> list[float]:
    import json

    (line,) = [line for line in output.splitlines() if line.startswith("LOSSES")]
    return [float(number) for number in json.loads(line[len("LOSSES") :])]


@pytest.mark.parametrize(
    ("mode", "optimizer"),
    [
        (0, "AdamWeightDecay"),
        (1, "Adam"),
        pytest.param(0, "Adam", marks=pytest.mark.slow),
        pytest.param(1, "AdamWeightDecay", marks=pytest.mark.slow),
    ],
)
def test_a_transformer_trains_as_on_the_cpu_backend(host: Host, mode: int, optimizer: str) -> None:
    arguments = [str(mode), optimizer]
    command = [*host.command(_NETWORK, "--check-leaks"), "Ascend", *arguments]
    on_host = subprocess.run(
        command, cwd=host.folder, env=host.environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert on_host.returncode == 0, on_host.stderr[-4000:]
    assert "nothing left" in on_host.stderr
    cpu = subprocess.run(
        [sys.executable, str(host.folder / "program.py"), "CPU", *arguments],
        cwd=host.folder, env=host.environment, capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    assert _losses(on_host.stdout) == pytest.approx(_losses(cpu.stdout), rel=1e-3)


_MHC = """
import mindspore as ms, numpy as np, sys
from mindspore import Tensor, nn, ops
ms.set_context(device_target="Ascend", mode={mode}, jit_config={{"jit_level": "O0"}})
from ms_mhc import MhcPost, MhcPre, MhcSinkhorn, reference

N, D, B, S = 4, 128, 2, 3
rng = np.random.default_rng(0)
random = lambda *shape: rng.standard_normal(shape).astype(np.float32)
x, w = Tensor(random(B, S, N, D)).astype(ms.float16), Tensor(random(B, S, N, D))

class Net(nn.Cell):
    def __init__(self, eps):
        super().__init__()
        self.pre = MhcPre(N, D, use_gamma=True, hc_eps=eps, return_residual=True, backend="{backend}")
        self.sinkhorn, self.post = MhcSinkhorn(backend="{backend}"), MhcPost(backend="{backend}")

    def construct(self, x):
        h_in, h_post, h_res, rest = self.pre(x)
        return self.post(rest, self.sinkhorn(h_res), h_in * 2, h_post)

class Two(nn.Cell):  # two cells of equal shapes and different eps in one graph
    def __init__(self):
        super().__init__()
        self.one, self.other = Net(1e-6), Net(1e-1)

    def construct(self, x, w):
        return (self.other(self.one(x)).astype(ms.float32) * w).sum()

net = Two()
for p in net.trainable_params():
    p.set_data(Tensor(random(*p.shape) * (0.05 if "phi" in p.name else 1)))
gradients = ms.value_and_grad(net, 0, net.trainable_params())
for _ in range(3):
    loss, (grad_x, grads) = gradients(x, w)
np.savez("{out}", loss=loss.asnumpy(), grad_x=grad_x.astype(ms.float32).asnumpy(),
         **{{p.name: g.asnumpy() for p, g in zip(net.trainable_params(), grads)}})
"""


@pytest.mark.slow
def test_kernels_and_composite_agree_in_both_modes(host: Host) -> None:
    import numpy as np

    results = []
    for mode, backend in ((0, "aclnn"), (0, "composite"), (1, "composite")):
        out = f"{backend}{mode}.npz"
        done = host.run(_MHC.format(mode=mode, backend=backend, out=out), "--check-leaks")
        if backend == "aclnn":
            assert len(done.calls("aclnnMhcPre")) == len(done.calls("aclnnMhcPreBackward")) == 6
        results.append(np.load(host.folder / out))
    for other in results[1:]:
        for name, value in other.items():
            limit = 2.0**-9 if name == "grad_x" else 2e-3  # the streams between the two cells are float16
            assert np.abs(results[0][name] - value).max() <= limit * max(np.abs(value).max(), 1e-3), name
