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
        op, v = example(name, tokens, {n}, d, dtype, normEps=eps, hcEps=3 * eps)
        if not gamma: v["gammaOptional"] = None
        call = Call(name, *v.values()); got = call.run()
        want = ref.mhc_pre(v["x"], v["phi"], v["alpha"], v["bias"], v["gammaOptional"], norm_eps=eps, hc_eps=3 * eps)
        for key, value in want._asdict().items():
            close(got[key], value, key, ULP[dtype] if key == "h_in" else False)
        call.destroy()
    for name in ("aclnnMhcPreBackward", "aclnnMhcPreBackwardV2"):
        op, v = example(name, tokens, {n}, d, dtype, hcEps=3 * eps)
        v.update(invRms=np.asarray(want.inv_rms, np.float32), hMix=np.asarray(want.h_mix, np.float32),
                 hPre=np.asarray(want.h_pre, np.float32), hPost=np.asarray(want.h_post, np.float32))
        if not gamma: v.update(gammaOptional=None, gradGamma=None)
        call = Call(name, *v.values()); got = call.run()
        grads = ref.mhc_pre_backward(v["x"], v["phi"], v["alpha"], v["gradHIn"], v["gradHPost"], v["gradHRes"],
                                     v["invRms"], v["hMix"], v["hPre"], v["hPost"], v["gammaOptional"],
                                     v["gradXPostOptional"], hc_eps=3 * eps)
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

for name in ("aclnnMhcPre", "aclnnMhcPreBackward", "aclnnMhcPost", "aclnnMhcPostBackward", "aclnnMhcSinkhorn",
             "aclnnMhcPreSinkhornBackward"):
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


def test_gradient_of_gamma_is_zero_without_gamma(host: Host) -> None:
    """The document leaves it unwritten, the vendor's client expects zeros: zeros are right for both."""
    host.run(
        _COMMON
        + """
op, v = example("aclnnMhcPreBackward")
v["gammaOptional"] = None
assert (Call(op.name, *v.values()).run()["grad_gamma"] == 0).all()
v["gradGamma"] = np.full((3, 2), 77, np.float16)  # nobody looks at what it is
assert (Call(op.name, *v.values()).run()["grad_gamma"] == 0).all()
"""
    )


def test_pre_with_two_gates_has_no_mixing_matrix_and_hc_eps_on_both(host: Host) -> None:
    host.run(
        _COMMON
        + """
n, d, eps = 4, 128, 1e-2
for name, tokens in (("aclnnMhcPre", (6,)), ("aclnnMhcPreV2", (2, 3))):
    op, v = example(name, tokens, n, d, np.float16, hcEps=eps)
    v.update(alpha=v["alpha"][:2], phi=v["phi"][: 2 * n], bias=v["bias"][: 2 * n], hRes=np.full(1, 77, np.float32))
    v["hMixOptional"] = v["hMixOptional"][..., : 2 * n].copy()
    got = Call(name, *v.values()).run()
    x, flat = np.float64(v["x"]), np.float64(v["x"]).reshape(*tokens, -1)
    inv = 1 / np.sqrt((flat**2).mean(-1) + v["normEps"])
    mix = (flat * v["gammaOptional"].reshape(-1)) @ np.float64(v["phi"]).T
    z = mix * inv[..., None] * np.repeat(v["alpha"], n) + v["bias"]
    h_pre, h_post = np.split(1 / (1 + np.exp(-z)), 2, -1)
    close(got["h_pre"], h_pre + eps, "h_pre")
    close(got["h_post"], 2 * h_post + eps, "h_post")
    close(got["h_mix"], mix, "h_mix")
    close(got["inv_rms"], inv, "inv_rms")
    close(got["h_in"], np.einsum("...n,...nd->...d", h_pre + eps, x), "h_in", ULP[np.float16])
    assert (got["h_res"] == 77).all()
"""
    )


def test_saved_tensors_of_sinkhorn_lie_as_the_vendors_kernel_lays_them(host: Host) -> None:
    """Tokens go to 64 cores; each core's share is cut in pieces that fit its buffer; a piece's tokens lie side by side.

    The saved tensors are filled by hand from NumPy, for as many tokens as make cores with one piece and with several.
    """
    host.run(
        _COMMON
        + """
def sinkhorn(x, steps, eps):
    e = np.exp(x - x.max(-1, keepdims=True))
    y = e / e.sum(-1, keepdims=True)
    norms, sums = [y], [np.zeros(y.shape[:2])]  # the first matrix is kept without eps, its divisor not at all
    y = y + eps
    for step in range(1, steps):
        total = y.sum(-2 if step % 2 else -1) + eps
        y = y / (total[:, None, :] if step % 2 else total[:, :, None])
        norms.append(y); sums.append(total)
    return norms, sums

def laid_out(norms, sums, n, piece, per_core):
    # the vendor's order: [step][row][token][8] for matrices; [token][8] for odd steps, [8][token] for even ones
    tokens, flat_norm, flat_sum = len(norms[0]), [], []
    starts = [s for core in range(0, tokens, per_core) for s in range(core, min(core + per_core, tokens), piece)]
    for start in starts:
        core_end = min((start // per_core + 1) * per_core, tokens)
        some = slice(start, min(start + piece, core_end))
        for step, (norm, total) in enumerate(zip(norms, sums)):
            matrix = np.zeros((n, len(norm[some]), 8)); matrix[..., :n] = norm[some].transpose(1, 0, 2)
            vector = np.zeros((len(norm[some]), 8)); vector[:, :n] = total[some]
            flat_norm.append(matrix.ravel()); flat_sum.append((vector if step % 2 else vector.T).ravel())
    return np.concatenate(flat_norm).astype(np.float32), np.concatenate(flat_sum).astype(np.float32)

# A core has tokens / 64 rounded up. Half a buffer, 126688 bytes, holds a piece: 448 bytes a token for n = 4, 1088 for
# n = 8. What does not fit as one piece is cut in pieces of as many eights as fit.
for n, tokens, piece, per_core in ((4, 6, 1, 1), (6, 200, 4, 4), (8, 7600, 112, 119), (4, 19200, 280, 300)):
    iterations, eps = 2, 1e-2
    op, v = example("aclnnMhcSinkhorn", (tokens,), n, numIters=iterations, eps=eps)
    norms, sums = sinkhorn(np.float64(v["x"]), 2 * iterations, eps)
    norm, total = laid_out(norms, sums, n, piece, per_core)
    got = Call("aclnnMhcSinkhorn", *v.values()).run()
    close(got["norm_out"], norm, "norm_out")
    close(got["sum_out"], total, "sum_out")
    _, b = example("aclnnMhcSinkhornBackward", (tokens,), n, seed=1, numIters=iterations)
    b.update(normOut=norm, sumOut=total)
    want = ref.mhc_sinkhorn_backward(b["gradOutput"], v["x"], num_iters=iterations, eps=eps)
    close(Call("aclnnMhcSinkhornBackward", *b.values()).run()["out"], want, "gradient from saved tensors made by hand")
"""
    )
