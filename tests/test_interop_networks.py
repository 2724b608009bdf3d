"""A network's weights from a checkpoint, and into one."""

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
from safetensors.numpy import load_file

from ms_mhc import HyperConnection, MhcPre, interop
from tests.interop_models import (
    BF16,
    CELLS,
    MINDFORMERS,
    MODULES,
    RELEASED,
    SAVED,
    Arrays,
    D,
    N,
    Network,
    assert_loaded,
    assert_untouched,
    change,
    hf_connection,
    hf_head,
    hf_model,
    in_one_file,
    in_shards,
    mindformers_connection,
    mindformers_model,
    same_bits,
    values,
    without,
)


@pytest.mark.parametrize("store", [in_one_file, in_shards])
@pytest.mark.parametrize("names", [RELEASED, MODULES, SAVED])
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


@pytest.mark.parametrize("has", [RELEASED, MODULES, SAVED])
@pytest.mark.parametrize("named", [RELEASED, MODULES, SAVED])
def test_any_of_the_three_namings_reads_any_checkpoint(
    tmp_path: Path, has: Dict[str, str], named: Dict[str, str]
) -> None:
    network, model = Network(), hf_model(names=has)
    before = values(network)
    path = in_one_file(tmp_path, model)
    assert set(interop.load_hf(network, path, named)) == set(model) - {"model.embed_tokens.weight"}
    assert_loaded(network, before)
    templates = {f"blocks.{i}.{part}.pre": named[CELLS[part]] for i in range(2) for part in ("attn", "ffn")}
    again = Network()
    interop.load_hf(again, path, lambda cell: templates.get(cell, named["head"]).replace("{i}", cell[7:8]))
    assert_loaded(again, values(again))


def test_what_is_wrong_is_named_as_the_checkpoint_spells_it(tmp_path: Path) -> None:
    model = without(hf_model(names=SAVED), "model.layers.1.hc_attn_scale")
    model["model.layers.0.hc_ffn_base"] = np.ones(3, np.float32)
    with pytest.raises(ValueError, match="nothing was written") as error:
        interop.load_hf(Network(), in_one_file(tmp_path, model), RELEASED)
    assert "missing: model.layers.1.hc_attn_scale (for blocks.1.attn.pre)" in str(error.value)
    assert "model.layers.0.hc_ffn_base has shape [3]" in str(error.value)


def test_one_tensor_under_two_names_is_refused(tmp_path: Path) -> None:
    model = {**hf_model(), "model.layers.0.attn_hc.fn": np.zeros((24, 24), np.float32)}
    with pytest.raises(ValueError, match=r"unexpected: model\.layers\.0\.attn_hc\.fn, which no cell takes"):
        interop.load_hf(Network(), in_one_file(tmp_path, model), RELEASED)


def test_names_of_ones_own_that_look_alike_are_left_as_they_are(tmp_path: Path) -> None:
    names = {"blocks.{i}.attn.pre": "layers.{i}.hc_attn_{p}", "blocks.{i}.ffn.pre": "model.layers.{i}.hc_attn_{p}"}
    model = hf_model(names={**names, "head": "hc_head_{p}"})
    network = Network()
    before = values(network)
    interop.load_hf(network, in_one_file(tmp_path, model), {**names, "head": "hc_head_{p}"})
    assert_loaded(network, before)
    half = {name: value for name, value in model.items() if not name.startswith("model.layers")}
    with pytest.raises(ValueError, match=r"missing: model\.layers\.0\.hc_attn_fn \(for blocks\.0\.ffn\.pre\)"):
        interop.load_hf(network, in_one_file(tmp_path, half), {**names, "head": "hc_head_{p}"})


class AttentionOnly(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.CellList([HyperConnection(N, D, nn.Dense(D, D)) for _ in range(2)])


@pytest.mark.parametrize("names", [RELEASED, MODULES, SAVED])
def test_connections_that_the_network_lacks_are_named(tmp_path: Path, names: Dict[str, str]) -> None:
    """No pattern speaks of them, but the checkpoint's network had them."""
    path = in_one_file(tmp_path, hf_model(names=names))
    only = {"blocks.{i}.pre": interop.HF_NAMES["attn"]}
    ffn = names[CELLS["ffn"]].format(i=0, p="fn")
    with pytest.raises(ValueError, match=rf"unexpected: {re.escape(ffn)}, which no cell takes; allow_extra=True"):
        interop.load_hf(AttentionOnly(), path, only)
    assert len(interop.load_hf(AttentionOnly(), path, only, allow_extra=True)) == 6


def test_next_token_layers_may_be_left_out(tmp_path: Path) -> None:
    """Every released checkpoint has one."""
    model = hf_model()
    model.update({f"mtp.0.hc_attn_{p}": value for p, value in hf_connection(7).items()})
    model.update({f"mtp.0.hc_head_{p}": value for p, value in hf_head(8).items()})
    network = Network()
    before = values(network)
    interop.load_hf(network, in_one_file(tmp_path, model), RELEASED)
    assert_loaded(network, before)


def test_numbers_without_dimensions_are_arrays_of_one(tmp_path: Path) -> None:
    names = {"": "hc.{p}"}
    tensors = mindformers_connection(0)
    flat = {f"hc.{name}": value.reshape(()) if "alpha" in name else value for name, value in tensors.items()}
    cell = MhcPre(N, D)
    interop.load_mindformers(cell, in_one_file(tmp_path, flat), names, version="2.1.0")
    want = np.concatenate([tensors[f"alpha_{name}"] for name in ("pre", "post", "res")])
    assert same_bits(cell.alpha.asnumpy(), want)


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
    model = mindformers_model()
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
    interop.load_mindformers(cell, in_one_file(tmp_path, tensors), names, version="2.1.0")
    before = values(cell)
    tensors["hc.rms_weight"] = np.full(N * D, 2, np.float32)
    in_one_file(tmp_path, tensors)
    with pytest.raises(
        ValueError, match=r"hc\.rms_weight is not all ones, but .* has no gamma: build it with use_gamma"
    ):
        interop.load_mindformers(cell, tmp_path, names, version="2.1.0")
    assert_untouched(cell, before)


def test_a_gamma_becomes_ones_where_the_checkpoint_has_none(tmp_path: Path) -> None:
    network = Network(gamma=True)
    network.blocks[0].attn.pre.gamma.set_data(Tensor(np.full((N, D), 3, np.float32)))
    interop.load_hf(network, in_one_file(tmp_path, hf_model()), RELEASED)
    assert np.all(network.blocks[0].attn.pre.gamma.asnumpy() == 1)
    interop.save_hf(network, tmp_path / "out.safetensors", RELEASED)


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
        (Network(), lambda cell: 3, TypeError, "names must give a text or None for each cell, but gave 3 for "),
        (Network(), lambda cell: cell, ValueError, "which must have {p} once"),
        (nn.Dense(2, 2), RELEASED, ValueError, "has no MhcPre and no MhcHead"),
        (Network(), dict.fromkeys(RELEASED), ValueError, "has no MhcPre and no MhcHead"),
        (Network(), [("head", "hc_head_{p}")], TypeError, "names must be a mapping"),
        (
            Network(),
            {**RELEASED, "head": 3},
            TypeError,
            "names must map texts to texts or None, but 'head' is mapped to 3",
        ),
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
