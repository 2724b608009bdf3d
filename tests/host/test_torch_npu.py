"""torch_npu, the vendor's own compiled client of the operators, as a witness of the contract.

The static witness reads its library. The dynamic witness calls every operator through it on the host CANN and looks at
what arrives. Both are about the calls alone: whose kernels compute plays no part.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List, Set, Tuple

import pytest
import vendor_client
from conftest import Host

from aclnn_adapter import contract
from aclnn_adapter.compiled_calls import Library
from aclnn_adapter.operators import (
    MHC_POST,
    MHC_POST_BACKWARD,
    MHC_PRE,
    MHC_PRE_BACKWARD,
    MHC_PRE_BACKWARD_V2,
    MHC_PRE_V2,
    MHC_SINKHORN,
    MHC_SINKHORN_BACKWARD,
    OPERATORS,
    resolve,
)

CALLED = (
    MHC_PRE,
    MHC_PRE_V2,
    MHC_PRE_BACKWARD,
    MHC_PRE_BACKWARD_V2,
    MHC_POST,
    MHC_POST_BACKWARD,
    MHC_SINKHORN,
    MHC_SINKHORN_BACKWARD,
)

# Every form of every call. Each tensor lies at an offset of its own, by which it is recognised in the trace: many have
# the same shape. What should arrive is printed under the contract's names.
_PROGRAM = """
import itertools, json, torch, torch_npu
ops = torch.ops.npu
NAMES = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32"}
offsets = itertools.count(1)

def tensor(*shape, dtype=torch.float32):
    offset, size = next(offsets), torch.Size(shape).numel()
    whole = torch.rand(offset + size).to(dtype).to("npu:0")
    return whole[offset:].view(*shape)

def shown(value):
    if not isinstance(value, torch.Tensor):
        return value
    return {"shape": list(value.shape), "dtype": NAMES[value.dtype], "offset": value.storage_offset()}

def expect(operator, results, **arguments):
    given = {name: shown(value) for name, value in arguments.items()}
    shapes = [None if r is None or r.numel() == 0 else shown(r) for r in results]
    print(json.dumps({"operator": operator, "given": given, "results": shapes}))

n, d, iterations = 4, 64, 7
f = n * n + 2 * n
for lead, low in itertools.product(((6,), (2, 3)), (torch.bfloat16, torch.float16)):
    x, phi, alpha, bias = tensor(*lead, n, d, dtype=low), tensor(f, n * d), tensor(3), tensor(f)
    gamma, grad_x_post = tensor(n, d), tensor(*lead, n, d, dtype=low)
    h_post, h_pre, h_res = tensor(*lead, n), tensor(*lead, n), tensor(*lead, n, n)
    inv_rms, h_mix, h_out = tensor(*lead), tensor(*lead, f), tensor(*lead, d, dtype=low)
    grads = tensor(*lead, d, dtype=low), tensor(*lead, n), tensor(*lead, n, n)
    for gain, flag, precise in itertools.product((None, gamma), (0, 1), PRECISE):
        out = ops.npu_mhc_pre(x, phi, alpha, bias, gamma=gain, norm_eps=3e-3, hc_eps=1e-2, out_flag=flag,
                              inner_precise=precise)
        expect(FORWARD, out, x=x, phi=phi, alpha=alpha, bias=bias, gammaOptional=gain, normEps=3e-3, hcEps=1e-2,
               opImplMode=precise)
    for gain, share, precise in itertools.product((None, gamma), (None, grad_x_post), PRECISE):
        out = ops.npu_mhc_pre_backward(x, phi, alpha, *grads, inv_rms, h_mix, h_pre, h_post, gain, 1e-2, share, precise)
        expect("aclnnMhcPreBackwardV2" if precise else "aclnnMhcPreBackward", out, x=x, phi=phi, alpha=alpha,
               gradHIn=grads[0], gradHPost=grads[1], gradHRes=grads[2], invRms=inv_rms, hMix=h_mix, hPre=h_pre,
               hPost=h_post, gammaOptional=gain, gradXPostOptional=share, hcEps=1e-2, opImplMode=precise)
    for flag in (0, 1):
        out = ops.npu_mhc_sinkhorn(h_res, eps=3e-5, num_iters=iterations, out_flag=flag)
        expect("aclnnMhcSinkhorn", out, x=h_res, eps=3e-5, numIters=iterations)
    rows = 2 * iterations * torch.Size(lead).numel()
    norm, total = tensor(rows * n * 8), tensor(rows * 8)
    out = ops.npu_mhc_sinkhorn_backward(grads[2], norm, total)
    expect("aclnnMhcSinkhornBackward", [out], gradOutput=grads[2], normOut=norm, sumOut=total)
    for mixing in (None, h_res):
        out = ops.npu_mhc_post(x, mixing, h_out, h_post)
        expect("aclnnMhcPost", [out], x=x, hRes=mixing, hOut=h_out, hPost=h_post)
        out = ops.npu_mhc_post_backward(grad_x_post, x, mixing, h_out, h_post)
        expect("aclnnMhcPostBackward", out, gradOutput=grad_x_post, x=x, hRes=mixing, hOut=h_out, hPost=h_post)
