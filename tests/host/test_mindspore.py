"""MindSpore's own Ascend backend on the host CANN: from the Python call to the aclnn entry point and back."""

from __future__ import annotations

import re
import subprocess

import pytest
from conftest import Host

from aclnn_adapter.host.build import cache_root
from aclnn_adapter.operators import MHC_PRE, MHC_PRE_BACKWARD

_GRAPH = """
import mindspore as ms, numpy as np
from mindspore import Tensor, nn, ops
from kernels import *
ms.set_context(device_target="Ascend", mode=ms.GRAPH_MODE, jit_config={"jit_level": "O0"})
"""

_EXPLICIT = (
    _GRAPH
    + """
fwd = kernel(MHC_PRE, explicit=%s)
class Forward(nn.Cell):
    def construct(self, *tensors):
        return fwd(*tensors, 1e-2, 3e-3)
n, d = 4, 64
ones = lambda *shape: Tensor(np.ones(shape, np.float32))
out = Forward()(ones(8, n, d).astype(ms.bfloat16), ones(24, n * d), ones(3), ones(24), ones(n, d))
print([t.shape for t in out])
"""
)

_STEP = (
    _GRAPH
    + """
net = Net(hc_eps=1e-2)
x, grads = inputs(8)
check_gradients(net, x, grads, gradient_function(net)(x, grads))
"""
)


def test_explicit_registration_reaches_the_kernel_with_doubles(host: Host) -> None:
    result = host.run(_EXPLICIT % True, "--check-leaks")
    (call,) = result.calls("aclnnMhcPre")
    eps = {a["name"]: (a["c_type"], a["value"]) for a in call["arguments"] if a["role"] == "attr"}
    assert eps == {"normEps": ("double", pytest.approx(1e-2)), "hcEps": ("double", pytest.approx(3e-3))}


def test_mindspore_finds_the_operator_in_canns_files(host: Host) -> None:
    result = host.run(_EXPLICIT % False)
    (call,) = result.calls("aclnnMhcPre")
    assert [a["value"] for a in call["arguments"] if a["role"] == "attr"] == pytest.approx([1e-2, 3e-3])


@pytest.mark.parametrize("reuse", ["on", "off"])
def test_one_training_step_is_one_call_each_with_the_contracts_arguments(host: Host, reuse: str) -> None:
    result = host.run(_STEP, "--check-leaks", "--executor-reuse", reuse)
    launched = [c["operator"] for c in result.trace if c["phase"] == 2]
    assert [name for name in launched if "Mhc" in name] == ["aclnnMhcPre", "aclnnMhcPreBackward"]
    assert "nothing left" in result.errors
    assert "Mhc" not in result.errors  # the graph gave its executors up
    assert not [name for name in launched if "Add" in name or "Zero" in name]
    for operator in (MHC_PRE, MHC_PRE_BACKWARD):
        (call,) = result.calls(operator.name)
        shown = [(a["name"], a["role"], a["c_type"], a["null"]) for a in call["arguments"]]
        assert shown == [(a.name, a.role, a.c_type, False) for a in operator.arguments]
        assert call["repeatable"] == (reuse == "on")
        assert call["workspace"] > 0
        assert call["status"] == 0


def test_gradients_without_the_share_of_inv_rms_are_told_apart(host: Host) -> None:
    """What check_gradients is worth: the smallest of the terms of grad_x, 1 / (N * D) of the others, is missed."""
    code = (
        _STEP
        + """
from ms_mhc import reference
results = gradient_function(net)(x, grads)
p, n = {name: numbers(getattr(net, name)) for name in ("phi", "alpha", "bias", "gamma")}, 4
f = reference.mhc_pre(numbers(x), **p, norm_eps=net.norm_eps, hc_eps=net.hc_eps)
g_in, g_post, g_res = map(numbers, grads[:3])
s = f.h_pre - net.hc_eps
d = np.concatenate([np.einsum("td,tnd->tn", g_in, numbers(x)) * s * (1 - s),
                    g_post * f.h_post * (1 - f.h_post / 2), g_res.reshape(len(s), n * n)], 1)
g_inv = (d * np.repeat(p["alpha"], (n, n, n * n)) * f.h_mix).sum(1)
share = -(g_inv * f.inv_rms**3 / (n * 128))[:, None, None] * numbers(x)
maimed = Tensor((numbers(results[0][0]) - share).astype(np.float32)).astype(ms.bfloat16)
try:
    check_gradients(net, x, grads, ((maimed,), results[1]))
except AssertionError as error:
    print("TOLD APART", error)
"""
    )
    assert "TOLD APART grad_x" in host.run(code).output


