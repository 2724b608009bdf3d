"""Faults in the kernels of the host CANN. Each is built anew, which takes longer than the others."""

from __future__ import annotations

from tests.mutation.edit import Killer, edits

_FOLDER = "aclnn_adapter/host/src/mhc"
NUMBERS = Killer("host numbers", ("tests/host/test_operators.py",))
CHECKS = Killer("host checks", ("tests/host/test_checks.py", "-k", "refuse"))
PRECISION = Killer("host precision", ("tests/host/test_precision.py",))
EAGER = Killer("kernels called eagerly", ("tests/host/test_eager_kernels.py", "-k", "not without"))

EDITS = [
    *edits(
        "aclnn_adapter/extension.py",
        EAGER,
        ('f"out[{place}]" for place, a', 'f"out[{len(operator.outputs) - 1 - place}]" for place, a'),
        ('if argument.dtype == "x" else f"mindspore', 'if argument.dtype != "x" else f"mindspore'),
    ),
    *edits("aclnn_adapter/custom.py", EAGER, (" or recording() or extension", " or extension")),
    *edits(
        f"{_FOLDER}/pre.cc",
        NUMBERS,
        ('args.norm_eps = call.attr<float>("normEps");', 'args.norm_eps = call.attr<float>("hcEps");'),
        (
            'args.h_pre = array["hPre"];\n  args.h_post = array["hPost"];\n  args.gamma',
            'args.h_pre = array["hPost"];\n  args.h_post = array["hPre"];\n  args.gamma',
        ),
        ('  args.grad_x_post = array["gradXPostOptional"];\n', ""),
    ),
    *edits(
        f"{_FOLDER}/post.cc",
        NUMBERS,
        (
            'args.grad_output = array["gradOutput"];\n  args.x = array["x"];',
            'args.grad_output = array["x"];\n  args.x = array["gradOutput"];',
        ),
    ),
    *edits(
        f"{_FOLDER}/sinkhorn.cc",
        NUMBERS,
        ("  m.each([&](double &element, auto...) { element += eps; });\n", ""),
        ("g.take_off(false, softmax);", "g.take_off(true, softmax);"),
        ("return before.sum(columns, k) + eps; });", "return before.sum(columns, k); });"),
    ),
    *edits(
        f"{_FOLDER}/pre.cc",
        CHECKS,
        ("  check.hidden_multiple(16, kInvalid);\n", ""),
        ("check.streams_within({4, 6, 8}, kInvalid);", "check.streams_within({4, 5, 6, 8}, kInvalid);"),
    ),
    *edits(
        f"{_FOLDER}/products.cc",
        PRECISION,
        ("mixed = hf32 ? to_hf32(grad * inv_rms) : grad * inv_rms;", "mixed = grad * inv_rms;"),
        ("const float share = inv_rms * inv_rms * inv_rms *", "const float share = inv_rms * inv_rms *"),
    ),
]
