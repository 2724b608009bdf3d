"""opImplMode 1 multiplies by phi in HF32, on the host CANN as on Ascend 950; nothing else does."""

from __future__ import annotations

import pytest
from conftest import Host

_COMMON = """
import ml_dtypes, numpy as np
from acl import *
from vendor_formulas import hf32
from ms_mhc import reference as ref

def error(got, want):
    return np.abs(np.asarray(got, np.float64) - want).max() / np.abs(want).max()

def run(name, **changes):
    op, v = example(name, (6,), 4, 128, np.float16, seed=1)  # no factor so near a tie that fp32 noise could tip it
    v.update({key: value for key, value in changes.items() if key in v})
    call = Call(name, *v.values()); got = call.run(); call.destroy()
    return v, got

FULL, ROUNDED = 2e-6, 1e-4  # of the largest entry: what fp32 sums leave, and more than that
"""


@pytest.mark.parametrize("gamma", ["given", "None"])
def test_only_mode_1_rounds_the_factors_of_the_product(host: Host, gamma: str) -> None:
    host.run(
        _COMMON
        + f"""
extra = {{}} if {gamma!r} == "given" else {{"gammaOptional": None}}
for name, mode in (("aclnnMhcPre", 0), ("aclnnMhcPreV2", 0), ("aclnnMhcPreV2", 1)):
    v, got = run(name, opImplMode=mode, **extra)
    x = np.float32(v["x"]).reshape(6, -1)
    factor = x if extra else x * v["gammaOptional"].reshape(-1)  # fp32, as the kernel forms it
    full = np.float64(factor) @ np.float64(v["phi"]).T
    rounded = np.float64(hf32(factor)) @ np.float64(hf32(v["phi"])).T
    assert ROUNDED < error(rounded, full) < 2e-3
    want, other = (rounded, full) if mode else (full, rounded)
    assert error(got["h_mix"], want) < FULL, (name, mode)
    assert error(got["h_mix"], other) > ROUNDED, (name, mode)
    # the rest follows from the product that was made
    inv = 1 / np.sqrt((np.float64(x) ** 2).mean(-1) + v["normEps"])
    z = want * inv[:, None] * np.repeat(np.float64(v["alpha"]), (4, 4, 16)) + v["bias"]
    s = 1 / (1 + np.exp(-z))
    assert error(got["h_pre"], s[:, :4] + v["hcEps"]) < FULL and error(got["h_post"], 2 * s[:, 4:8]) < FULL
    assert error(got["h_res"].reshape(6, 16), z[:, 8:]) < FULL and error(got["inv_rms"], inv) < FULL
"""
    )


@pytest.mark.parametrize("gamma", ["given", "None"])
def test_only_mode_1_rounds_the_factors_of_the_backward_products(host: Host, gamma: str) -> None:
    host.run(
        _COMMON
        + f"""
extra = {{}} if {gamma!r} == "given" else {{"gammaOptional": None}}
for name, mode in (("aclnnMhcPreBackward", 0), ("aclnnMhcPreBackwardV2", 0), ("aclnnMhcPreBackwardV2", 1)):
    v, got = run(name, opImplMode=mode, **extra)
    args = [v[k] for k in ("x", "phi", "alpha", "gradHIn", "gradHPost", "gradHRes", "invRms", "hMix", "hPre", "hPost",
                           "gammaOptional", "gradXPostOptional")]
    full = ref.mhc_pre_backward(*args, hc_eps=v["hcEps"])
    # the gradients of the gates' arguments do not pass through a product: they are those of the reference
    n, x = 4, np.float64(v["x"]).reshape(6, -1)
    s, h_post, inv = v["hPre"] - v["hcEps"], np.float64(v["hPost"]), np.float64(v["invRms"])
    grad_pre = np.einsum("td,tnd->tn", np.float64(v["gradHIn"]), np.float64(v["x"])) * s * (1 - s)
    d = np.concatenate([grad_pre, v["gradHPost"] * h_post * (1 - h_post / 2), v["gradHRes"].reshape(6, 16)], 1)
    grad_u = d * np.repeat(np.float64(v["alpha"]), (4, 4, 16))
    gain = np.ones(x.shape[1]) if extra else np.float64(v["gammaOptional"]).reshape(-1)
    for product, wanted in ((np.float64, mode == 0), (lambda a: np.float64(hf32(a)), mode == 1)):
        grad_mix, factor = product(grad_u * inv[:, None]), product(np.float32(x) * np.float32(gain))
        m = grad_mix @ product(v["phi"])
        grad_x = np.float64(full.grad_x).reshape(6, -1) + (m - (grad_u * inv[:, None]) @ np.float64(v["phi"])) * gain
        assert (error(got["grad_phi"], grad_mix.T @ factor) < FULL) == wanted, (name, mode)
        assert (error(got["grad_x"].reshape(6, -1), grad_x) < 2.0**-11) or not wanted, (name, mode)
        if not extra: assert (error(got["grad_gamma"].reshape(-1), (x * m).sum(0)) < FULL) == wanted, (name, mode)
    assert error(got["grad_alpha"], full.grad_alpha) < FULL and error(got["grad_bias"], full.grad_bias) < FULL
"""
    )


def test_rounding_of_the_formulas_is_the_vendors() -> None:
    """Halves away from zero at 10 explicit bits: bits + 0x1000, the lower 13 cut off."""
    import numpy as np
    from vendor_formulas import hf32

    bits = np.array([0x3F800000, 0x3F800FFF, 0x3F801000, 0x3F801001, 0xBF801000, 0x3FFFF000, 0x3F803000], np.uint32)
    wanted = np.array([0x3F800000, 0x3F800000, 0x3F802000, 0x3F802000, 0xBF802000, 0x40000000, 0x3F804000], np.uint32)
    assert np.array_equal(hf32(bits.view(np.float32)), wanted.view(np.float32).astype(np.float64))
