"""MindSpore's Ascend backend and torch_npu in one process on the host CANN, and plain PyTorch in float64 beside them.

Equal bits prove that both clients make the same calls, no more: both reach the same kernels of the host CANN. That the
numbers are right is what the comparison with float64 proves.
"""

from __future__ import annotations

import itertools
from typing import Dict, Iterator, Tuple

import numpy as np
import pytest
from conftest import Host

COMBINATIONS = [",".join(c) for c in itertools.product(("bfloat16", "float16"), ("6", "2x3"), ("0", "1"))]
RESULTS = {
    "pre": (
        *("h_in", "h_post", "h_res", "inv_rms", "h_mix", "h_pre"),
        *("grad_x", "grad_phi", "grad_alpha", "grad_bias", "grad_gamma"),
    ),
    "sinkhorn": ("h_res", "grad_h_res"),
    "post": ("out", "grad_x", "grad_h_res", "grad_h_out", "grad_h_post"),
}
ROUNDED = ("h_in", "out", "grad_x", "grad_h_out")  # these have the dtype of x
HALF_UNIT = {"bfloat16": 2.0**-8, "float16": 2.0**-11}  # of the rounding of a result, relative to it
Results = Dict[str, np.ndarray]


def run(host: Host, first: str, *combinations: str) -> Results:
    """What the program of ``both_frameworks.py`` writes, with one of the frameworks imported first."""
    arguments = [first, str(host.folder / "results.npz"), *combinations]
    code = f"""
import runpy, sys
sys.argv[1:] = {arguments!r}
runpy.run_module("both_frameworks", run_name="__main__")
"""
    result = host.run(code, "--check-leaks")
    assert "nothing left" in result.errors
    for name in ("aclnnMhcPre", "aclnnMhcPreV2"):  # MindSpore's call and torch_npu's
        assert len(result.calls(name)) >= len(combinations)
    for name in ("PreBackward", "Sinkhorn", "SinkhornBackward", "Post", "PostBackward"):  # both make the same
        assert len(result.calls(f"aclnnMhc{name}")) >= 2 * len(combinations)
    with np.load(host.folder / "results.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def results(vendor_host: Host) -> Results:
    return run(vendor_host, "mindspore", *COMBINATIONS)


def of(results: Results, operator: str, side: str, combination: str) -> Iterator[Tuple[str, np.ndarray, np.ndarray]]:
    """(name, torch_npu's, the other side's) of each result of an operator; all of them are there."""
    names = [n for n in RESULTS[operator] if n != "grad_gamma" or combination.endswith("1")]
    prefix = f"{combination}/{operator}"
    assert sorted(names) == sorted(k.rsplit("/", 1)[1] for k in results if k.startswith(f"{prefix}/{side}/"))
    for name in names:
        yield name, results[f"{prefix}/torch_npu/{name}"], results[f"{prefix}/{side}/{name}"]


@pytest.mark.parametrize("operator", RESULTS)
@pytest.mark.parametrize("combination", COMBINATIONS)
def test_both_frameworks_get_equal_bits(results: Results, operator: str, combination: str) -> None:
    for name, ours, theirs in of(results, operator, "mindspore", combination):
        assert np.array_equal(ours.view(np.int64), theirs.view(np.int64)), name


@pytest.mark.parametrize("operator", RESULTS)
@pytest.mark.parametrize("combination", COMBINATIONS)
def test_torch_npu_gets_what_autograd_gets_in_float64(results: Results, operator: str, combination: str) -> None:
    for name, got, want in of(results, operator, "float64", combination):
        limit = np.full(want.shape, 2e-6 * np.abs(want).max())
        if name in ROUNDED:
            limit += HALF_UNIT[combination.partition(",")[0]] * np.abs(want)
        assert got.shape == want.shape, name
        assert np.abs(want).max() > 1e-3, name
        assert (np.abs(got - want) <= limit).all(), (name, np.abs(got - want).max(), np.abs(want).max())


def test_the_order_of_import_does_not_matter(vendor_host: Host, results: Results) -> None:
    combination = COMBINATIONS[-1]
    other = run(vendor_host, "torch", combination)
    assert other
    for key, value in other.items():
        assert np.array_equal(value.view(np.int64), results[key].view(np.int64)), key
