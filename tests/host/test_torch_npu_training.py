"""What PyTorch users run on the host CANN: a network that trains, and torch.optim with its default settings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import vendor_client
from conftest import Host

# A transformer in small with mHC around its layers, on the NPU, against the same steps by formulas on the CPU.
_NETWORK = """
import torch, torch_npu
from torch import nn
ops = torch.ops.npu

class Layer(nn.Module):
    def __init__(self, n, d):
        super().__init__()
        self.n, f = n, n * n + 2 * n
        self.phi = nn.Parameter(torch.randn(f, n * d) * (n * d) ** -0.5)
        self.alpha, self.bias = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(f))
        self.branch = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, d), nn.GELU())

    def forward(self, x):
        h_in, h_post, logits = ops.npu_mhc_pre(x, self.phi, self.alpha, self.bias, out_flag=1)[:3]
        h_res = ops.npu_mhc_sinkhorn(logits, out_flag=1)[0]
        return ops.npu_mhc_post(x, h_res, self.branch(h_in.float()).to(x.dtype), h_post)

class Plain(Layer):
    def forward(self, x):
        x = x.float()
        w = (x.flatten(-2) @ self.phi.T) * (x.square().mean((-2, -1)) + 1e-6).rsqrt()[..., None]
        pre, post, res = w.split([self.n, self.n, self.n ** 2], -1)
        a, b = self.alpha, self.bias.split([self.n, self.n, self.n ** 2])
        m = (a[2] * res + b[2]).unflatten(-1, (self.n, self.n)).softmax(-1) + 1e-6
        for step in range(39):
            m = m / (m.sum(-2 if step % 2 == 0 else -1, keepdim=True) + 1e-6)
        h_in = torch.einsum("tn,tnd->td", torch.sigmoid(a[0] * pre + b[0]) + 1e-6, x)
        out = self.branch(h_in)
        return torch.einsum("tij,tid->tjd", m, x) + (2 * torch.sigmoid(a[1] * post + b[1]))[..., None] * out[:, None]

def train(layer, device, low):
    torch.manual_seed(0)
    layers = nn.ModuleList([layer(4, 64) for _ in range(2)])
    head = nn.Linear(64, 10)
    data, labels = torch.randn(32, 64), torch.randint(10, (32,))
    layers, head, data, labels = layers.to(device), head.to(device), data.to(device), labels.to(device)
    optimizer = torch.optim.AdamW([*layers.parameters(), *head.parameters()], lr=1e-2)
    losses = []
    for _ in range(12):
        x = data[:, None].expand(-1, 4, -1).to(low).contiguous()
        for one in layers:
            x = one(x)
        loss = nn.functional.cross_entropy(head(x.float().mean(-2)), labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_([*layers.parameters(), *head.parameters()], 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses

ours, plain = train(Layer, "npu:0", torch.float16), train(Plain, "cpu", torch.float32)
print(ours, plain)
assert ours[-1] < 0.5 * ours[0]
assert max(abs(a - b) for a, b in zip(ours, plain)) < 2e-2
"""

# name, settings; each with what torch chooses by default, and with and without operators over lists
_OPTIMIZERS = """
import torch, torch_npu
CASES = [
    ("Adam", {}), ("Adam", dict(amsgrad=True, weight_decay=0.1)), ("AdamW", {}), ("AdamW", dict(maximize=True)),
    ("SGD", {}), ("SGD", dict(momentum=0.9, nesterov=True, weight_decay=0.1)), ("RMSprop", {}),
    ("RMSprop", dict(momentum=0.9, centered=True)), ("Adagrad", {}), ("Adadelta", {}), ("Adamax", {}), ("NAdam", {}),
    ("RAdam", {}), ("ASGD", {}), ("Adafactor", {}), ("Rprop", {}),
]

def train(name, settings, device):
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(shape).to(device)) for shape in ((3, 4), (5,), ())]
    optimizer = getattr(torch.optim, name)(parameters, **settings)
    for _ in range(4):
        for p in parameters:
            p.grad = torch.randn(p.shape).to(device)
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.5)
        optimizer.step()
    return [value.detach().cpu() for value in (norm, *parameters)]

for name, settings in CASES:
    for more in ({}, dict(foreach=True), dict(foreach=False)):
        for ours, want in zip(train(name, {**settings, **more}, "npu:0"), train(name, {**settings, **more}, "cpu")):
            assert torch.allclose(ours, want, rtol=1e-5, atol=1e-6), (name, settings, more, ours, want)
