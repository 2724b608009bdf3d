"""Kernels called from Python in PyNative mode: through MindSpore's extension, or a small graph where there is none."""

from __future__ import annotations

from conftest import Host

from aclnn_adapter.host.build import cache_root
from aclnn_adapter.operators import OPERATORS

FIRST = 900  # seconds: the host CANN and the extension may have to be compiled

START = """
import logging
import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor
from aclnn_adapter import extension
from aclnn_adapter.custom import AclnnKernel
from aclnn_adapter.operators import MHC_POST, OPERATORS, resolve

logging.basicConfig(format="LOG %(message)s")
ms.set_context(mode=ms.PYNATIVE_MODE, device_target="Ascend")
SIZES = {"T": (2, 3), "N": (4,), "D": (4096,), "F": (24,), "I": (20,)}
rng = np.random.default_rng(0)


def inputs(operator):
    made = [rng.uniform(0.1, 1, resolve(a.shape, SIZES)).astype(np.float32) for a in operator.inputs]
    return [Tensor(v, ms.bfloat16 if a.dtype == "x" else ms.float32) for v, a in zip(made, operator.inputs)]


def values(result):
    return [t.float().asnumpy() for t in (result if isinstance(result, tuple) else (result,))]


def in_graph(kernel, *args):
    @ms.jit(jit_level="O0")
    def call(*args):
        return kernel(*args)

    return values(call(*args))
"""

EVERY_OPERATOR = """
SPECIAL = {"normEps": 3e-3, "hcEps": 2e-3, "eps": 2e-3, "opImplMode": 1, "needBackward": True}
for operator in OPERATORS.values():
    kernel, tensors = AclnnKernel(operator, I=20), inputs(operator)
    attributes = [SPECIAL.get(a.name, a.default) for a in operator.attrs]
    expected = in_graph(kernel, *tensors, *attributes)
    kernel._graph = None  # called instead of the extension, it would fail
    found = values(kernel(*tensors, *attributes))
    same = [a.shape == b.shape and np.array_equal(a, b) and a.any() for a, b in zip(expected, found)]
    print("SAME", operator.name, len(found) == len(expected) == len(operator.outputs) and all(same))
print("REFUSAL", extension.refusal())
"""

ODD_TENSORS = """
kernel = AclnnKernel(MHC_POST)
x, h_res, h_out, h_post = inputs(MHC_POST)
expected = in_graph(kernel, x, h_res, h_out, h_post)
kernel._graph = None
turned = Tensor(x.float().asnumpy().transpose(1, 0, 2, 3).copy(), ms.bfloat16).transpose(1, 0, 2, 3)
part = Tensor(np.stack([x.float().asnumpy()] * 2), ms.bfloat16)[1]
for name, row in {
    "parameter": (x, Parameter(h_res), h_out, h_post),
    "view": (turned, h_res, h_out, h_post),
    "part": (part, h_res, h_out, h_post),
    "unfinished": (x + 0, h_res * 1, h_out + 0, h_post * 1),
}.items():
    print("ODD", name, np.array_equal(values(kernel(*row))[0], expected[0]))
print("CONTIGUOUS", turned.is_contiguous())
try:
    kernel(x.float(), h_res, h_out, h_post).asnumpy()
except RuntimeError as error:
    print("REFUSED", error)
kernel = AclnnKernel(MHC_POST)
try:
    print("GRADIENT", ms.grad(lambda h_post: kernel(x, h_res, h_out, h_post).float().sum())(h_post))
except RuntimeError as error:
    print("NO GRADIENT", error)
"""

WITHOUT = """
extension._COMPILER = "false"
kernel, tensors = AclnnKernel(MHC_POST), inputs(MHC_POST)
expected = in_graph(kernel, *tensors)
print("RIGHT", *(np.array_equal(values(kernel(*tensors))[0], expected[0]) for _ in range(2)))
"""


def test_every_operator_gives_what_it_gives_in_a_graph(host: Host) -> None:
    """Which tensor and which attribute goes where is generated twice; the host's kernels refuse a wrong shape."""
    result = host.run(START + EVERY_OPERATOR, timeout=FIRST)
    said = [line for line in result.output.splitlines() if line.startswith(("SAME", "REFUSAL"))]
    assert said == [*(f"SAME {name} True" for name in OPERATORS), "REFUSAL None"]
    assert {name: len(result.calls(name)) for name in OPERATORS} == dict.fromkeys(OPERATORS, 2)


def test_parameters_views_and_what_is_still_being_computed(host: Host) -> None:
    result = host.run(START + ODD_TENSORS, timeout=FIRST)
    said = [line for line in result.output.splitlines() if line.startswith(("ODD", "CONT", "REF"))]
    odd = [f"ODD {name} True" for name in ("parameter", "view", "part", "unfinished")]
    assert said[:-1] == [*odd, "CONTIGUOUS False"]
    assert said[-1].startswith("REFUSED aclnnMhcPost")
    assert "x is float32, not bfloat16 or float16" in result.output
    assert "NO GRADIENT" in result.output  # a kernel alone has none; zeros would be silently wrong


def test_without_a_compiler_for_it_a_small_graph_computes_and_one_line_says_so(host: Host) -> None:
    host.environment["XDG_CACHE_HOME"] = str(host.folder)
    host.environment["CANN_HOST_CACHE"] = str(cache_root())
    result = host.run(START + WITHOUT)
    assert "RIGHT True True" in result.output
    assert result.errors.count("cannot be had: false refused it") == 1
