"""The package's own cells on MindSpore's Ascend backend: numbers, calls, fall-backs and errors."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Optional

import pytest
from conftest import Host, Result

from aclnn_adapter.operators import MHC_PRE, MHC_PRE_BACKWARD, Operator

SELFTEST = "import sys\nfrom ms_mhc.__main__ import main\nsys.exit(main({arguments!r}))\n"

STEP = """
import sys
import numpy as np, mindspore as ms
from mindspore import Tensor, nn, ops
from ms_mhc import MhcPre, mhc_pre, reference
ms.set_context(device_target="Ascend", mode=ms.GRAPH_MODE, jit_config={"jit_level": "O0"})

def tensor(rng, *shape, dtype=ms.float32):
    return Tensor(rng.normal(size=shape).astype(np.float32), dtype)

def learnt(cell, seed=0):
    rng = np.random.default_rng(seed)
    for parameter in cell.trainable_params():
        scale = 1 / np.sqrt(parameter.shape[-1]) if parameter.name.endswith("phi") else 1.0
        parameter.set_data(Tensor(rng.normal(0, scale, parameter.shape).astype(np.float32)))
    return cell
"""


def selftest(host: Host, arguments: List[str], *options: str) -> Result:
    return host.run(SELFTEST.format(arguments=["selftest", "--device", "Ascend", *arguments]), *options, timeout=900)


def launched(result: Result) -> List[str]:
    return [c["operator"] for c in result.trace if c["phase"] == 2]


def cases(result: Result, host: Host, operator: str, takes: str) -> List[Dict[str, Any]]:
    """Of the report that the selftest wrote: the cases of an operator that a backend computed, forward and backward."""
    checks = json.loads((host.folder / "report.json").read_text())["checks"]
    return [c["case"] for c in checks if c["name"] == operator and c["case"].get("takes") == takes]


@pytest.mark.parametrize(
    ("mode", "reuse", "backend"),
    [
        ("graph", "on", "aclnn"),
        pytest.param("graph", "on", "auto", marks=pytest.mark.slow),
        pytest.param("jit", "on", "auto", marks=pytest.mark.slow),
        pytest.param("graph", "off", "auto", marks=pytest.mark.slow),
    ],
)
def test_kernels_in_compiled_graphs_equal_the_reference(host: Host, mode: str, reuse: str, backend: str) -> None:
    """Both of MindSpore's launch paths: with executors that can be used again, and without.

    By name the kernels alone, which compile in a third of the time: the choice has tests of its own below.
    """
    arguments = ["--mode", mode, "--quick", "--backend", backend, "--report", "report.json"]
    result = selftest(host, arguments, "--executor-reuse", reuse)
    assert "device Ascend, backend aclnn" in result.output
    assert "all checks passed" in result.output
    found = cases(result, host, "mhc_pre", "aclnn")
    assert {c["num_streams"] for c in found} == {4, 6, 8}
    assert {c["backend"] for c in found} == ({"auto", "aclnn"} if backend == "auto" else {"aclnn"})
    assert len(result.calls("aclnnMhcPreBackward")) >= len(found) + 20  # and the training steps
    if mode == "graph":
        assert "1 aclnnMhcPre, 1 aclnnMhcPreBackward" in result.output


def test_eager_calls_take_mindspore_ops_and_by_name_the_kernels(host: Host) -> None:
    result = selftest(host, ["--mode", "eager", "--quick", "--report", "report.json"])
    assert "all checks passed" in result.output
    assert "kernels are called eagerly through the extension" in result.output
    by_name = [c for c in cases(result, host, "mhc_pre", "aclnn") if c["backend"] == "aclnn"]
    assert len(by_name) >= 2
    # once alone, once for its gradient; nothing for the cases and networks of auto
    kernels = [name for name in launched(result) if name in ("aclnnMhcPre", "aclnnMhcPreV2")]
    assert len(kernels) == 2 * len(by_name)
    assert len([name for name in launched(result) if "MhcPreBackward" in name]) == len(by_name)


def names_and_roles(call: Dict[str, Any]) -> List[Any]:
    return [(a["name"], a["role"]) for a in call["arguments"]]


def contract(operator: Operator) -> List[Any]:
    return [(a.name, a.role) for a in operator.arguments]


def test_training_step_is_one_call_each_and_x_needs_no_further_addition(host: Host) -> None:
    program = (
        STEP
        + """
class Loss(nn.Cell):
    def __init__(self):
        super().__init__()
        self.pre = learnt(MhcPre(4, 64, use_gamma=True, return_residual=True, norm_eps=1e-2, hc_eps=3e-3))
    def construct(self, x, weight):
        h_in, h_post, h_res, x = self.pre(x)
        return (h_in.float() * 2).sum() + h_post.sum() + h_res.sum() + (x * weight).float().sum()
