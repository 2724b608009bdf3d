"""aclnnMhcPreSinkhorn and its backward on the host CANN: the vendor's numbers, soc by soc, and what it refuses."""

from __future__ import annotations

from typing import Sequence

import pytest
from conftest import Host

SOCS = ("Ascend950PR_9579", "Ascend910_9382", "Ascend910B1")

_COMMON = """
import sys
import ml_dtypes, numpy as np
import vendor_formulas as formulas
from acl import *

F, B = "aclnnMhcPreSinkhorn", "aclnnMhcPreSinkhornBackward"
ON_950 = "{soc}".startswith("Ascend950")
ULP = {{ml_dtypes.bfloat16: 2.0 ** -8, np.float16: 2.0 ** -11}}

def status(name, tokens=None, n=4, d=None, dtype=ml_dtypes.bfloat16, attrs={{}}, **changes):
    op, v = example(name, tokens, n, d, dtype, **attrs)
    v.update(changes)
    call = Call(name, *v.values())
    result = call.first_phase()
    assert result == 0 or error(), "a refusal without words"
    call.destroy()
    return result

def filled(*shape, dtype=np.float32):
    return np.ones(shape, dtype)

def close(got, want, what, noise, places=0.0):
    # every element within its last place if it has 16 bits, or the noise of fp32 sums; relative to the element
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape, (what, got.shape, want.shape)
    excess = np.abs(got - want) / (np.abs(want) * (places + 2e-6) + noise)
    assert excess.max() <= 1, (what, excess.max())
"""

_FORWARD = """
for tokens, d, dtype, eps in (((2, 3), 4096, ml_dtypes.bfloat16, 1e-2), ((1, 2), 7168, np.float16, 1e-6)):
    op, v = example(F, tokens, 4, d, dtype, hcEps=eps, normEps=3e-3)
    call = Call(F, *v.values()); got = call.run(); call.destroy()
    want = formulas.forward(v, ON_950)
    for key, value in want.items():
        if key == "norm_out" and not ON_950:  # these socs' kernel leaves the odd steps alone
            assert (got[key][1::2] == 77).all()
            got[key], value = got[key][::2], value[::2]
        close(got[key], value, key, 2e-6, ULP[dtype] if key == "hin" else 0)
    full = formulas.forward(v, ON_950, formulas.exact)["hc_before_norm"]
    assert np.abs(got["hc_before_norm"] - full).max() > 1e-4, "the product is not HF32"
"""

_BACKWARD = """
# The share of inv_rms is 1 / (N * D) of the others: it shows at the smallest D, with few tokens and large gates.
# Of these seeds no factor lies so near a tie of HF32 that fp32 noise could tip it.
for tokens, n, d, dtype, eps, seed in (((2, 3), 4, 128, np.float16, 1e-2, 1), ((1, 3), 3, 256, np.float16, 1e-3, 5),
                                       ((1, 2), 4, 4096, ml_dtypes.bfloat16, 1e-6, 4)):
    op, v = example(F, tokens, n, d, dtype, hcEps=eps)
    saved = {{k: np.asarray(a, np.float32) for k, a in formulas.forward(v, ON_950).items()}}
    op, b = example(B, tokens, n, d, dtype, seed=seed, hcEps=eps)
    b.update({{name: v[name] for name in ("x", "phi", "alpha", "bias")}}, hPre=saved["h_pre"])
    b.update(hcBeforeNorm=saved["hc_before_norm"], invRms=saved["inv_rms"], sumOut=saved["sum_out"])
    b.update(normOut=saved["norm_out"])
    call = Call(B, *b.values()); got = call.run(); call.destroy()
    want = formulas.backward(b, ON_950)
    for key, value in want.items():
        close(got[key], value, key, 3e-6 * np.abs(value).max(), ULP[dtype] if key == "grad_x" else 2e-6)
    if not ON_950:  # the product is HF32
        full = formulas.backward(b, ON_950, formulas.exact)["grad_phi"]
        assert np.abs(got["grad_phi"] - full).max() > 1e-5 * np.abs(full).max()
    b["gradHRes"] = b["gradHRes"].reshape(*tokens, n * n)  # the forward operator's shape of hRes
    call = Call(B, *b.values()); flat = call.run(); call.destroy()
    assert all(np.array_equal(flat[key], got[key]) for key in got)
"""


