"""The mHC operators of the host CANN, called as a C program would call them."""

from __future__ import annotations

import pytest
from conftest import Host

_COMMON = """
import ml_dtypes, numpy as np
from acl import *
from ms_mhc import reference as ref

def close(got, want, what, sixteen=False):
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape, (what, got.shape, want.shape)
    # one unit in the last place of bfloat16 or float16, or 5e-6 of the largest entry
    unit = {False: 5e-6 * np.abs(want).max()}.get(sixteen)
    limit = np.abs(want) * sixteen + 1e-5 if sixteen else unit
    worst = np.abs(got - want)
    assert (worst <= limit).all(), (what, worst.max(), np.abs(want).max())

ULP = {ml_dtypes.bfloat16: 2.0 ** -7, np.float16: 2.0 ** -10}
"""


@pytest.mark.parametrize("n", [4, 6, 8])
def test_pre_and_its_backward_equal_the_reference(host: Host, n: int) -> None:
    host.run(
        _COMMON
        + f"""
for tokens, d, dtype, gamma, eps in (((6,), 64, ml_dtypes.bfloat16, True, 1e-2), ((2, 3), 512, np.float16, False, 1e-6),
                                     ((2, 3), 128, ml_dtypes.bfloat16, True, 1e-6)):
    for name in ("aclnnMhcPre", "aclnnMhcPreV2"):
        op, v = example(name, tokens, {n}, d, dtype, normEps=eps, hcEps=eps)
        if not gamma: v["gammaOptional"] = None
        call = Call(name, *v.values()); got = call.run()
        want = ref.mhc_pre(v["x"], v["phi"], v["alpha"], v["bias"], v["gammaOptional"], norm_eps=eps, hc_eps=eps)
        for key, value in want._asdict().items():
            close(got[key], value, key, ULP[dtype] if key == "h_in" else False)
        call.destroy()
    for name in ("aclnnMhcPreBackward", "aclnnMhcPreBackwardV2"):
        op, v = example(name, tokens, {n}, d, dtype, hcEps=eps)
        v.update(invRms=np.asarray(want.inv_rms, np.float32), hMix=np.asarray(want.h_mix, np.float32),
                 hPre=np.asarray(want.h_pre, np.float32), hPost=np.asarray(want.h_post, np.float32))
        if not gamma: v.update(gammaOptional=None, gradGamma=None)
        call = Call(name, *v.values()); got = call.run()
        grads = ref.mhc_pre_backward(v["x"], v["phi"], v["alpha"], v["gradHIn"], v["gradHPost"], v["gradHRes"],
                                     v["invRms"], v["hMix"], v["hPre"], v["hPost"], v["gammaOptional"],
                                     v["gradXPostOptional"], hc_eps=eps)
        for key, value in grads._asdict().items():
            if value is not None: close(got[key], value, key, ULP[dtype] if key == "grad_x" else False)
        call.destroy()
""",
        "--check-leaks",
    )


def test_post_and_its_backward_equal_the_reference(host: Host) -> None:
    host.run(
        _COMMON
        + """
for tokens, d, dtype, identity in (((5,), 64, ml_dtypes.bfloat16, False), ((2, 3), 128, np.float16, True)):
    op, v = example("aclnnMhcPost", tokens, 4, d, dtype)
    if identity: v["hRes"] = None
    call = Call("aclnnMhcPost", *v.values()); got = call.run()
    close(got["out"], ref.mhc_post(v["x"], v["hRes"], v["hOut"], v["hPost"]), "out", ULP[dtype])
    call.destroy()
    op, v = example("aclnnMhcPostBackward", tokens, 4, d, dtype)
    if identity: v["hRes"] = None
    call = Call("aclnnMhcPostBackward", *v.values()); got = call.run()
    want = ref.mhc_post_backward(v["gradOutput"], v["x"], v["hRes"], v["hOut"], v["hPost"])
    for key, value in want._asdict().items():
        close(got[key], value, key, ULP[dtype] if key in ("grad_x", "grad_h_out") else False)
    call.destroy()
""",
        "--check-leaks",
    )


def test_sinkhorn_backward_is_exact_from_the_saved_tensors_alone(host: Host) -> None:
    host.run(
        _COMMON
        + """
for n in (4, 6, 8):
    for iterations, eps in ((1, 1e-2), (3, 1e-2), (20, 1e-6)):
        op, v = example("aclnnMhcSinkhorn", (2, 3), n, numIters=iterations, eps=eps)
        call = Call("aclnnMhcSinkhorn", *v.values()); got = call.run()
        close(got["output"], ref.mhc_sinkhorn(v["x"], num_iters=iterations, eps=eps), "output")
        _, b = example("aclnnMhcSinkhornBackward", (2, 3), n, seed=1, numIters=iterations)
        b.update(normOut=got["norm_out"], sumOut=got["sum_out"])
        back = Call("aclnnMhcSinkhornBackward", *b.values())
        want = ref.mhc_sinkhorn_backward(b["gradOutput"], v["x"], num_iters=iterations, eps=eps)
        close(back.run()["out"], want, "grad")
        v.update(normOut=None, sumOut=None)
        bare = Call("aclnnMhcSinkhorn", *v.values())
        close(bare.run()["output"], got["output"], "output without saved tensors")
        for c in (call, back, bare): c.destroy()
""",
        "--check-leaks",
    )


def test_views_are_read_and_written_through_strides_and_offset(host: Host) -> None:
    host.run(
        _COMMON
        + """
def view(array, pattern):
    # every second element of a larger array, behind an offset, with the first axis last in memory
    moved = np.moveaxis(array, 0, -1)
    base = np.full([2 * s + 1 for s in moved.shape], pattern, array.dtype)
    window = base[tuple(slice(1, None, 2) for _ in moved.shape)]
    window[...] = moved
    result = np.moveaxis(window, -1, 0)
    assert not result.flags.c_contiguous and result.base is not None
    return result

for name in ("aclnnMhcPre", "aclnnMhcPreBackward", "aclnnMhcPost", "aclnnMhcPostBackward", "aclnnMhcSinkhorn"):
    op, v = example(name, (2, 3), 4, 128)
    dense = Call(name, *v.values()).run()
    strided = Call(name, *[view(a, 55) if isinstance(a, np.ndarray) else a for a in v.values()])
    for key, value in strided.run().items():
        np.testing.assert_array_equal(np.asarray(value, np.float32), np.asarray(dense[key], np.float32), key)
    for tensor in strided.tensors:  # what lies between the elements is untouched
        base = np.empty(tensor.base_shape, tensor.dtype)
        tensor._copy(base.ctypes.data, tensor.memory, base.nbytes, 2)
        assert (np.asarray(base, np.float32)[::2] == 55).all(), name
"""
    )


def test_results_are_written_by_the_second_phase_only(host: Host) -> None:
    host.run(
        _COMMON
        + """
for name in OPERATORS:
    op, v = example(name)
    call = Call(name, *v.values())
    assert call.first_phase() == 0, error()
    for key, value in call.outputs().items():
        assert (np.asarray(value, np.float32) == 77).all(), (name, key)
    assert call.second_phase() == 0, error()
    for key, value in call.outputs().items():
        assert (np.asarray(value, np.float32) != 77).any(), (name, key)
"""
    )


def test_gradient_of_gamma_is_not_written_without_gamma(host: Host) -> None:
    host.run(
        _COMMON
        + """
op, v = example("aclnnMhcPreBackward")
v["gammaOptional"] = None
assert (Call(op.name, *v.values()).run()["grad_gamma"] == 77).all()
"""
    )
