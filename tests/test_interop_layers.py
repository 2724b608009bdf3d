"""One layer and whole models as dicts: names, layouts, what does not fit."""

from __future__ import annotations

import re
from typing import Any, Dict

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

from ms_mhc import MhcPre, interop
from tests.interop_models import (
    BF16,
    MINDFORMERS,
    MINDFORMERS_HEAD,
    MODULES,
    RELEASED,
    SAVED,
    Arrays,
    D,
    F,
    N,
    Network,
    hf_connection,
    hf_head,
    hf_model,
    mindformers_connection,
    same_bits,
    values,
    without,
)


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_one_layer_round_trips_bit_for_bit(n: int) -> None:
    for tensors in (hf_connection(n, n), hf_head(n, n)):
        back = interop.to_hf(interop.from_hf(tensors))
        assert set(back) == set(tensors)
        assert all(same_bits(back[name], tensors[name]) for name in tensors)
    head = {MINDFORMERS_HEAD[name]: value for name, value in hf_head(n, n).items()}
    for mixing in ("h_res @ x", "h_res.T @ x"):
        for tensors in (mindformers_connection(n, n), head):
            back = interop.to_mindformers(interop.from_mindformers(tensors, mixing=mixing), mixing=mixing)
            assert set(back) == set(tensors)
            assert all(same_bits(back[name], tensors[name]) for name in tensors)


def test_every_bfloat16_and_float16_is_widened_exactly() -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    tensors = hf_head(0, n=1, d=2**16)
    widened = interop.from_hf({**tensors, "fn": bits.view(BF16).reshape(1, -1)})["phi"]
    assert widened.dtype == np.float32
    assert np.array_equal(widened.view(np.uint32)[0], bits.astype(np.uint32) << 16)
    halves = interop.from_hf({**tensors, "fn": bits.view(np.float16).reshape(1, -1)})["phi"]
    assert np.array_equal(halves[0], bits.view(np.float16), equal_nan=True)


def test_tensors_and_parameters_are_taken_and_results_are_copies() -> None:
    tensors = hf_connection(1)
    rounded = tensors["fn"].astype(BF16).astype(np.float32)
    params = interop.from_hf({**tensors, "fn": Tensor(tensors["fn"]).astype(ms.bfloat16)})
    assert np.array_equal(params["phi"], rounded)
    again = interop.from_hf(tensors)
    again["phi"][:] = 0
    assert tensors["fn"].any()
    assert same_bits(interop.to_hf(dict(MhcPre(N, D).parameters_and_names()))["scale"], np.full(3, 0.01, np.float32))


def from_2_1_0(tensors: Arrays) -> Arrays:
    return interop.from_mindformers(tensors, version="2.1.0")


@pytest.mark.parametrize(
    ("function", "tensors", "error", "message"),
    [
        (interop.from_hf, without(hf_connection(0), "base"), ValueError, "missing: base"),
        (interop.from_hf, without(hf_connection(0), "fn"), ValueError, "missing: fn"),
        (interop.from_hf, without(hf_connection(0), "scale"), ValueError, "missing: scale"),
        (interop.from_hf, {**hf_connection(0), "gamma": np.ones(3, np.float32)}, ValueError, "unexpected: gamma"),
        (interop.from_hf, {**hf_connection(0), "base": np.ones(3, np.float32)}, ValueError, "base has shape [3]"),
        (interop.from_hf, {**hf_connection(0), "fn": np.ones((9, 8), np.float32)}, ValueError, "fn has shape [9, 8]"),
        (
            interop.from_hf,
            {**hf_connection(0), "fn": np.ones((F, 9), np.float32)},
            ValueError,
            f"fn has shape [{F}, 9]",
        ),
        (interop.from_hf, {**hf_connection(0), "base": np.ones(F)}, ValueError, "base has dtype float64; accepted: f"),
        (interop.from_hf, {**hf_connection(0), "base": np.ones(F, int)}, ValueError, "base has dtype int64"),
        (interop.from_hf, {**hf_connection(0), "base": [1.0]}, TypeError, "base must be a NumPy array"),
        (
            interop.from_hf,
            {**hf_head(0), "base": np.ones(3, np.float32)},
            ValueError,
            "base has shape [3]; expected [4]",
        ),
        (from_2_1_0, without(mindformers_connection(0), "alpha_res"), ValueError, "missing: alpha_res"),
        (from_2_1_0, hf_connection(0), ValueError, "missing: mapping_proj.weight"),
        (interop.to_hf, {"phi": np.ones((F, N * D), np.float32)}, ValueError, "missing: alpha; missing: bias"),
        (
            interop.to_hf,
            {**interop.from_hf(hf_connection(0)), "gamma": np.full((N, D), 2, np.float32)},
            ValueError,
            "gamma is not all ones",
        ),
    ],
)
def test_a_layer_that_does_not_fit_is_refused(function: Any, tensors: Arrays, error: type, message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        function(tensors)


def test_an_unknown_mixing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"mixing must be one of h_res @ x, h_res\.T @ x, but got 'x'"):
        interop.from_mindformers(mindformers_connection(0), mixing="x")