loss = Loss()
rng = np.random.default_rng(1)
x, weight = (tensor(rng, 2, 3, 4, 64, dtype=ms.bfloat16) for _ in range(2))
_, (grad_x, _) = ops.value_and_grad(loss, 0, list(loss.trainable_params()))(x, weight)
print(grad_x.shape)
"""
    )
    result = host.run(program, "--check-leaks")
    mhc = [name for name in launched(result) if "Mhc" in name]
    assert mhc == ["aclnnMhcPre", "aclnnMhcPreBackward"]
    forward, backward = result.calls("aclnnMhcPre", 1)[0], result.calls("aclnnMhcPreBackward", 1)[0]
    assert names_and_roles(forward) == contract(MHC_PRE)
    assert names_and_roles(backward) == contract(MHC_PRE_BACKWARD)
    attributes = [a for c in (forward, backward) for a in c["arguments"] if a["role"] == "attr"]
    scalars = [(a["name"], a["c_type"], a["value"]) for a in attributes]
    assert [s[:2] for s in scalars] == [("normEps", "double"), ("hcEps", "double"), ("hcEps", "float")]
    assert [s[2] for s in scalars] == pytest.approx([1e-2, 3e-3, 3e-3])
    assert not any(a.get("null") for c in (forward, backward) for a in c["arguments"])
    # the kernel adds the residual's share: nothing else writes a sum or zeros in the shape of x
    fillers = ("Add", "Zero", "Fill", "Ones")
    for call in result.trace:
        if call["phase"] == 2 and "Mhc" not in call["operator"] and any(f in call["operator"] for f in fillers):
            shapes = [a.get("shape") for a in call["arguments"]]
            assert [2, 3, 4, 64] not in shapes, call["operator"]


FIFTY = """
class Two(nn.Cell):
    def __init__(self):
        super().__init__()
        self.one = learnt(MhcPre(4, 64, use_gamma=True, norm_eps=1e-2, hc_eps=1e-2), 1)
        self.two = learnt(MhcPre(4, 64, use_gamma=True, norm_eps=1e-6, hc_eps=1e-6), 1)
    def construct(self, x):
        return self.one(x)[1], self.two(x)[1], self.one(x)[0]
net = Two()
parameters = {p.name.split(".")[-1]: p.asnumpy() for p in net.one.trainable_params()}
gradient = ops.GradOperation(sens_param=True)(net)
memory = {}
for step in range(50):
    tokens, rng = (3, 8, 5)[step % 3], np.random.default_rng(step)
    x = tensor(rng, tokens, 4, 64, dtype=ms.bfloat16)
    post_1, post_2, h_in = net(x)
    sens = ms.mutable((tensor(rng, tokens, 4), tensor(rng, tokens, 4), tensor(rng, tokens, 64, dtype=ms.bfloat16)))
    gradient(x, sens)
    if step % 7 == 0 or step > 46:
        exact = x.asnumpy().astype(np.float64)
        for got, eps in ((post_1, 1e-2), (post_2, 1e-6)):
            want = reference.mhc_pre(exact, **parameters, norm_eps=eps, hc_eps=eps)
            assert np.abs(got.asnumpy() - want.h_post).max() < 5e-6, step
        want = reference.mhc_pre(exact, **parameters, norm_eps=1e-2, hc_eps=1e-2)
        assert np.abs(h_in.asnumpy().astype(np.float64) - want.h_in).max() < 2**-7 * np.abs(want.h_in).max(), step
    del x, post_1, post_2, h_in, sens
    memory[step] = ms.runtime.memory_allocated()
assert memory[49] == memory[7], memory
"""


@pytest.mark.parametrize("reuse", ["on", "off"])
def test_two_cells_of_different_eps_stay_right_over_fifty_steps(host: Host, reuse: str) -> None:
    host.run(STEP + FIFTY, "--check-leaks", "--executor-reuse", reuse, timeout=600)


FORWARD, BACKWARD = "aclnnMhcPre", "aclnnMhcPreBackward"
PRE_HIDDEN = ["--without", "aclnnMhcPre", "--without", "aclnnMhcPreV2"]
BACKWARD_HIDDEN = ["--without", "aclnnMhcPreBackward", "--without", "aclnnMhcPreBackwardV2"]

FALL_BACK = """
import logging
logging.basicConfig(level=logging.WARNING, format="LOG %(message)s")
from ms_mhc.accuracy import error_ratio
n, d, dtype = {n}, {d}, ms.{dtype}
cell = learnt(MhcPre(n, d, use_gamma=True))
x = tensor(np.random.default_rng(2), 2, 3, n, d, dtype=dtype)
out = cell(x)
cell(x)
class Loss(nn.Cell):
    def __init__(self):
        super().__init__()
        self.cell = cell
    def construct(self, x):
        return self.cell(x)[1].sum()
loss = Loss()
grads = ops.GradOperation(get_by_list=True)(loss, list(loss.trainable_params()))(x)
assert all(np.isfinite(g.asnumpy()).all() for g in grads)
parameters = {{p.name.split('.')[-1]: p.asnumpy() for p in cell.trainable_params()}}
want = reference.mhc_pre(x.asnumpy().astype(np.float64), **parameters)
for name, got in zip(("h_in", "h_post", "h_res"), out):
    assert error_ratio(got, getattr(want, name)).max() <= 1, name