"""

_SCALER = """
import torch, torch_npu
for poison in (1.0, float("inf")):
    weight = torch.nn.Parameter(torch.ones(4, device="npu:0"))
    optimizer, scaler = torch.optim.SGD([weight], lr=0.5), torch.amp.GradScaler("npu", init_scale=1024.0)
    scaler.scale((weight * poison).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == ([0.5] * 4 if poison == 1 else [1.0] * 4), weight
    assert scaler.get_scale() == (1024 if poison == 1 else 512)
"""

_INDEXING = """
import torch, torch_npu
CASES = {
    "mask": lambda x, i, j: x.index_put_((x > 30,), x.new_tensor(7)),
    "mask of nothing": lambda x, i, j: x.index_put_((x > 1e6,), x.new_tensor(7)),
    "row": lambda x, i, j: x[i],
    "pairs": lambda x, i, j: x[i, j],
    "axes that are apart": lambda x, i, j: x[i, :, j],
    "a middle axis": lambda x, i, j: x[:, i.reshape(2, 1) * 0 + j],
    "twice the same": lambda x, i, j: x.index_put_((i * 0,), x.new_ones(5), accumulate=True),
    "count": lambda x, i, j: torch.linalg.vector_norm(x, 0, dim=1),
    "largest": lambda x, i, j: torch.linalg.vector_norm(x - 20, float("inf"), dim=1),
    "smallest": lambda x, i, j: torch.linalg.vector_norm(x - 20.5, -float("inf"), dim=1),
    "largest of a list": lambda x, i, j: torch.stack(torch._foreach_norm([x - 20, x], float("inf"))),
}
for name, case in CASES.items():
    x, i, j = torch.arange(60.0).reshape(3, 4, 5), torch.tensor([2, 0]), torch.tensor([1, -1])
    want, got = case(x.clone(), i, j), case(x.to("npu:0"), i.to("npu:0"), j.to("npu:0"))
    assert torch.equal(got.cpu(), want), (name, got, want)
"""


def test_a_network_trains_with_adamw_and_clipping_as_on_the_cpu(vendor_host: Host) -> None:
    result = vendor_host.run(_NETWORK, "--check-leaks")
    for name in ("aclnnForeachNorm", "aclnnForeachLerpScalar", "aclnnForeachSqrt"):
        assert result.calls(name), name  # the default settings take the operators over lists
    assert "nothing left" in result.errors


def test_torch_optim_steps_as_on_the_cpu(vendor_host: Host) -> None:
    vendor_host.run(_OPTIMIZERS, "--check-leaks")


def test_scaled_gradients_are_skipped_where_they_are_not_finite(vendor_host: Host) -> None:
    vendor_host.run(_SCALER, "--check-leaks")


def test_indices_and_norms_are_those_of_the_cpu(vendor_host: Host) -> None:
    vendor_host.run(_INDEXING, "--check-leaks")


_HIDE = """
import os, sys
shown = {folder!r}
for path in [p for p in sys.path if os.path.isdir(os.path.join(p, "mindspore"))]:
    for entry in os.listdir(path):
        if not entry.startswith("mindspore") and not os.path.lexists(os.path.join(shown, entry)):
            os.symlink(os.path.join(path, entry), os.path.join(shown, entry))
    sys.path[sys.path.index(path)] = shown
"""


def test_torch_npu_is_served_where_there_is_no_mindspore(vendor_host: Host, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "sitecustomize.py").write_text(_HIDE.format(folder=str(tmp_path / "site")))
    code = """
import importlib.util, torch, torch_npu
assert importlib.util.find_spec("mindspore") is None
y = torch.ops.npu.npu_mhc_sinkhorn(torch.zeros(2, 4, 4).to("npu:0"))[0]
assert torch.allclose(y.cpu(), torch.full((2, 4, 4), 0.25), atol=1e-5), y
"""
    environment = {**vendor_host.environment}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), environment["PYTHONPATH"]])
    program = [vendor_host.python, "-m", "aclnn_adapter.host", "--check-leaks", "-c", code]
    done = subprocess.run(program, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "nothing left" in done.stderr


def test_a_python_with_neither_framework_is_told() -> None:
    program = [sys.executable, "-S", "-m", "aclnn_adapter.host", "-c", "pass"]
    environment = {**os.environ, "PYTHONPATH": str(vendor_client.ROOT)}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 69
    assert "neither a MindSpore with the Ascend plugin nor torch_npu" in done.stderr