def test_names_in_the_release_are_those_of_deepseek_and_in_the_modules_those_of_transformers() -> None:
    released, modules, saved = set(hf_model(1)), set(hf_model(1, MODULES)), set(hf_model(1, SAVED))
    assert {"layers.0.hc_attn_fn", "layers.0.hc_ffn_scale", "hc_head_base"} <= released
    assert {"model.layers.0.attn_hc.fn", "model.layers.0.ffn_hc.scale", "model.hc_head.hc_base"} <= modules
    assert {"model.layers.0.hc_attn_fn", "model.layers.0.hc_ffn_scale", "model.hc_head.hc_base"} <= saved


@pytest.mark.parametrize("names", [RELEASED, MODULES, SAVED])
def test_a_model_as_a_dict_round_trips_bit_for_bit(names: Dict[str, str]) -> None:
    model = hf_model(3, names)
    params = interop.model_from_hf(model, names)
    assert set(params) == {name for name in values(Network(3)) if ".branch." not in name}
    back = interop.model_to_hf(params, names)
    assert set(back) == set(model) - {"model.embed_tokens.weight"}
    assert all(same_bits(back[name], model[name]) for name in back)


@pytest.mark.parametrize("has", [RELEASED, MODULES, SAVED])
@pytest.mark.parametrize("named", [RELEASED, MODULES, SAVED])
def test_any_of_the_three_namings_reads_any_dict(has: Dict[str, str], named: Dict[str, str]) -> None:
    model = hf_model(2, has)
    params, want = interop.model_from_hf(model, named), interop.model_from_hf(model, has)
    assert set(params) == set(want)
    assert all(same_bits(params[name], want[name]) for name in want)


def test_half_a_layer_as_a_dict_is_named() -> None:
    """The parts that are there would be taken, and the rest stay at its initial values."""
    model = {name: value for name, value in hf_model(3).items() if "layers.1.hc_ffn" not in name}
    with pytest.raises(ValueError, match=r"missing: layers\.1\.hc_ffn_\{p\} \(for blocks\.1\.ffn\.pre\), while"):
        interop.model_from_hf(model, RELEASED)
    stage = {name: value for name, value in hf_model(3).items() if "layers.0" not in name}
    assert "blocks.2.ffn.pre.phi" in interop.model_from_hf(stage, RELEASED)


@pytest.mark.parametrize("library", ["hf", "mindformers"])
def test_a_number_without_dimensions_is_an_array_of_one(library: str) -> None:
    if library == "hf":
        tensors = hf_head(0)
        params = interop.from_hf({**tensors, "scale": tensors["scale"].reshape(())})
        assert same_bits(params["scale"], tensors["scale"])
    else:
        tensors = mindformers_connection(0)
        flat = {name: value.reshape(()) if "alpha" in name else value for name, value in tensors.items()}
        params = interop.from_mindformers(flat, version="2.1.0")
        assert same_bits(params["alpha"], interop.from_mindformers(tensors, version="2.1.0")["alpha"])
    with pytest.raises(ValueError, match=r"scale has shape \[1, 3\]; expected \[3\]"):
        interop.from_hf({**hf_connection(0), "scale": np.ones((1, 3), np.float32)})


def test_a_networks_parameters_go_out_as_a_dict_and_come_back() -> None:
    network = Network(gamma=True)
    tensors = interop.model_to_mindformers(dict(network.parameters_and_names()), MINDFORMERS)
    assert "decoder.layers.1.ffn_hc.alpha_post" in tensors
    assert "decoder.layers.1.ffn_hc.rms_weight" in tensors
    assert "decoder.hc_head.hc_fn.weight" in tensors
    params, before = interop.model_from_mindformers(tensors, MINDFORMERS), values(network)
    assert set(params) == {name for name in before if ".branch." not in name}
    assert all(same_bits(params[name], before[name]) for name in params)


def test_a_model_dict_names_what_is_wrong_in_full() -> None:
    model = hf_model()
    with pytest.raises(ValueError, match=r"missing: layers\.1\.hc_ffn_base"):
        interop.model_from_hf(without(model, "layers.1.hc_ffn_base"), RELEASED)
    with pytest.raises(ValueError, match=r"unexpected: layers\.1\.hc_ffn_gain"):
        interop.model_from_hf({**model, "layers.1.hc_ffn_gain": np.ones(1, np.float32)}, RELEASED)
    with pytest.raises(ValueError, match=r"no tensor was given for 'head': 'hc_head_\{p\}'"):
        interop.model_from_hf({name: value for name, value in model.items() if "head" not in name}, RELEASED)
    with pytest.raises(ValueError, match=r"missing: blocks\.0\.attn\.pre\.alpha"):
        interop.model_to_hf(without(values(Network()), "blocks.0.attn.pre.alpha"), RELEASED)
    params = {f"{cell}.{name}": value for cell in ("one", "two") for name, value in interop.from_hf(hf_head(0)).items()}
    with pytest.raises(ValueError, match="'two' and another cell are both mapped to 'hc_head_fn'"):
        interop.model_to_hf(params, {"one": "hc_head_{p}", "two": "hc_head_{p}"})


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"blocks.{i}.pre": "layers.{i}.fn"}, "must have {p} once"),
        ({"blocks.{p}.pre": "layers.{p}.fn"}, "{p} may not"),
        ({"blocks.{i}.pre": "layers.{j}.{p}"}, "must have the same words in braces"),
        ({"blocks.{i}.pre": "layers.{p}"}, "must have the same words in braces"),
    ],
)
def test_names_that_make_no_sense_are_refused(names: Dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        interop.model_from_hf({}, names)
