"""What the mHC operators refuse, in which order, and with which status (ACLNN_SPEC.md)."""

from __future__ import annotations

import pytest
from conftest import Host

_COMMON = """
import ml_dtypes, numpy as np
from acl import *

def status(name, n=4, d=None, tokens=None, dtype=ml_dtypes.bfloat16, fmt=None, attrs={}, **changes):
    op, v = example(name, tokens, n, d, dtype, **attrs)
    v.update(changes)
    call = Call(name, *v.values())
    result = call.first_phase()
    assert result == 0 or error(), "a refusal without words"
    call.destroy()
    return result

def filled(*shape, dtype=np.float32):
    return np.ones(shape, dtype)

def formatted(name, argument, fmt):
    return {argument: DeviceTensor(example(name)[1][argument], fmt=fmt)}

ND, NCHW, PRIVATE = 2, 0, 29
BF16 = ml_dtypes.bfloat16
"""

NULL, INVALID, RUNTIME, TILING, NO_KERNEL, INNER_NULL = 161001, 161002, 361001, 561002, 561003, 561103


def test_pre_refuses_in_the_vendors_order(host: Host) -> None:
    host.run(
        _COMMON
        + """
P = "aclnnMhcPre"
assert status(P) == 0
for name in ("x", "phi", "alpha", "bias", "hIn", "hPost", "hRes"):
    assert status(P, **{name: None}) == 161001, name
assert status(P, gammaOptional=None) == 0
two = dict(alpha=filled(2), phi=filled(8, 512), bias=filled(8), hMixOptional=filled(6, 8))  # no mixing matrix
assert status(P, **two) == 0 and status(P, **two, hRes=None) == 0 and status(P, **two, hRes=filled(1)) == 0
for name in ("phi", "bias", "hMixOptional"):
    assert status(P, **{**two, name: example(P)[1][name]}) == 161002, name
assert status(P, invRmsOptional=None, hMixOptional=None, hPreOptional=None) == 0
assert status(P, hPreOptional=None) == 161002
assert status(P, x=None, phi=filled(0, 512)) == 161001           # a null counts before an empty tensor
assert status(P, phi=filled(0, 512), alpha=filled(1, 3)) == 161002
assert status(P, alpha=filled(4), hRes=None) == 161002           # alpha's length counts before a null hRes
for name in ("phi", "bias", "gammaOptional", "hIn", "hPost", "hRes", "invRmsOptional", "hMixOptional", "hPreOptional"):
    assert status(P, **{name: filled(3, 5)}) == 161002, name
assert status(P, bias=filled(24, dtype=np.float16)) == 161002
assert status(P, dtype=np.float32) == 161002
assert status(P, hIn=filled(6, 128, dtype=np.float16)) == 161002
for n in (1, 2, 3, 5, 7, 16): assert status(P, n=n) == 161002, n
for d, expected in ((8, 161002), (16, 0), (48, 0), (72, 161002), (16384, 0), (16400, 561002)):
    assert status(P, d=d) == expected, d
assert status(P, x=DeviceTensor(filled(6, 4, 128, dtype=ml_dtypes.bfloat16), fmt=29)) == 161002
assert status("aclnnMhcPreV2", attrs={"opImplMode": 1}) == 0
assert status("aclnnMhcPreV2", attrs={"opImplMode": 2}) == 161002
"""
    )


def test_pre_backward_refuses_in_the_vendors_order(host: Host) -> None:
    host.run(
        _COMMON
        + """
B = "aclnnMhcPreBackward"
assert status(B) == 0
for argument in OPERATORS[B].arguments:
    if argument.c_type == TENSOR and not argument.optional:
        assert status(B, **{argument.name: None}) == 161001, argument.name
assert status(B, gammaOptional=None, gradGamma=None, gradXPostOptional=None) == 0
assert status(B, gradGamma=None) == 161001                      # needed when gamma is given
assert status(B, gradGamma=filled(3)) == 161002                 # and looked at then, else not at all
assert status(B, gammaOptional=None, gradGamma=filled(3, dtype=np.float16)) == 0
for argument in OPERATORS[B].inputs:
    assert status(B, **{argument.name: filled(0)}) == 161002, argument.name
    assert status(B, **{argument.name: filled(2, 3, 5)}) == 161002, argument.name
assert status(B, alpha=filled(2)) == 161002
assert status(B, dtype=np.float32) == 161002
for n, expected in ((4, 0), (6, 0), (8, 0), (5, 561002)): assert status(B, n=n) == expected, n
for d, expected in ((64, 0), (48, 561002), (16384, 0), (16448, 561002)): assert status(B, d=d) == expected, d
"""
    )