try:
    MhcPre(n, d, backend="aclnn")(x)
    print("no error")
except (ValueError, RuntimeError) as error:
    print("BY NAME", type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("options", "sizes", "reason", "error", "left"),
    [
        (["--soc", "Ascend910B1"], (4, 128, "bfloat16"), "not available on ascend910b", "RuntimeError", BACKWARD),
        (["--soc", "Ascend910_9382"], (4, 128, "float16"), "not available on ascend910_93", "RuntimeError", BACKWARD),
        ([*PRE_HIDDEN], (4, 64, "bfloat16"), "does not export aclnnMhcPre", "RuntimeError", BACKWARD),
        ([*BACKWARD_HIDDEN], (4, 64, "float16"), "does not export aclnnMhcPreBack", "RuntimeError", FORWARD),
        (
            ["--cann-header", "old", *BACKWARD_HIDDEN[2:]],
            (4, 64, "bfloat16"),
            "double instead of aclTensor*",
            "RuntimeError",
            FORWARD,
        ),
        ([], (4, 80, "bfloat16"), "hidden_size 80 is not a multiple of 64", "ValueError", FORWARD),
        ([], (3, 64, "float16"), "num_streams 3 is not one of 4, 6, 8", "ValueError", None),
        ([], (4, 64, "float32"), "x has dtype float32", "ValueError", None),
    ],
)
def test_fall_back_computes_the_same_and_says_why_once(
    host: Host, options: List[str], sizes: Any, reason: str, error: str, left: Optional[str]
) -> None:
    """Forward and backward are chosen one by one: what has a kernel keeps it."""
    n, d, dtype = sizes
    result = host.run(STEP + FALL_BACK.format(n=n, d=d, dtype=dtype), *options)
    assert {name for name in launched(result) if "MhcPre" in name} == ({left} if left else set())
    said = [line for line in result.errors.splitlines() if line.startswith("LOG mhc_pre")]
    assert len(said) == 1
    assert reason in said[0]
    assert f"BY NAME {error}" in result.output
    assert reason in result.output


def test_error_status_of_a_kernel_becomes_an_error_with_its_reason(host: Host) -> None:
    """Past the package's own checks: a kernel called directly with a size that its tiling refuses."""
    program = (
        STEP
        + """
from aclnn_adapter.custom import AclnnKernel
from aclnn_adapter.operators import MHC_PRE
kernel = AclnnKernel(MHC_PRE)
rng, n, d = np.random.default_rng(0), 5, 64
shapes = ((3, n, d), (n * n + 2 * n, n * d), (3,), (n * n + 2 * n,), (n, d))
inputs = [tensor(rng, *s, dtype=ms.bfloat16 if i == 0 else ms.float32) for i, s in enumerate(shapes)]
try:
    [t.asnumpy() for t in kernel(*inputs, 1e-6, 1e-6)]
except RuntimeError as error:
    print("REFUSED", error)
"""
    )
    result = host.run(program)
    assert "REFUSED" in result.output
    assert "aclnnMhcPre" in result.output


def test_seeds_own_example_gives_the_references_values(host: Host) -> None:
    """T=1024, N=4, D=512, bfloat16, hc_eps 1e-6, all inputs 1.0, as the aclnn document's program means them."""
    program = (
        STEP
        + """
from ms_mhc import mhc_pre_backward
from ms_mhc.accuracy import error_ratio
t, n, d, f = 1024, 4, 512, 24
def ones(*shape, dtype=ms.float32):
    return Tensor(np.ones(shape, np.float32), dtype)
b = ms.bfloat16
class Backward(nn.Cell):
    def construct(self, *tensors):
        return mhc_pre_backward(*tensors, hc_eps=1e-6, backend="aclnn")
inputs = [ones(t, n, d, dtype=b), ones(f, n * d), ones(3), ones(t, d, dtype=b), ones(t, n), ones(t, n, n), ones(t),
          ones(t, f), ones(t, n), ones(t, n), ones(n, d), ones(t, n, d, dtype=b)]
got = Backward()(*inputs)
want = reference.mhc_pre_backward(*(i.asnumpy().astype(np.float64) for i in inputs), hc_eps=1e-6)
for name, value, target in zip(want._fields, got, want):
    ratio = error_ratio(value, target).max()
    print(name, value.asnumpy().ravel()[0], target.ravel()[0], ratio)
    assert ratio <= 1, name
"""
    )
    result = host.run(program)
    assert len(result.calls("aclnnMhcPreBackward")) == 1
    assert result.output.count("grad_") == 5


def test_info_names_the_kernels(host: Host) -> None:
    program = "import sys\nfrom ms_mhc.__main__ import main\nsys.exit(main(['info', '--device', 'Ascend']))\n"
    text = host.run(program).output
    assert "soc         ascend950" in text
    assert "mhc_pre       aclnn in compiled graphs, MindSpore ops when called eagerly" in text
    text = host.run(program, "--soc", "Ascend910B1").output
    assert "not aclnn: aclnnMhcPre is not available on ascend910b, only on ascend950" in text
