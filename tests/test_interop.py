"""Weights of other libraries: names, layouts, files, and the numbers that those libraries compute from them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

import mindspore as ms
import ml_dtypes
import numpy as np
import pytest
from mindspore import Tensor, nn
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from ms_mhc import HyperConnection, MhcHead, MhcPre, interop, reference

Way = Callable[[Any], Any]
Arrays = Dict[str, np.ndarray]
N, D = 4, 6
F = N * N + 2 * N
BF16 = ml_dtypes.bfloat16


def same_bits(got: np.ndarray, want: np.ndarray) -> bool:
    return got.dtype == want.dtype and got.shape == want.shape and got.tobytes() == want.tobytes()


def draw(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def hf_connection(seed: int, n: int = N, d: int = D) -> Arrays:
    rng, f = np.random.default_rng(seed), n * n + 2 * n
    return {"fn": draw(rng, f, n * d) / 3, "base": draw(rng, f), "scale": draw(rng, 3)}


def hf_head(seed: int, n: int = N, d: int = D) -> Arrays:
    rng = np.random.default_rng(seed)
    return {"fn": draw(rng, n, n * d) / 3, "base": draw(rng, n), "scale": draw(rng, 1)}


def mindformers_connection(seed: int, n: int = N, d: int = D) -> Arrays:
    rng, f = np.random.default_rng(seed), n * n + 2 * n
    alphas = {f"alpha_{name}": draw(rng, 1) for name in ("pre", "post", "res")}
    weight = {"mapping_proj.weight": draw(rng, f, n * d) / 3}
    return {**weight, **alphas, "bias": draw(rng, f), "rms_weight": np.ones(n * d, np.float32)}


# What each library computes, written down from its own formulas in its own layout.


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z))


def hf_forward(tensors: Arrays, hidden: np.ndarray, out: np.ndarray, iters: int, rms_eps: float, hc_eps: float) -> Any:
    """DeepSeek-V4 of Transformers: hidden [B, S, hc, D], sublayer output [B, S, D]."""
    batch, seq, hc, _ = hidden.shape
    flat = hidden.reshape(batch, seq, -1)
    flat = flat / np.sqrt((flat**2).mean(-1, keepdims=True) + rms_eps)
    mix = flat @ tensors["fn"].T
    pre_scale, post_scale, comb_scale = tensors["scale"]
    pre_b, post_b, comb_b = np.split(tensors["base"], [hc, 2 * hc])
    pre_w, post_w, comb_w = np.split(mix, [hc, 2 * hc], axis=-1)
    pre = sigmoid(pre_w * pre_scale + pre_b) + hc_eps
    post = 2 * sigmoid(post_w * post_scale + post_b)
    logits = comb_w.reshape(batch, seq, hc, hc) * comb_scale + comb_b.reshape(hc, hc)
    comb = np.exp(logits - logits.max(-1, keepdims=True))
    comb = comb / comb.sum(-1, keepdims=True) + hc_eps
    comb = comb / (comb.sum(-2, keepdims=True) + hc_eps)
    for _ in range(iters - 1):
        comb = comb / (comb.sum(-1, keepdims=True) + hc_eps)
        comb = comb / (comb.sum(-2, keepdims=True) + hc_eps)
    collapsed = (pre[..., None] * hidden).sum(2)
    return collapsed, post[..., None] * out[..., None, :] + comb.transpose(0, 1, 3, 2) @ hidden


def hf_head_forward(tensors: Arrays, hidden: np.ndarray, rms_eps: float, hc_eps: float) -> np.ndarray:
    flat = hidden.reshape(*hidden.shape[:2], -1)
    mixes = flat / np.sqrt((flat**2).mean(-1, keepdims=True) + rms_eps) @ tensors["fn"].T
    return ((sigmoid(mixes * tensors["scale"] + tensors["base"]) + hc_eps)[..., None] * hidden).sum(2)


def mindformers_forward(tensors: Arrays, hidden: np.ndarray, out: np.ndarray, iters: int, eps: float) -> Any:
    """HyperConnectionModule and its output cell: hidden [s, b, n*H] packed, sublayer output [s, b, H]."""
    s, b, width = hidden.shape
    n = width // out.shape[-1]
    norm = hidden / np.sqrt((hidden**2).mean(-1, keepdims=True) + eps) * tensors["rms_weight"]
    alpha = np.concatenate([np.tile(tensors[f"alpha_{k}"], c) for k, c in (("pre", n), ("post", n), ("res", n * n))])
    h = norm @ tensors["mapping_proj.weight"].T * alpha + tensors["bias"]
    h_pre, h_post, h_res = np.split(h, [n, 2 * n], axis=-1)
    h_res = h_res.reshape(s, b, n, n)
    m = np.exp(h_res - h_res.max(-1, keepdims=True))
    for _ in range(iters):
        m = m / (m.sum(3, keepdims=True) + 1e-6)
        m = m / (m.sum(2, keepdims=True) + 1e-6)
    streams = hidden.reshape(s, b, n, -1)
    aggregated = (sigmoid(h_pre)[:, :, None] @ streams)[:, :, 0]
    new = m @ streams + 2 * sigmoid(h_post)[..., None] * out[:, :, None]
    return aggregated, new.reshape(s, b, width)


class Given(nn.Cell):
    """A branch that remembers what it was given and returns what it was told."""

    def __init__(self, out: np.ndarray) -> None:
        super().__init__()
        self.out = Tensor(out.astype(np.float32))

    def construct(self, h: Tensor) -> Tensor:
        return self.out + 0 * h


def write(cell: nn.Cell, params: Arrays) -> None:
    for name, value in params.items():
        getattr(cell, name).set_data(Tensor(value))


@pytest.mark.parametrize(("n", "iters", "eps"), [(1, 2, 1e-6), (2, 1, 1e-2), (4, 20, 1e-6), (6, 3, 1e-3)])
def test_numbers_are_those_of_hugging_face(way: Way, n: int, iters: int, eps: float) -> None:
    rng, tensors = np.random.default_rng(n), hf_connection(n, n)
    hidden, out = draw(rng, 2, 3, n, D), draw(rng, 2, 3, D)
    collapsed, want = hf_forward(tensors, hidden.astype(np.float64), out, iters, rms_eps=10 * eps, hc_eps=eps)
    layer = HyperConnection(n, D, Given(out), norm_eps=10 * eps, hc_eps=eps, sinkhorn_eps=eps, num_iters=iters)
    write(layer.pre, interop.from_hf(tensors))
    assert np.allclose(way(layer)(Tensor(hidden)).asnumpy(), want, atol=2e-5)
    assert np.allclose(way(layer.pre)(Tensor(hidden))[0].asnumpy(), collapsed, atol=2e-5)


def test_numbers_of_the_head_are_those_of_hugging_face(way: Way) -> None:
    tensors, hidden = hf_head(0), draw(np.random.default_rng(1), 2, 3, N, D)
    head = MhcHead(N, D, norm_eps=1e-2, hc_eps=1e-3)
    write(head, interop.from_hf(tensors))
    want = hf_head_forward(tensors, hidden.astype(np.float64), 1e-2, 1e-3)
    assert np.allclose(way(head)(Tensor(hidden)).asnumpy(), want, atol=1e-5)


def test_numbers_are_those_of_mindspore_transformers(way: Way) -> None:
    """With the direction of its residual matrix, which is not ours, and a Sinkhorn that has converged."""
    rng, tensors = np.random.default_rng(2), mindformers_connection(2)
    hidden, out = draw(rng, 3, 2, N * D), draw(rng, 3, 2, D)
    aggregated, want = mindformers_forward(tensors, hidden.astype(np.float64), out, iters=100, eps=1e-3)
    layer = HyperConnection(N, D, Given(out), norm_eps=1e-3, hc_eps=0.0, recipe="paper", num_iters=100, use_gamma=True)
    write(layer.pre, interop.from_mindformers(tensors))
    streams = Tensor(hidden.reshape(3, 2, N, D))
    assert np.allclose(way(layer)(streams).asnumpy().reshape(want.shape), want, atol=5e-5)
    assert np.allclose(way(layer.pre)(streams)[0].asnumpy(), aggregated, atol=2e-5)


def test_mindspore_transformers_h_res_is_the_transpose_of_ours_before_sinkhorn() -> None:
    """Logits, so that no Sinkhorn blurs it: theirs at (i, j) is ours at (j, i)."""
    tensors, x = mindformers_connection(3), draw(np.random.default_rng(4), 5, N, D)

    def logits(**options: str) -> np.ndarray:
        params = interop.from_mindformers(tensors, **options)
        return reference.mhc_pre(x, params["phi"], params["alpha"], params["bias"]).h_res

    assert np.allclose(logits(mixing="h_res @ x"), logits(mixing="h_res.T @ x").swapaxes(-1, -2))
    assert interop.from_mindformers(tensors)["bias"][2 * N + 1] == tensors["bias"][2 * N + N]
    assert same_bits(interop.from_mindformers(tensors, mixing="h_res.T @ x")["phi"], tensors["mapping_proj.weight"])


def test_gamma_is_the_rms_weight() -> None:
    tensors = mindformers_connection(5)
    tensors["rms_weight"] = draw(np.random.default_rng(6), N * D)
    rng = np.random.default_rng(7)
    hidden, out = draw(rng, 3, 2, N * D), draw(rng, 3, 2, D)
    aggregated, _ = mindformers_forward(tensors, hidden.astype(np.float64), out, iters=1, eps=1e-3)
    params = interop.from_mindformers(tensors)
    got = reference.mhc_pre(hidden.reshape(3, 2, N, D), **params, norm_eps=1e-3, hc_eps=0)
    assert np.allclose(got.h_in, aggregated)


MINDFORMERS_HEAD = {"fn": "hc_fn.weight", "scale": "hc_scale", "base": "hc_base"}


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


def without(tensors: Arrays, name: str) -> Arrays:
    return {key: value for key, value in tensors.items() if key != name}


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
        (interop.from_mindformers, without(mindformers_connection(0), "alpha_res"), ValueError, "missing: alpha_res"),
        (interop.from_mindformers, hf_connection(0), ValueError, "missing: mapping_proj.weight"),
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


# Whole models


class Block(nn.Cell):
    def __init__(self, gamma: bool) -> None:
        super().__init__()
        self.attn = HyperConnection(N, D, nn.Dense(D, D), use_gamma=gamma)
        self.ffn = HyperConnection(N, D, nn.Dense(D, D), use_gamma=gamma)

    def construct(self, x: Tensor) -> Tensor:
        return self.ffn(self.attn(x))


class Network(nn.Cell):
    def __init__(self, layers: int = 2, gamma: bool = False) -> None:
        super().__init__()
        self.blocks = nn.CellList([Block(gamma) for _ in range(layers)])
        self.head = MhcHead(N, D)

    def construct(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


CELLS = {"attn": "blocks.{i}.attn.pre", "ffn": "blocks.{i}.ffn.pre", "head": "head"}


def mapped(names: Dict[str, str]) -> Dict[str, str]:
    return {CELLS[part]: names[part] for part in CELLS}


RELEASED, MODULES = mapped(interop.HF_NAMES), mapped(interop.TRANSFORMERS_NAMES)
MINDFORMERS = mapped(interop.MINDFORMERS_NAMES)


def hf_model(layers: int = 2, names: Dict[str, str] = RELEASED) -> Arrays:
    model = {"model.embed_tokens.weight": np.ones((3, D), np.float32)}
    for i in range(layers):
        for seed, key in ((2 * i, "blocks.{i}.attn.pre"), (2 * i + 1, "blocks.{i}.ffn.pre")):
            model.update({names[key].format(i=i, p=p): value for p, value in hf_connection(seed).items()})
    model.update({names["head"].format(p=p): value for p, value in hf_head(99).items()})
    return model


def values(network: nn.Cell) -> Arrays:
    return {name: param.asnumpy().copy() for name, param in network.parameters_and_names()}


def assert_untouched(network: nn.Cell, before: Arrays) -> None:
    after = values(network)
    assert all(same_bits(after[name], before[name]) for name in before)


def assert_loaded(network: nn.Cell, before: Arrays, layers: int = 2) -> None:
    after = values(network)
    for i in range(layers):
        for seed, part in ((2 * i, "attn"), (2 * i + 1, "ffn")):
            tensors = hf_connection(seed)
            for ours, theirs in (("phi", "fn"), ("alpha", "scale"), ("bias", "base")):
                assert same_bits(after[f"blocks.{i}.{part}.pre.{ours}"], tensors[theirs])
            branch = f"blocks.{i}.{part}.branch.weight"
            assert same_bits(after[branch], before[branch])
    for ours, theirs in (("phi", "fn"), ("scale", "scale"), ("bias", "base")):
        assert same_bits(after[f"head.{ours}"], hf_head(99)[theirs])


def test_names_in_the_release_are_those_of_deepseek_and_in_the_modules_those_of_transformers() -> None:
    released, modules = set(hf_model(1)), set(hf_model(1, MODULES))
    assert {"layers.0.hc_attn_fn", "layers.0.hc_ffn_scale", "hc_head_base"} <= released
    assert {"model.layers.0.attn_hc.fn", "model.layers.0.ffn_hc.scale", "model.hc_head.hc_base"} <= modules


@pytest.mark.parametrize("names", [RELEASED, MODULES])
def test_a_model_as_a_dict_round_trips_bit_for_bit(names: Dict[str, str]) -> None:
    model = hf_model(3, names)
    params = interop.model_from_hf(model, names)
    assert set(params) == {name for name in values(Network(3)) if ".branch." not in name}
    back = interop.model_to_hf(params, names)
    assert set(back) == set(model) - {"model.embed_tokens.weight"}
    assert all(same_bits(back[name], model[name]) for name in back)


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


# Files


def in_one_file(folder: Path, model: Arrays) -> Path:
    save_file(model, folder / "model.safetensors")
    return folder / "model.safetensors"


def in_shards(folder: Path, model: Arrays) -> Path:
    """As Hugging Face writes them, here one tensor in turn to each of three files."""
    shards: List[Arrays] = [{}, {}, {}]
    weight_map = {}
    for index, (name, value) in enumerate(model.items()):
        shards[index % 3][name] = value
        weight_map[name] = f"model-{index % 3 + 1:05}-of-00003.safetensors"
    for index, shard in enumerate(shards):
        save_file(shard, folder / f"model-{index + 1:05}-of-00003.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


@pytest.mark.parametrize("store", [in_one_file, in_shards])
@pytest.mark.parametrize("names", [RELEASED, MODULES])
def test_a_network_loads_a_checkpoint_and_saves_the_same_one(tmp_path: Path, store: Any, names: Any) -> None:
    network, model = Network(), hf_model(names=names)
    before = values(network)
    read = interop.load_hf(network, store(tmp_path, model), names)
    assert set(read) == set(model) - {"model.embed_tokens.weight"}
    assert_loaded(network, before)
    interop.save_hf(network, tmp_path / "out" / "again.safetensors", names)
    back = load_file(tmp_path / "out" / "again.safetensors")
    assert set(back) == set(read)
    assert all(same_bits(back[name], model[name]) for name in back)
    with safe_open(tmp_path / "out" / "again.safetensors", framework="numpy") as file:
        assert file.metadata() == {"format": "pt"}  # without it Transformers refuses the file


def test_sharded_files_have_an_index_that_others_can_read(tmp_path: Path) -> None:
    network = Network()
    interop.load_hf(network, in_one_file(tmp_path, hf_model()), RELEASED)
    out = tmp_path / "out"
    written = interop.save_hf(network, out, RELEASED, max_shard_bytes=4000)
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert list(index["weight_map"]) == written
    files = sorted(set(index["weight_map"].values()))
    assert files == [path.name for path in sorted(out.glob("*.safetensors"))]
    assert len(files) > 2
    sizes = [sum(array.nbytes for array in load_file(out / file).values()) for file in files]
    assert max(sizes) <= 4000
    assert sum(sizes) == index["metadata"]["total_size"]
    assert sorted(path.name for path in out.iterdir()) == [*files, "model.safetensors.index.json"]

    other = Network()
    before = values(other)
    interop.load_hf(other, out, RELEASED)
    assert_loaded(other, before)
    interop.load_hf(other, out / "model.safetensors.index.json", RELEASED)


def test_bfloat16_checkpoints_are_widened_exactly(tmp_path: Path) -> None:
    model = {name: value.astype(BF16) for name, value in hf_model().items()}
    network = Network()
    interop.load_hf(network, in_one_file(tmp_path, model), RELEASED)
    after = values(network)
    assert same_bits(after["blocks.1.ffn.pre.phi"], model["layers.1.hc_ffn_fn"].astype(np.float32))
    assert same_bits(after["head.bias"], model["hc_head_base"].astype(np.float32))


@pytest.mark.parametrize("mixing", ["h_res @ x", "h_res.T @ x"])
@pytest.mark.parametrize("shard", [None, 2000])
def test_mindspore_transformers_checkpoints_round_trip(tmp_path: Path, mixing: str, shard: Optional[int]) -> None:
    model: Arrays = {}
    for i in range(2):
        for seed, part in ((2 * i, "attn"), (2 * i + 1, "ffn")):
            connection = mindformers_connection(seed)
            model.update({f"decoder.layers.{i}.{part}_hc.{name}": value for name, value in connection.items()})
    model.update({f"decoder.hc_head.{MINDFORMERS_HEAD[name]}": value for name, value in hf_head(0).items()})
    network = Network(gamma=True)
    interop.load_mindformers(network, in_shards(tmp_path, model), MINDFORMERS, mixing=mixing)
    pre = network.blocks[1].attn.pre
    params = interop.from_mindformers(mindformers_connection(2), mixing=mixing)
    assert all(same_bits(getattr(pre, name).asnumpy(), value) for name, value in params.items())

    out = tmp_path / ("out" if shard else "out.safetensors")
    interop.save_mindformers(network, out, MINDFORMERS, mixing=mixing, max_shard_bytes=shard)
    back: Arrays = {}
    for path in [out] if shard is None else out.glob("*.safetensors"):
        back.update(load_file(path))
    assert set(back) == set(model)
    assert all(same_bits(back[name], model[name]) for name in model)


def test_rms_weight_of_ones_needs_no_gamma_and_another_one_does(tmp_path: Path) -> None:
    names = {"": "hc.{p}"}
    tensors = {f"hc.{name}": value for name, value in mindformers_connection(0).items()}
    cell = MhcPre(N, D)
    interop.load_mindformers(cell, in_one_file(tmp_path, tensors), names)
    before = values(cell)
    tensors["hc.rms_weight"] = np.full(N * D, 2, np.float32)
    in_one_file(tmp_path, tensors)
    with pytest.raises(
        ValueError, match=r"hc\.rms_weight is not all ones, but .* has no gamma: build it with use_gamma"
    ):
        interop.load_mindformers(cell, tmp_path, names)
    assert_untouched(cell, before)


def test_a_gamma_becomes_ones_where_the_checkpoint_has_none(tmp_path: Path) -> None:
    network = Network(gamma=True)
    network.blocks[0].attn.pre.gamma.set_data(Tensor(np.full((N, D), 3, np.float32)))
    interop.load_hf(network, in_one_file(tmp_path, hf_model()), RELEASED)
    assert np.all(network.blocks[0].attn.pre.gamma.asnumpy() == 1)
    interop.save_hf(network, tmp_path / "out.safetensors", RELEASED)


def change(name: str, value: Any) -> Callable[[Arrays], Arrays]:
    return lambda model: {**model, name: value}


BROKEN: List[Tuple[str, Callable[[Arrays], Arrays], List[str]]] = [
    ("missing", lambda model: without(model, "layers.1.hc_attn_scale"), ["missing: layers.1.hc_attn_scale"]),
    ("extra part", change("layers.0.hc_attn_gain", np.ones(1, np.float32)), ["unexpected: layers.0.hc_attn_gain"]),
    ("extra layer", lambda _: hf_model(3), ["unexpected: layers.2.hc_attn_fn", "unexpected: layers.2.hc_ffn_scale"]),
    (
        "shape",
        change("layers.0.hc_ffn_base", np.ones(3, np.float32)),
        ["layers.0.hc_ffn_base has shape [3]; expected [24]"],
    ),
    (
        "other n",
        change("hc_head_fn", np.ones((2, 2 * D), np.float32)),
        ["hc_head_fn has shape [2, 12]; expected [4, 24]"],
    ),
    ("dtype", change("hc_head_base", np.ones(N, np.float64)), ["hc_head_base has dtype F64; accepted: float32"]),
    ("fp8", change("hc_head_base", np.ones(N, ml_dtypes.float8_e4m3fn)), ["hc_head_base has dtype F8_E4M3"]),
    (
        "several at once",
        lambda model: change("hc_head_base", np.ones(9, np.int32))(without(model, "layers.0.hc_attn_fn")),
        ["missing: layers.0.hc_attn_fn (for blocks.0.attn.pre)", "hc_head_base has shape [9]", "dtype I32"],
    ),
]


@pytest.mark.parametrize("store", [in_one_file, in_shards])
@pytest.mark.parametrize(("broken", "messages"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_a_checkpoint_that_does_not_fit_is_named_and_nothing_is_written(
    tmp_path: Path, store: Any, broken: Any, messages: List[str]
) -> None:
    network = Network()
    before = values(network)
    with pytest.raises(ValueError, match="nothing was written") as error:
        interop.load_hf(network, store(tmp_path, broken(hf_model())), RELEASED)
    assert all(message in str(error.value) for message in messages), str(error.value)
    assert_untouched(network, before)


def test_further_layers_are_let_pass_when_asked(tmp_path: Path) -> None:
    network = Network()
    before = values(network)
    interop.load_hf(network, in_one_file(tmp_path, hf_model(5)), RELEASED, allow_extra=True)
    assert_loaded(network, before)


def truncated(folder: Path) -> str:
    data = (folder / "model-00002-of-00003.safetensors").read_bytes()
    (folder / "model-00002-of-00003.safetensors").write_bytes(data[:-4])
    return "model-00002-of-00003.safetensors is damaged"


def cut_in_the_header(folder: Path) -> str:
    (folder / "model-00002-of-00003.safetensors").write_bytes(b"\x80\x00")
    return "model-00002-of-00003.safetensors is damaged"


def missing_shard(folder: Path) -> str:
    (folder / "model-00003-of-00003.safetensors").unlink()
    return "model-00003-of-00003.safetensors is missing; the index says it holds"


def edited_index(folder: Path, edit: Callable[[Any], Any]) -> None:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps(edit(json.loads(path.read_text()))))


def wrong_shard(folder: Path) -> str:
    def edit(index: Any) -> Any:
        index["weight_map"]["hc_head_fn"] = index["weight_map"]["hc_head_base"]
        return index

    edited_index(folder, edit)
    return "does not hold hc_head_fn, which the index says it does"


def shard_elsewhere(folder: Path) -> str:
    def edit(index: Any) -> Any:
        index["weight_map"]["hc_head_fn"] = "../model.safetensors"
        return index

    edited_index(folder, edit)
    return "puts hc_head_fn into '../model.safetensors'"


def no_weight_map(folder: Path) -> str:
    edited_index(folder, lambda index: [index])
    return "model.safetensors.index.json is no index of a checkpoint"


def index_that_is_no_json(folder: Path) -> str:
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {')
    return "model.safetensors.index.json is no index of a checkpoint"


def nothing_but_shards(folder: Path) -> str:
    (folder / "model.safetensors.index.json").unlink()
    return "has neither model.safetensors.index.json nor model.safetensors, and 3 other"


@pytest.mark.parametrize(
    "damage",
    [
        truncated,
        cut_in_the_header,
        missing_shard,
        wrong_shard,
        shard_elsewhere,
        no_weight_map,
        index_that_is_no_json,
        nothing_but_shards,
    ],
)
def test_a_damaged_checkpoint_is_named_and_nothing_is_written(tmp_path: Path, damage: Any) -> None:
    network = Network()
    before = values(network)
    in_shards(tmp_path, hf_model())
    message = damage(tmp_path)
    with pytest.raises((ValueError, FileNotFoundError), match=re.escape(message)):
        interop.load_hf(network, tmp_path, RELEASED)
    assert_untouched(network, before)


def test_only_the_files_that_are_needed_are_opened(tmp_path: Path) -> None:
    network = Network()
    before = values(network)
    in_one_file(tmp_path, without(hf_model(), "model.embed_tokens.weight"))
    weight_map = dict.fromkeys(hf_model(), "model.safetensors")
    weight_map["model.embed_tokens.weight"] = "not-downloaded.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    interop.load_hf(network, tmp_path, RELEASED)
    assert_loaded(network, before)


def test_a_checkpoint_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no checkpoint .*nowhere"):
        interop.load_hf(Network(), tmp_path / "nowhere", RELEASED)


def test_names_may_be_a_function(tmp_path: Path) -> None:
    """Here one that counts from the other end, which no pattern can."""

    def names(cell: str) -> Optional[str]:
        if cell == "head":
            return None
        _, i, part, _ = cell.split(".")
        return f"layers.{1 - int(i)}.hc_{part}_{{p}}"

    network, model = Network(), hf_model()
    interop.load_hf(network, in_one_file(tmp_path, model), names)
    assert same_bits(network.blocks[0].ffn.pre.phi.asnumpy(), model["layers.1.hc_ffn_fn"])
    read = interop.save_hf(network, tmp_path / "out.safetensors", names)
    assert "layers.0.hc_attn_fn" in read
    assert "hc_head_fn" not in read
    in_one_file(tmp_path, change("layers.0.hc_attn_gain", np.ones(1, np.float32))(model))
    with pytest.raises(ValueError, match=r"unexpected: layers\.0\.hc_attn_gain"):
        interop.load_hf(network, tmp_path / "model.safetensors", names)


@pytest.mark.parametrize(
    ("network", "names", "error", "message"),
    [
        (Network(), without(RELEASED, "head"), ValueError, "names says nothing about head; map them"),
        (Network(), lambda cell: "hc_{p}", ValueError, "another cell are both mapped to 'hc_{p}'"),
        (Network(), lambda cell: cell, ValueError, "which must have {p} once"),
        (nn.Dense(2, 2), RELEASED, ValueError, "has no MhcPre and no MhcHead"),
        (Network(), dict.fromkeys(RELEASED), ValueError, "has no MhcPre and no MhcHead"),
        (Network(), [("head", "hc_head_{p}")], TypeError, "names must be a mapping"),
        ("network", RELEASED, TypeError, "network must be a mindspore.nn.Cell"),
    ],
)
def test_names_must_account_for_every_cell(tmp_path: Path, network: Any, names: Any, error: type, message: str) -> None:
    path = in_one_file(tmp_path, hf_model())
    with pytest.raises(error, match=re.escape(message)):
        interop.load_hf(network, path, names)
    with pytest.raises(error, match=re.escape(message)):
        interop.save_hf(network, tmp_path / "out.safetensors", names)
    assert not (tmp_path / "out.safetensors").exists()


def test_parameters_that_are_not_float32_are_not_written(tmp_path: Path) -> None:
    network = Network()
    network.head.phi.set_dtype(ms.float16)
    before = values(network)
    with pytest.raises(ValueError, match=r"the network's head\.phi is Float16; only Float32 parameters are written"):
        interop.load_hf(network, in_one_file(tmp_path, hf_model()), RELEASED)
    assert_untouched(network, before)


def test_where_to_save_is_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must end with \.safetensors"):
        interop.save_hf(Network(), tmp_path / "out", RELEASED)
    with pytest.raises(ValueError, match="max_shard_bytes must be >= 1"):
        interop.save_hf(Network(), tmp_path / "out", RELEASED, max_shard_bytes=0)
    network = Network(gamma=True)
    network.blocks[0].ffn.pre.gamma.set_data(Tensor(np.full((N, D), 3, np.float32)))
    with pytest.raises(ValueError, match="gamma is not all ones"):
        interop.save_hf(network, tmp_path / "out.safetensors", RELEASED)
    assert list(tmp_path.iterdir()) == []


def test_a_network_that_has_run_before_computes_what_the_checkpoint_says(way: Way, tmp_path: Path) -> None:
    network, x = Network(1), Tensor(draw(np.random.default_rng(8), 2, 3, N, D))
    run = way(network)
    stale = run(x).asnumpy()
    interop.load_hf(network, in_one_file(tmp_path, hf_model(1)), RELEASED)
    got = run(x).asnumpy()
    hidden = x.asnumpy().astype(np.float64)
    for seed, branch in ((0, network.blocks[0].attn.branch), (1, network.blocks[0].ffn.branch)):
        collapsed, _ = hf_forward(hf_connection(seed), hidden, np.zeros((2, 3, D)), 20, 1e-6, 1e-6)
        out = collapsed @ branch.weight.asnumpy().T + branch.bias.asnumpy()
        _, hidden = hf_forward(hf_connection(seed), hidden, out, 20, 1e-6, 1e-6)
    want = hf_head_forward(hf_head(99), hidden, 1e-6, 1e-6)
    assert np.allclose(got, want, atol=5e-5)
    assert not np.allclose(stale, want, atol=1e-2)