@pytest.mark.parametrize("soc", SOCS)
def test_pre_sinkhorn_and_its_backward_equal_the_vendors_formulas(host: Host, soc: str) -> None:
    host.run(_COMMON.format(soc=soc) + _FORWARD + _BACKWARD.format(), "--soc", soc, "--check-leaks")


def test_without_need_backward_the_saved_outputs_are_not_looked_at(host: Host) -> None:
    host.run(
        _COMMON.format(soc=SOCS[0])
        + """
op, v = example(F)
full = Call(F, *v.values()).run()
v["needBackward"] = False
saved = ("hPre", "hcBeforeNorm", "invRms", "sumOut", "normOut")
got = Call(F, *v.values()).run()
for argument in op.outputs:
    key = argument.snake_name
    same = np.full_like(got[key], 77) if argument.name in saved else full[key]
    assert np.array_equal(got[key], same), key
v.update({name: None for name in saved})
assert np.array_equal(Call(F, *v.values()).run()["h_res"], full["h_res"])
v.update(hPre=filled(3, dtype=np.float16))
assert np.array_equal(Call(F, *v.values()).run()["h_res"], full["h_res"])
"""
    )


_DEVIATION = """
from ms_mhc import reference as ref
# Gates at logit -4, hc_eps 1e-2, as in ACLNN_SPEC.md section 11. One token, so that d of the loss is d of one gate.
op, v = example(F, (1, 1), hcEps=1e-2)
v["phi"][:] = 0
v["bias"][:] = -4
got = Call(F, *v.values()).run()
op, b = example(B, (1, 1), 4, 4096, hcEps=1e-2)
b.update({{name: v[name] for name in ("x", "phi", "alpha", "bias")}}, hPre=got["h_pre"])
b.update(hcBeforeNorm=got["hc_before_norm"], invRms=got["inv_rms"], sumOut=got["sum_out"])
b.update(normOut=np.asarray(formulas.forward(v, ON_950)["norm_out"], np.float32))
b["gradHPost"][:] = 0
b["gradHRes"][:] = 0
back = Call(B, *b.values()).run()
gate = np.einsum("d,nd->n", np.float64(b["gradHin"][0, 0]), np.float64(v["x"][0, 0]))
slope = back["grad_bias"][:4] / gate
step = 1e-4
h_pre = lambda z: 1 / (1 + np.exp(-z)) + 1e-2
difference = (h_pre(-4 + step) - h_pre(-4 - step)) / (2 * step)
print(slope, difference)
assert np.allclose(difference, 0.017663, rtol=1e-4)
assert np.allclose(slope, 0.007923 if ON_950 else difference, rtol=1e-3), (slope, difference)
assert np.abs(slope - difference).max() < 1.1e-2  # of the order of hc_eps
"""


@pytest.mark.parametrize("soc", SOCS[::2])
def test_ascend_950_takes_hc_eps_off_a_sigmoid_that_never_had_it(host: Host, soc: str) -> None:
    host.run(_COMMON.format(soc=soc) + _DEVIATION.format(), "--soc", soc)


_REFUSALS = """
assert status(F) == 0 and status(B) == 0
for name in (F, B):
    for argument in OPERATORS[name].arguments:
        if argument.c_type == TENSOR:
            assert status(name, **{{argument.name: None}}) == 161001, argument.name
            assert status(name, **{{argument.name: filled(3, 5)}}) == 161002, argument.name
            if argument.dtype == "float32":
                shape = example(name)[1][argument.name].shape
                assert status(name, **{{argument.name: filled(*shape, dtype=np.float16)}}) == 161002, argument.name
    assert status(name, dtype=np.float32) == 161002
    assert status(name, tokens=(0, 3)) == 0
assert status(F, x=None, attrs={{"hcMult": 6}}) == 161001          # a null counts first
for attr, value in (("hcMult", 6), ("numIters", 19), ("numIters", 21)):
    assert status(F, attrs={{attr: value}}) == 161002, attr
assert status(F, n=6) == 161002 and status(F, n=6, attrs={{"hcMult": 6}}) == 161002
assert status(F, tokens=(6,)) == 161002
assert status(F, x=DeviceTensor(filled(2, 3, 4, 4096, dtype=ml_dtypes.bfloat16), fmt=29)) == 161002
for n, expected in ((1, 0), (4, 0), (8, 0), (9, 161002)): assert status(B, n=n) == expected, n
for d, expected in ((128, 0), (64, 161002), (100096, 161002)): assert status(B, d=d, tokens=(1, 1)) == expected, d
assert status(B, attrs={{"numIters": 10}}) == 561002
assert status(B, tokens=(6,)) == (0 if ON_950 else 161002)
for d, on_950, elsewhere in ((4096, 0, 0), (7168, 0, 0), (1280, 561002, 0), (4160, 561002, 561002)):
    assert status(F, d=d) == (on_950 if ON_950 else elsewhere), d
"""


