"""Small layers, networks and checkpoints, in the layouts of the libraries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable, Dict, List

import ml_dtypes
import numpy as np
from mindspore import Tensor, nn
from safetensors.numpy import save_file

from ms_mhc import HyperConnection, MhcHead, interop

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


def without(tensors: Arrays, name: str) -> Arrays:
    return {key: value for key, value in tensors.items() if key != name}


def change(name: str, value: Any) -> Callable[[Arrays], Arrays]:
    return lambda model: {**model, name: value}


MINDFORMERS_HEAD = {"fn": "hc_fn.weight", "scale": "hc_scale", "base": "hc_base"}


class Block(nn.Cell):
    def __init__(self, gamma: bool, settings: Dict[str, Any]) -> None:
        super().__init__()
        self.attn = HyperConnection(N, D, nn.Dense(D, D), use_gamma=gamma, **settings)
        self.ffn = HyperConnection(N, D, nn.Dense(D, D), use_gamma=gamma, **settings)

    def construct(self, x: Tensor) -> Tensor:
        return self.ffn(self.attn(x))


class Network(nn.Cell):
    def __init__(self, layers: int = 2, gamma: bool = False, **settings: Any) -> None:
        super().__init__()
        self.blocks = nn.CellList([Block(gamma, settings) for _ in range(layers)])
        self.head = MhcHead(N, D)

    def construct(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


CELLS = {"attn": "blocks.{i}.attn.pre", "ffn": "blocks.{i}.ffn.pre", "head": "head"}


def mapped(names: Dict[str, str]) -> Dict[str, str]:
    return {CELLS[part]: names[part] for part in CELLS}


RELEASED, MODULES = mapped(interop.HF_NAMES), mapped(interop.TRANSFORMERS_NAMES)
SAVED = mapped(interop.TRANSFORMERS_SAVED_NAMES)
MINDFORMERS = mapped(interop.MINDFORMERS_NAMES)


def hf_model(layers: int = 2, names: Dict[str, str] = RELEASED) -> Arrays:
    model = {"model.embed_tokens.weight": np.ones((3, D), np.float32)}
    for i in range(layers):
        for seed, key in ((2 * i, "blocks.{i}.attn.pre"), (2 * i + 1, "blocks.{i}.ffn.pre")):
            model.update({names[key].format(i=i, p=p): value for p, value in hf_connection(seed).items()})
    model.update({names["head"].format(p=p): value for p, value in hf_head(99).items()})
    return model


def mindformers_model(layers: int = 2) -> Arrays:
    model: Arrays = {}
    for i in range(layers):
        for seed, part in ((2 * i, "attn"), (2 * i + 1, "ffn")):
            connection = mindformers_connection(seed)
            model.update({f"decoder.layers.{i}.{part}_hc.{name}": value for name, value in connection.items()})
    model.update({f"decoder.hc_head.{MINDFORMERS_HEAD[name]}": value for name, value in hf_head(0).items()})
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