"""
Arrived = List[Tuple[Dict[str, Any], Dict[str, Any]]]


@pytest.fixture(scope="module", params=["V2", "V1"])
def arrived(request: pytest.FixtureRequest, vendor_host: Host) -> Arrived:
    """(what was given, what arrived) of each call, where the second versions are exported and where they are not."""
    if request.param == "V2":
        head, options = "PRECISE, FORWARD = (0, 1), 'aclnnMhcPreV2'\n", []
    else:
        head, options = "PRECISE, FORWARD = (0,), 'aclnnMhcPre'\n", ["--without", "aclnnMhcPreV2"]
        options += ["--without", "aclnnMhcPreBackwardV2"]
    result = vendor_host.run(head + _PROGRAM, "--check-leaks", *options)
    assert "nothing left" in result.errors
    given = [json.loads(line) for line in result.output.splitlines() if line.startswith("{")]
    ours = [call for call in result.trace if call["operator"] in OPERATORS]
    prepared, launched = ([call for call in ours if call["phase"] == phase] for phase in (1, 2))
    for calls in (prepared, launched):
        assert {call["status"] for call in calls} == {0}
        assert [call["operator"] for call in calls] == [g["operator"] for g in given]
    return list(zip(given, prepared))


def by_argument(arrived: Arrived) -> Iterator[Tuple[str, Any, Dict[str, Any], Any]]:
    """(label, argument of the contract, what arrived in its place, what was given)"""
    for given, call in arrived:
        operator = OPERATORS[call["operator"]]
        assert len(call["arguments"]) == len(operator.arguments)
        results = iter(given["results"])
        for argument, got in zip(operator.arguments, call["arguments"]):
            want = next(results) if argument.role == "output" else given["given"].get(argument.name, "not named")
            yield f"{operator.name} {argument.name} {given}", argument, got, want


def test_every_operator_is_called(arrived: Arrived) -> None:
    called = {call["operator"] for _, call in arrived}
    if "aclnnMhcPreV2" in called:  # then its first version is never called
        assert called == {operator.name for operator in CALLED} - {"aclnnMhcPre"}
    else:
        assert called == {operator.name for operator in CALLED} - {"aclnnMhcPreV2", "aclnnMhcPreBackwardV2"}


def test_c_types_are_those_of_the_contract(arrived: Arrived) -> None:
    for label, argument, got, _ in by_argument(arrived):
        assert got["c_type"] == argument.c_type, label


def test_numbers_are_read_as_they_were_given(arrived: Arrived) -> None:
    """A double that is passed where a float is read, or the other way round, arrives as another number."""
    seen: Set[str] = set()
    for label, argument, got, want in by_argument(arrived):
        if argument.role == "attr":
            seen.add(argument.name)
            if argument.c_type == "float":
                assert got["value"] == pytest.approx(want, rel=1e-7), label
            else:
                assert got["value"] == want, label
    assert seen >= {"normEps", "hcEps", "eps", "numIters"}


def test_tensors_arrive_in_the_contracts_order(arrived: Arrived) -> None:
    for label, argument, got, want in by_argument(arrived):
        if argument.role == "input" and want is not None:
            assert {key: got[key] for key in want} == want, label


def test_only_optional_arguments_are_null_and_all_of_them_can_be(arrived: Arrived) -> None:
    null: Set[str] = set()
    for label, argument, got, want in by_argument(arrived):
        if argument.role == "input":
            assert got["null"] == (want is None), label
        if got["null"]:
            assert argument.optional, label
            null.add(argument.name)
    saved = {"invRmsOptional", "hMixOptional", "hPreOptional", "normOut", "sumOut"}
    assert null == {"gammaOptional", "gradXPostOptional", "hRes"} | saved


def test_sizes_are_those_of_the_contract(arrived: Arrived) -> None:
    """Of the results as well, which the client allocates."""
    n, d, iterations = 4, 64, 7
    for label, argument, got, _ in by_argument(arrived):
        if argument.role == "attr" or got["null"]:
            continue
        tokens = (6,) if "[6, 4, 64]" in label or "[6, 4, 4]" in label else (2, 3)
        sizes = {"T": tokens, "N": (n,), "D": (d,), "F": (n * n + 2 * n,), "I": (iterations,)}
        assert tuple(got["shape"]) == resolve(argument.shape, sizes), label
        assert got["dtype"] == argument.dtype or argument.dtype == "x", label
        assert got["dtype"] in ("bfloat16", "float16") or argument.dtype == "float32", label


def test_the_library_of_torch_npu_calls_what_the_contract_says() -> None:
    if vendor_client.problem():
        pytest.skip(vendor_client.problem())
    found = contract.compare(Library(contract.read(_package()).image), OPERATORS)
    assert not [(f.operator.name, f.differences) for f in found if f.differences]
    assert {f.operator.name for f in found if f.called} == {operator.name for operator in CALLED}


def _package() -> Path:
    """The installed torch_npu of the environment that has one."""
    root = vendor_client.interpreter().parents[1]
    (package,) = root.glob(f"lib/python{sys.version_info[0]}.*/site-packages/torch_npu")
    return package