def test_a_jitted_step_in_pynative_mode(host: Host) -> None:
    code = _STEP.replace("ms.GRAPH_MODE", "ms.PYNATIVE_MODE").replace(
        "gradient_function(net)(x", "ms.jit(gradient_function(net), jit_level='O0')(x"
    )
    result = host.run(code, "--check-leaks")
    assert len(result.calls("aclnnMhcPreBackward")) == 1


@pytest.mark.parametrize("reuse", ["on", "off"])
def test_fifty_steps_with_changing_shapes_stay_right_and_leave_no_memory(host: Host, reuse: str) -> None:
    code = (
        _GRAPH
        + """
net = Net(hc_eps=1e-2)
step = gradient_function(net)
used = {}
for number in range(50):
    tokens = (3, 8, 5)[number % 3]
    x, grads = inputs(tokens, seed=number)
    results = step(x, grads)
    if number % 7 == 0 or number > 46:
        check_gradients(net, x, grads, results)
    del x, grads, results
    used[number] = ms.runtime.memory_allocated()
assert used[49] == used[7], used
"""
    )
    result = host.run(code, "--check-leaks", "--executor-reuse", reuse)
    calls = result.calls("aclnnMhcPreBackward")
    assert len(calls) == 50
    assert calls[-1]["device_bytes"] == calls[6]["device_bytes"]


def test_a_hidden_operator_is_not_found(host: Host) -> None:
    result = host.run(_EXPLICIT % True, "--without", "aclnnMhcPre", expect=1)
    # MindSpore then looks for the operator in the older interface, where it is not either
    assert "MhcPre: the host CANN has neither an aclnn entry point" in result.errors
    look = """
import ctypes, os
library = ctypes.CDLL(os.environ["ASCEND_HOME_PATH"] + "/lib64/libopapi.so")
names = "aclnnMhcPre", "aclnnMhcPreGetWorkspaceSize", "aclnnMhcPreV2", "aclnnMhcPost"
print([hasattr(library, name) for name in names])
"""
    assert host.run(look, "--without", "aclnnMhcPre").output.split("\n")[0] == "[False, False, True, True]"
    pair = ("--without", "aclnnMhcPreSinkhorn", "--without", "aclnnMhcPreSinkhornBackward")
    pairs = look.replace("aclnnMhcPreGet", "aclnnMhcPreSinkhornGet").replace('aclnnMhcPre"', 'aclnnMhcPreSinkhorn"')
    assert host.run(pairs, *pair).output.split("\n")[0] == "[False, False, True, True]"
    backward = host.run(pairs.replace("aclnnMhcPost", "aclnnMhcPreBackward"), "--without", "aclnnMhcPreBackward")
    assert backward.output.split("\n")[0] == "[True, True, True, False]"
    unknown = host.run(look, "--without", "aclnnNoSuchThing", expect=69)
    assert "aclnnNoSuchThing" in unknown.errors


def test_the_old_header_lacks_the_residual_gradient(host: Host) -> None:
    look = """
import os, re
text = open(os.environ["ASCEND_HOME_PATH"] + "/include/aclnnop/aclnn_mhc_pre_backward.h").read()
print("gradXPostOptional" in text, re.search(r"(\\w+) hcEps", text).group(1))
"""
    assert host.run(look).output.split() == ["True", "float"]
    assert host.run(look, "--cann-header", "old").output.split() == ["False", "double"]
    result = host.run(_STEP, "--cann-header", "old", expect=1)
    assert "Reg info input size" in result.errors  # MindSpore's own comparison of registration and header