@pytest.mark.parametrize("soc", SOCS)
def test_pre_sinkhorn_refuses_in_the_vendors_order(host: Host, soc: str) -> None:
    host.run(_COMMON.format(soc=soc) + _REFUSALS.format(), "--soc", soc)


_TRAINING = """
import numpy as np, mindspore as ms
from mindspore import Tensor, nn
from ms_mhc import mhc_pre_sinkhorn, reference
ms.set_context(device_target="Ascend", mode=ms.GRAPH_MODE, jit_config={{"jit_level": "O0"}})
n, d, f, tokens = 4, {hidden_size}, 24, {tokens}
rng = np.random.default_rng(0)
random = lambda *shape: Tensor(rng.standard_normal(shape).astype(np.float32))
x, phi, alpha, bias = random(*tokens, n, d).astype(ms.float16), random(f, n * d) / (n * d) ** 0.5, random(3), random(f)
weights = random(*tokens, d), random(*tokens, n), random(*tokens, n, n)

class Loss(nn.Cell):
    def construct(self, x, phi, alpha, bias):
        total = 0
        for out, weight in zip(mhc_pre_sinkhorn(x, phi, alpha, bias, precision="{precision}"), weights):
            total = total + (out.astype(ms.float32) * weight).sum()
        return total

grads = ms.grad(Loss(), (0, 1, 2, 3))(x, phi, alpha, bias)
exact = [t.astype(ms.float32).asnumpy().astype(np.float64) for t in (x, phi, alpha, bias)]

def loss(*arguments):
    out = reference.mhc_pre(*arguments)
    outs = out.h_in, out.h_post, reference.mhc_sinkhorn(out.h_res)
    return sum((o * w.asnumpy()).sum() for o, w in zip(outs, weights))

for place in (1, 2, 3):
    got = grads[place].asnumpy()
    for at in range(0, got.size, max(got.size // 3, 1)):
        moved = [[a.copy() for a in exact] for _ in range(2)]
        for sign, arguments in zip((1e-5, -1e-5), moved):
            arguments[place].flat[at] += sign
        difference = (loss(*moved[0]) - loss(*moved[1])) / 2e-5
        assert abs(got.flat[at] - difference) < 5e-3 * np.abs(got).max(), (place, at, got.flat[at], difference)
"""


@pytest.mark.parametrize(
    ("precision", "hidden", "kernels"),
    [
        ("hf32", (), ["aclnnMhcPreSinkhorn", "aclnnMhcPreSinkhornBackward"]),
        ("hf32", ("aclnnMhcPreBackward",), ["aclnnMhcPreSinkhorn", "aclnnMhcPreSinkhornBackward"]),
        ("hf32", ("aclnnMhcPreSinkhornBackward",), ["aclnnMhcPreBackward"]),
        ("float32", (), ["aclnnMhcPreBackward"]),
    ],
)
def test_step_on_a2_takes_the_pair_where_it_is_there_and_hf32_is_allowed(
    host: Host, precision: str, hidden: Sequence[str], kernels: Sequence[str]
) -> None:
    options = [word for name in hidden for word in ("--without", name)]
    program = _TRAINING.format(precision=precision, hidden_size=128, tokens=(2, 3))
    result = host.run(program, "--soc", "Ascend910B1", "--check-leaks", *options)
    assert [c["operator"] for c in result.trace if c["phase"] == 2 and "Mhc" in c["operator"]] == kernels


@pytest.mark.parametrize("soc", SOCS[::2])
def test_step_takes_tokens_in_one_dimension(host: Host, soc: str) -> None:
    """The forward takes batches only, and what it saves has a batch; on the 950 its backward takes either."""
    program = _TRAINING.format(precision="hf32", hidden_size=4096, tokens=(3,))
    result = host.run(program, "--soc", soc, "--check-leaks")
    called = [c["operator"] for c in result.trace if c["phase"] == 2 and "Mhc" in c["operator"]]
    assert called == ["aclnnMhcPreSinkhorn", "aclnnMhcPreSinkhornBackward"]
