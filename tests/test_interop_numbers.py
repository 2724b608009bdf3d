"""The numbers that other libraries compute from the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mindspore import Tensor, nn

from ms_mhc import HyperConnection, MhcHead, interop, reference
from tests.interop_models import (
    RELEASED,
    Arrays,
    D,
    N,
    Network,
    Way,
    draw,
    hf_connection,
    hf_head,
    hf_model,
    in_one_file,
    mindformers_connection,
    same_bits,
)

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


def mindformers_forward(
    version: str, tensors: Arrays, hidden: np.ndarray, out: np.ndarray, iters: int, eps: float
) -> Any:
    """HyperConnectionModule and its output cell: hidden [s, b, n*H] packed, sublayer output [s, b, H]."""
    s, b, width = hidden.shape
    n = width // out.shape[-1]
    norm = hidden / np.sqrt((hidden**2).mean(-1, keepdims=True) + eps) * tensors["rms_weight"]
    alpha = np.concatenate([np.tile(tensors[f"alpha_{k}"], c) for k, c in (("pre", n), ("post", n), ("res", n * n))])
    h = norm @ tensors["mapping_proj.weight"].T * alpha + tensors["bias"]
    h_pre, h_post, h_res = np.split(h, [n, 2 * n], axis=-1)
    h_res = h_res.reshape(s, b, n, n)
    m = np.exp(h_res - h_res.max(-1, keepdims=True))
    if version == "2.0.0":
        axes = [3, 2] * iters
    else:
        m = m / m.sum(-1, keepdims=True) + 1e-6
        axes = [2] + [3, 2] * (iters - 1)
    for axis in axes:
        m = m / (m.sum(axis, keepdims=True) + 1e-6)
    gate = sigmoid(h_pre) + (0 if version == "2.0.0" else 1e-6)
    streams = hidden.reshape(s, b, n, -1)
    mixed = m @ streams if version == "2.0.0" else m.swapaxes(-1, -2) @ streams
    new = mixed + 2 * sigmoid(h_post)[..., None] * out[:, :, None]
    return (gate[:, :, None] @ streams)[:, :, 0], new.reshape(s, b, width)


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


@pytest.mark.parametrize(
    ("version", "iters", "settings"),
    [("2.0.0", 100, {"recipe": "paper", "hc_eps": 0.0}), ("2.1.0", 3, {"recipe": "deepseek_v4", "hc_eps": 1e-6})],
)
def test_numbers_are_those_of_mindspore_transformers(way: Way, version: str, iters: int, settings: Any) -> None:
    """2.0.0 with a Sinkhorn that has converged: it begins with what are columns here."""
    rng, tensors = np.random.default_rng(2), mindformers_connection(2)
    hidden, out = draw(rng, 3, 2, N * D), draw(rng, 3, 2, D)
    aggregated, want = mindformers_forward(version, tensors, hidden.astype(np.float64), out, iters, eps=1e-3)
    layer = HyperConnection(N, D, Given(out), norm_eps=1e-3, num_iters=iters, use_gamma=True, **settings)
    write(layer.pre, interop.from_mindformers(tensors, version=version))
    streams = Tensor(hidden.reshape(3, 2, N, D))
    assert np.allclose(way(layer)(streams).asnumpy().reshape(want.shape), want, atol=5e-5)
    assert np.allclose(way(layer.pre)(streams)[0].asnumpy(), aggregated, atol=2e-5)


def test_the_versions_of_mindspore_transformers_differ_by_more_than_rounding() -> None:
    """Why a version is asked for: the same tensors, read as the other one's."""
    rng, tensors = np.random.default_rng(2), mindformers_connection(2)
    hidden, out = draw(rng, 3, 2, N * D), draw(rng, 3, 2, D)
    _, old = mindformers_forward("2.0.0", tensors, hidden, out, 20, eps=1e-6)
    _, new = mindformers_forward("2.1.0", tensors, hidden, out, 20, eps=1e-6)
    assert np.abs(old - new).max() > 0.3


def test_mindspore_transformers_h_res_is_the_transpose_of_ours_before_sinkhorn() -> None:
    """Logits, so that no Sinkhorn blurs it: theirs at (i, j) is ours at (j, i)."""
    tensors, x = mindformers_connection(3), draw(np.random.default_rng(4), 5, N, D)

    def logits(**options: str) -> np.ndarray:
        params = interop.from_mindformers(tensors, **options)
        return reference.mhc_pre(x, params["phi"], params["alpha"], params["bias"]).h_res

    assert np.allclose(logits(mixing="h_res @ x"), logits(mixing="h_res.T @ x").swapaxes(-1, -2))
    params = interop.from_mindformers(tensors, version="2.0.0")
    assert params["bias"][2 * N + 1] == tensors["bias"][2 * N + N]
    assert same_bits(interop.from_mindformers(tensors, mixing="h_res.T @ x")["phi"], tensors["mapping_proj.weight"])


def test_gamma_is_the_rms_weight() -> None:
    tensors = mindformers_connection(5)
    tensors["rms_weight"] = draw(np.random.default_rng(6), N * D)
    rng = np.random.default_rng(7)
    hidden, out = draw(rng, 3, 2, N * D), draw(rng, 3, 2, D)
    aggregated, _ = mindformers_forward("2.0.0", tensors, hidden.astype(np.float64), out, iters=1, eps=1e-3)
    params = interop.from_mindformers(tensors, version="2.0.0")
    got = reference.mhc_pre(hidden.reshape(3, 2, N, D), **params, norm_eps=1e-3, hc_eps=0)
    assert np.allclose(got.h_in, aggregated)


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