def test_post_and_sinkhorn_refuse_in_the_vendors_order(host: Host) -> None:
    host.run(
        _COMMON
        + """
for name in ("x", "hOut", "hPost", "out"): assert status("aclnnMhcPost", **{name: None}) == 161001, name
assert status("aclnnMhcPost", hRes=None) == 0
assert status("aclnnMhcPost", n=5, d=7) == 0                    # no limits on this soc
assert status("aclnnMhcPost", hPost=filled(6, 5)) == 161002
assert status("aclnnMhcPost", tokens=(0,)) == 0                 # nothing to do
assert status("aclnnMhcPost", hRes=filled(6, 4, 0)) == 161002   # an empty input does not excuse the others
assert status("aclnnMhcPost", tokens=(0,), hPost=filled(6, 4)) == 161002
assert status("aclnnMhcPost", tokens=(0,), hOut=filled(0, 128)) == 161002
for name in ("x", "out"):
    assert status("aclnnMhcPost", **formatted("aclnnMhcPost", name, PRIVATE)) == 161002, name
    assert status("aclnnMhcPost", **formatted("aclnnMhcPost", name, NCHW)) == 0, name  # the two need not agree
assert status("aclnnMhcPostBackward", tokens=(0,)) == 161002
assert status("aclnnMhcPostBackward", n=5) == 161002
assert status("aclnnMhcPostBackward", gradHRes=None) == 161001
half = {k: v.astype(np.float16) for k, v in example("aclnnMhcPostBackward")[1].items()}
pair = lambda *names: {name: half[name] for name in names}
for name in ("x", "hOut", "gradX", "gradHOut", "hPost", "gradHPost"):
    assert status("aclnnMhcPostBackward", **pair(name)) == 161002, name
for names in (("x", "gradX"), ("hOut", "gradHOut"), ("gradOutput",), ("x", "gradX", "hOut", "gradHOut")):
    assert status("aclnnMhcPostBackward", **pair(*names)) == 561002, names  # what the check passes, the tiling refuses
S = "aclnnMhcSinkhorn"
assert status(S) == 0 and status(S, normOut=None, sumOut=None) == 0 and status(S, normOut=filled(1), sumOut=None) == 0
assert status(S, normOut=None) == 161002 and status(S, normOut=filled(10)) == 161002
assert status(S, x=None, normOut=None) == 161002 and status(S, output=None, sumOut=filled(1)) == 161002
assert status(S, x=None) == 161001 and status(S, x=None, normOut=None, sumOut=None) == 161001
for placeholder in (filled(1, 1), filled()):
    assert status(S, normOut=placeholder, sumOut=placeholder) == 161002, placeholder.shape
assert status(S, normOut=filled(1), sumOut=filled(1)) == 0
assert status(S, x=None) == 161001 and status(S, output=filled(6, 4, 5)) == 161002
for n, expected in ((4, 0), (5, 161002), (8, 0)): assert status(S, n=n) == expected
for iterations, expected in ((0, 161002), (1, 0), (100, 0), (101, 161002)):
    assert status(S, attrs={"numIters": iterations}) == expected, iterations
assert status("aclnnMhcSinkhornBackward") == 0
assert status("aclnnMhcSinkhornBackward", gradOutput=None) == 161001
K = "aclnnMhcSinkhornBackward"
assert status(K, normOut=filled(11)) == 561002 and status(K, sumOut=filled(2, 4)) == 561002
norm, sums = (example(K)[1][name] for name in ("normOut", "sumOut"))
assert status(K, normOut=norm.reshape(40, -1), sumOut=sums.reshape(40, 6, 8)) == 0  # of any rank
assert status(K, tokens=(0,)) == 0
assert status(K, gradOutput=filled(0, 5, 6)) == 161002 and status(K, gradOutput=filled(0, 4, 4)) == 161002
assert status(K, gradOutput=filled(0, 4, 4, dtype=np.float16), out=filled(0, 4, 4)) == 161002
assert status(K, **formatted(K, "out", NCHW)) == 161002
assert status(K, **formatted(K, "out", PRIVATE), **formatted(K, "gradOutput", PRIVATE)) == 0  # only that they agree
"""
    )


@pytest.mark.parametrize("soc", ["Ascend910B1", "Ascend910_9382"])
def test_older_socs_have_fewer_kernels_and_tighter_limits(host: Host, soc: str) -> None:
    host.run(
        _COMMON
        + """
for name in ("aclnnMhcPre", "aclnnMhcPreV2", "aclnnMhcPreBackwardV2", "aclnnMhcSinkhorn", "aclnnMhcSinkhornBackward"):
    assert status(name) == 561003, name
    assert status(name, **{OPERATORS[name].inputs[0].name: None}) == 161001, name  # parameters are checked first
assert status("aclnnMhcPreBackward") == 0
assert status("aclnnMhcPreBackward", n=6) == 561002 and status("aclnnMhcPreBackward", d=64) == 561002
assert status("aclnnMhcPost") == 0
assert status("aclnnMhcPost", hRes=None) == 361001
assert status("aclnnMhcPost", n=6) == 561103 and status("aclnnMhcPost", d=64) == 561103
assert status("aclnnMhcPostBackward", hRes=None) == 161001
assert status("aclnnMhcPostBackward", n=6) == 161002 and status("aclnnMhcPostBackward", d=64) == 161002
""",
        "--soc",
        soc,
    )