def test_another_soc_is_believed(host: Host) -> None:
    for soc, version in (("Ascend910B1", "ascend910b"), ("Ascend910_9382", "ascend910_93")):
        code = """
import mindspore as ms
ms.set_context(device_target="Ascend")
from mindspore._c_expression import MSContext
print(MSContext.get_instance().get_ascend_soc_version())
"""
        assert host.run(code, "--soc", soc).output.split() == [version]
    result = host.run(_EXPLICIT % True, "--soc", "Ascend910B1", expect=1)
    assert "aclnnMhcPre: there is no kernel for ascend910b" in result.errors


def test_eight_processes_at_once_build_once_and_all_work(host: Host) -> None:
    host.run("pass")
    (host.folder / "fresh").mkdir()
    (host.folder / "fresh/objects").symlink_to(cache_root() / "objects")  # what was compiled before
    host.environment["CANN_HOST_CACHE"] = str(host.folder / "fresh")
    command = host.command("import os; print(os.environ['ASCEND_HOME_PATH'])")
    processes = [
        subprocess.Popen(command, cwd=host.folder, env=host.environment, stdout=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    outputs = [p.communicate(timeout=600)[0] for p in processes]
    assert [p.returncode for p in processes] == [0] * 8
    assert len(set(outputs)) == 1
    assert outputs[0].startswith(str(host.folder / "fresh"))
    left = sorted(p.name for p in next((host.folder / "fresh").glob("mindspore-*")).iterdir())
    assert left == ["lock", "objects", "plain"]


@pytest.mark.parametrize("name", ["my cache, 缓存", "a:b", "oppenheimer"])
def test_a_cache_folder_may_have_any_name(host: Host, name: str) -> None:
    """Blanks split LD_PRELOAD, commas the linker's options, colons LD_LIBRARY_PATH; MindSpore splits at "opp"."""
    folder = host.folder / name
    folder.mkdir()
    host.run("pass")
    (folder / "objects").symlink_to(cache_root() / "objects")  # only the linking is new
    host.environment["CANN_HOST_CACHE"] = str(folder)
    result = host.run(_EXPLICIT % True + "print(open('/proc/self/maps').read())", "--check-leaks")
    assert len(result.calls("aclnnMhcPre")) == 1
    assert "ld.so" not in result.errors
    for library in ("libshmem.so", "libopapi.so"):
        assert re.search(f"{re.escape(str(folder))}.*/cann/lib64/{library}", result.output), library


def test_a_path_that_programs_cannot_use_is_said_in_words(host: Host) -> None:
    (host.folder / "c d").mkdir()
    host.environment.update(CANN_HOST_CACHE=str(host.folder / "a:b"), TMPDIR=str(host.folder / "c d"))
    errors = host.run("print('ran')", expect=69).errors
    assert 'is without blanks, colons and "opp"; $CANN_HOST_CACHE names another folder' in errors
    assert errors.count("\n") == 1


def test_a_missing_compiler_is_said_in_words(host: Host) -> None:
    host.environment.update(CANN_HOST_CACHE=str(host.folder / "fresh"), PATH="/nowhere")
    result = host.run("print('ran')", expect=69)
    assert "needs a C++ compiler" in result.errors
    assert "ran" not in result.output


def test_the_exit_status_and_arguments_are_the_programs(host: Host) -> None:
    result = host.run("import sys; print(__name__); sys.exit(7)", expect=7)
    assert result.output == "__main__\n"
    done = subprocess.run(
        [*host.command("")[:-1], "-c", "import sys; print(sys.argv[1:])", "--soc", "mine"],
        cwd=host.folder, env=host.environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "['--soc', 'mine']\n"


def test_a_trace_holds_one_run_and_an_unwritable_cache_is_said_in_words(host: Host) -> None:
    stale = host.folder / "mine.jsonl"
    stale.write_text("from an earlier run\n")
    host.run("pass", "--trace", str(stale))
    assert stale.read_text() == ""
    refused = host.run("pass", "--trace", "/proc/nowhere/x", expect=2).errors
    assert "--trace /proc/nowhere/x: cannot be written: No such file or directory" in refused
    host.environment["CANN_HOST_CACHE"] = "/proc/nowhere"
    assert "CANN_HOST_CACHE names another folder" in host.run("pass", expect=69).errors
