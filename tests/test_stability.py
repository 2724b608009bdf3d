"""The gains of the mixing matrices: their definition, how a network's are found, and what recording them costs."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, Callable, List

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from mindspore.train import Model

from ms_mhc import HyperConnection, MhcPost, MhcPre, expand_streams, merge_streams, reference
from ms_mhc.stability import StabilityMonitor, amplification, measure, mixing_matrices

Way = Callable[[Any], Any]
N, D = 4, 8
# out[1] = x[0] + x[1]: one stream takes two, so the signal can double; either gradient goes to one place or to two
TO_ONE = np.array([[0.0, 1.0], [0.0, 1.0]])


def test_forward_gain_is_that_of_the_map_which_mhc_post_applies() -> None:
    gains = amplification([TO_ONE])
    x = np.ones((2, 1))
    out = reference.mhc_post(x[None], TO_ONE[None], np.zeros((1, 1)), np.zeros((1, 2)))
    assert gains.forward[0] == np.abs(out).max() == 2.0
    assert gains.backward[0] == 1.0


def test_backward_gain_is_that_of_the_gradient_of_mhc_post() -> None:
    to_both = TO_ONE.T  # stream 1 is written to both
    grad = np.ones((1, 2, 1))
    back = reference.mhc_post_backward(grad, grad, to_both[None], np.zeros((1, 1)), np.zeros((1, 2)))
    gains = amplification([to_both])
    assert gains.backward[0] == np.abs(back.grad_x).max() == 2.0
    assert gains.forward[0] == 1.0


def test_composite_gains_are_attained_by_a_signal_and_a_gradient_through_the_layers() -> None:
    rng = np.random.default_rng(0)
    layers = rng.normal(size=(5, 7, N, N))
    gains = amplification(layers)
    assert gains.forward.shape == gains.composite_backward.shape == (5, 7)

    def forward(x: np.ndarray, last: int) -> np.ndarray:
        for h in layers[: last + 1]:
            x = np.einsum("tij,ti->tj", h, x)
        return x

    def backward(g: np.ndarray, first: int) -> np.ndarray:
        for h in layers[first:][::-1]:
            g = np.einsum("tij,tj->ti", h, g)
        return g

    signs = np.array(np.meshgrid(*[[-1.0, 1.0]] * N)).reshape(N, -1).T  # where a largest entry of 1 is amplified most
    for l in range(5):  # noqa: E741
        attained = np.max([np.abs(forward(np.tile(s, (7, 1)), l)).max(-1) for s in signs], axis=0)
        assert np.allclose(gains.composite_forward[l], attained)
        attained = np.max([np.abs(backward(np.tile(s, (7, 1)), l)).max(-1) for s in signs], axis=0)
        assert np.allclose(gains.composite_backward[l], attained)


def test_doubly_stochastic_matrices_stay_at_one_where_raw_ones_grow_with_depth() -> None:
    logits = np.random.default_rng(1).normal(size=(24, 50, N, N))
    constrained = amplification(reference.mhc_sinkhorn(logits, num_iters=50))
    assert np.allclose(np.stack(constrained), 1.0, atol=2e-4)
    raw = amplification(np.eye(N) + 0.3 * logits)
    growth = raw.composite_forward.mean(axis=-1)
    assert growth[-1] > 2 * growth[12] > 4 * growth[0]


def test_a_nan_is_seen_and_stays_with_its_token() -> None:
    layers = np.tile(np.eye(N), (3, 2, 1, 1))
    layers[1, 0, 0, 0] = np.nan
    gains = amplification(layers)
    assert np.isnan(gains.composite_forward[:, 0]).tolist() == [False, True, True]
    assert np.isnan(gains.composite_backward[:, 0]).tolist() == [True, True, False]
    assert np.all(np.stack(gains)[:, :, 1] == 1.0)


@pytest.mark.parametrize(
    ("matrices", "message"),
    [
        ([], "no matrices"),
        ([np.zeros((2, 3))], r"matrix 0 has shape \(2, 3\); accepted: \[..., N, N\]"),
        ([np.eye(2), np.eye(3)], r"matrix 1 has shape \(3, 3\), but matrix 0 has \(2, 2\)"),
    ],
)
def test_matrices_that_do_not_fit_are_refused(matrices: List[np.ndarray], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        amplification(matrices)


class Branch(nn.Cell):
    def __init__(self, dropout: float = 0.5) -> None:
        super().__init__()
        self.dense = nn.Dense(D, D, activation="tanh")
        self.dropout = nn.Dropout(p=dropout)

    def construct(self, h: Tensor) -> Tensor:
        return self.dropout(self.dense(h))


class Unconstrained(nn.Cell):
    """Hyper-connections as they were before mHC: the matrices as they come out of MhcPre."""

    def __init__(self) -> None:
        super().__init__()
        self.pre = MhcPre(N, D)
        self.branch = Branch()
        self.post = MhcPost()

    def construct(self, x: Tensor) -> Tensor:
        h_in, h_post, h_res = self.pre(x)
        return self.post(x, h_res, self.branch(h_in), h_post)


class Network(nn.Cell):
    def __init__(self, layers: List[nn.Cell]) -> None:
        super().__init__()
        self.layers = nn.CellList(layers)

    def construct(self, h: Tensor) -> Tensor:
        x = expand_streams(h, N)
        for layer in self.layers:
            x = layer(x)
        return merge_streams(x)


class WithLoss(nn.Cell):
    def __init__(self, network: nn.Cell) -> None:
        super().__init__()
        self.network = network

    def construct(self, h: Tensor) -> Tensor:
        return (self.network(h) ** 2).mean()


class Jitted(Network):
    @ms.jit
    def construct(self, h: Tensor) -> Tensor:
        x = expand_streams(h, N)
        for layer in self.layers:
            x = layer(x)
        return merge_streams(x)


def _mhc(layers: int = 3, kind: type = Network, seed: int = 0, dropout: float = 0.5) -> Any:
    ms.set_seed(seed)
    network = kind([HyperConnection(N, D, Branch(dropout)) for _ in range(layers)])
    rng = np.random.default_rng(seed)
    for layer in network.layers:
        layer.pre.bias.set_data(Tensor(rng.normal(size=layer.pre.bias.shape).astype(np.float32)))
        layer.pre.alpha.set_data(Tensor(np.ones(3, np.float32)))
    return network


def _probe(seed: int = 9) -> Tensor:
    return Tensor(np.random.default_rng(seed).normal(size=(2, 5, D)).astype(np.float32))


def _expected_first_matrix(network: Network, h: Tensor) -> np.ndarray:
    pre = network.layers[0].pre
    x = np.repeat(h.asnumpy()[..., None, :], N, axis=-2)
    out = reference.mhc_pre(x, pre.phi.asnumpy(), pre.alpha.asnumpy(), pre.bias.asnumpy())
    return reference.mhc_sinkhorn(out.h_res)


@pytest.mark.parametrize("kind", [Network, Jitted])
def test_the_matrices_found_are_those_of_the_network(way: Way, kind: type) -> None:
    network, h = _mhc(kind=kind), _probe()
    way(network)(h)  # compiled before, where the mode compiles
    found = mixing_matrices(network, h)
    assert [name for name, _ in found] == ["layers.0", "layers.1", "layers.2"]
    assert np.allclose(found[0][1], _expected_first_matrix(network, h), atol=1e-5)
    assert not np.allclose(found[0][1], found[1][1], atol=1e-2)


def test_the_matrices_follow_the_parameters(way: Way) -> None:
    network, h = _mhc(1), _probe()
    before = mixing_matrices(network, h)[0][1]
    network.layers[0].pre.bias.set_data(Tensor(np.zeros(N * N + 2 * N, np.float32)))
    way(network)(h)
    after = mixing_matrices(network, h)[0][1]
    assert np.allclose(after, _expected_first_matrix(network, h), atol=1e-5)
    assert not np.allclose(before, after, atol=1e-3)


def test_dropout_is_off_while_measuring(way: Way) -> None:
    network = _mhc(3).set_train()
    assert measure(network, _probe()) == measure(network, _probe())


def test_mhc_stays_near_one_where_a_network_without_the_constraint_grows(way: Way) -> None:
    network, h = _mhc(12), _probe()
    raw = Network([Unconstrained() for _ in range(12)])
    rng = np.random.default_rng(3)
    for layer in raw.layers:
        res = np.eye(N) + 0.3 * rng.normal(size=(N, N))
        layer.pre.bias.set_data(Tensor(np.concatenate([np.zeros(2 * N), res.reshape(-1)]).astype(np.float32)))
    rows = measure(network, h)
    assert all(abs(row[key] - 1) < 0.05 for row in rows for key in row if key not in ("index", "layer"))
    rows = measure(raw, h)
    assert [row["layer"] for row in rows][:2] == ["layers.0.post", "layers.1.post"]
    assert rows[-1]["composite_forward"] > 10
    assert rows[0]["composite_backward"] > 10
    assert rows[-1]["composite_forward"] > 5 * max(row["forward"] for row in rows)


class Skips(nn.Cell):
    """An MhcPost of its own, without mixing."""

    def __init__(self) -> None:
        super().__init__()
        self.post = MhcPost()

    def construct(self, x: Tensor) -> Tensor:
        h_post = ops.ones_like(x[..., 0]) if x.ndim == 3 else ops.ones_like(x[:, :, :, 0])
        return self.post(x, None, x[:, :, 0], h_post)


def test_no_mixing_counts_as_the_identity(way: Way) -> None:
    (name, matrix), (_, second) = mixing_matrices(Network([Skips(), HyperConnection(N, D, Branch())]), _probe())
    assert name == "layers.0.post"
    assert matrix.shape == second.shape == (2, 5, N, N)
    assert np.array_equal(matrix[1, 2], np.eye(N))


def test_everything_is_put_back_after_a_measurement_and_after_an_error(way: Way) -> None:
    network = _mhc(2)
    network.set_train()
    network.layers[1].branch.set_train(False)

    def state() -> Any:
        return ms.get_context("mode"), [cell.training for _, cell in network.cells_and_names()]

    before = state()
    measure(network, _probe())
    assert state() == before
    with pytest.raises(Exception, match=r"argument|input"):
        measure(network, _probe(), "one input too many")
    assert state() == before
    assert not any(layer.post._forward_pre_hook for layer in network.layers)


def test_a_network_without_mixing_is_refused() -> None:
    with pytest.raises(ValueError, match="Dense has no HyperConnection and no MhcPost in it"):
        measure(nn.Dense(2, 2), _probe())


def _losses(monitor: Any, steps: int = 6) -> List[float]:
    # on a CPU, MindSpore does not repeat its own dropout, with or without a monitor
    network = _mhc(2, dropout=0.0)
    step = nn.TrainOneStepCell(WithLoss(network), nn.SGD(network.trainable_params(), 0.05))
    step.set_train()
    losses = []
    for index in range(1, steps + 1):
        losses.append(float(step(_probe(index))))
        if monitor is not None and index % 2 == 0:
            monitor.record(network, index)
    return losses


def test_training_goes_on_bit_for_bit_as_without_the_monitor(way: Way) -> None:
    monitor = StabilityMonitor(_probe())
    plain = _losses(None)
    assert _losses(monitor) == plain
    assert len(set(plain)) == len(plain)
    assert [(row["step"], row["index"]) for row in monitor.rows] == [(s, i) for s in (2, 4, 6) for i in (0, 1)]


@pytest.mark.skipif(
    ms.__version__.startswith("2.9"),
    reason="MindSpore 2.9 compiles a cell anew after a hook was registered on a cell in it",
)
def test_a_measurement_compiles_nothing_anew() -> None:
    before = ms.get_context("mode")
    ms.set_context(mode=ms.GRAPH_MODE)
    network = _mhc(2)
    step = nn.TrainOneStepCell(WithLoss(network), nn.SGD(network.trainable_params(), 0.05)).set_train()
    step(_probe())
    network(_probe())
    compiled = (set(step.compile_cache), set(network.compile_cache))
    measure(network, _probe())
    step(_probe())
    network(_probe())
    assert (set(step.compile_cache), set(network.compile_cache)) == compiled
    ms.set_context(mode=before)


def _train(monitor: StabilityMonitor, network: nn.Cell, steps: int, sink: bool = False) -> None:
    data = ms.dataset.NumpySlicesDataset({"h": np.stack([_probe(s).asnumpy() for s in range(steps)])}, shuffle=False)
    Model(WithLoss(network), optimizer=nn.SGD(network.trainable_params(), 0.05)).train(
        1, data, callbacks=[monitor], dataset_sink_mode=sink
    )


@pytest.mark.parametrize("mode", [ms.GRAPH_MODE, ms.PYNATIVE_MODE])
def test_callback_records_every_few_steps_of_model_train(mode: int, tmp_path: Path) -> None:
    before = ms.get_context("mode")
    ms.set_context(mode=mode)
    monitor = StabilityMonitor(_probe(), every=3, file=tmp_path / "new" / "gains.csv")
    _train(monitor, _mhc(2), 7)
    ms.set_context(mode=before)
    assert [row["step"] for row in monitor.rows] == [3, 3, 6, 6]
    assert monitor.rows[0]["layer"] == "network.layers.0"
    with (tmp_path / "new" / "gains.csv").open() as file:
        read = list(csv.DictReader(file))
    assert [{key: str(value) for key, value in row.items()} for row in monitor.rows] == read


def test_callback_measures_the_network_it_was_given_and_writes_json_lines(tmp_path: Path) -> None:
    network = _mhc(1)
    monitor = StabilityMonitor((_probe(),), every=2, file=str(tmp_path / "gains.jsonl"), network=network)
    _train(monitor, network, 4)
    _train(monitor, network, 2)
    lines = (tmp_path / "gains.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == monitor.rows
    assert [(row["step"], row["layer"]) for row in monitor.rows] == [(2, "layers.0"), (4, "layers.0"), (2, "layers.0")]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"every": 0}, ValueError, "every must be a positive int"),
        ({"every": 1.5}, TypeError, "every must be a positive int"),
        ({"file": 3}, TypeError, "file must be a path or None, but got int"),
        ({"file": "gains.txt"}, ValueError, "file must end with .csv or .jsonl, but got 'gains.txt'"),
        ({"network": "net"}, TypeError, "network must be a mindspore.nn.Cell, but got str"),
    ],
)
def test_wrong_arguments_are_refused(arguments: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        StabilityMonitor(_probe(), **arguments)


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_a_nan_is_written_so_that_every_reader_takes_it_and_its_layer_is_named(
    tmp_path: Path, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    network = _mhc(3)
    bias = network.layers[1].pre.bias
    broken = bias.asnumpy()
    broken[-1] = np.nan
    bias.set_data(Tensor(broken))
    file = tmp_path / f"gains.{suffix}"
    StabilityMonitor(_probe(), file=file).record(network, 7)
    if suffix == "jsonl":
        rows = [json.loads(line, parse_constant=pytest.fail) for line in file.read_text().splitlines()]
    else:
        rows = list(csv.DictReader(file.open()))
    assert [row["layer"] for row in rows] == ["layers.0", "layers.1", "layers.2"]
    for key, nan_in in (("forward", [1]), ("forward_max", [1]), ("composite_forward", [1, 2]), ("backward", [1])):
        assert [i for i, row in enumerate(rows) if str(row[key]).lower() == "nan"][: len(nan_in)] == nan_in, key
    assert float(rows[0]["forward_max"]) == pytest.approx(1, abs=1e-3)
    said = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert said == ["StabilityMonitor: at step 7 the mixing matrices of layer layers.1 are not finite"]


def test_nothing_is_said_while_everything_is_finite(caplog: pytest.LogCaptureFixture) -> None:
    StabilityMonitor(_probe()).record(_mhc(1), 1)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_a_file_that_cannot_be_appended_to_is_refused_before_the_training(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    other = tmp_path / "other.csv"
    other.write_text("loss,step\n1,2\n")
    with pytest.raises(ValueError, match=r"StabilityMonitor: file must be a file, but .*folder.csv' is a folder"):
        StabilityMonitor(None, file=tmp_path / "folder.csv")
    with pytest.raises(
        ValueError, match=r"StabilityMonitor: file .*other.csv' has other columns: loss, step; expected"
    ):
        StabilityMonitor(None, file=other)
    assert other.read_text() == "loss,step\n1,2\n"


def test_a_record_that_cannot_be_written_does_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    row = dict.fromkeys(("index", "layer", "forward_max"), 1.0)
    monkeypatch.setattr("ms_mhc.stability.measure", lambda network, *probe: [row])
    (tmp_path / "file").write_text("")
    monitor = StabilityMonitor(None, file=tmp_path / "file" / "below.csv")
    assert monitor.record(nn.Identity(), 3) == monitor.rows == [{"step": 3, **row}]
    assert "below.csv cannot be written: " in caplog.text


def test_what_is_no_network_no_layer_and_no_matrix_is_named() -> None:
    from ms_mhc.probe import residual_stream

    with pytest.raises(TypeError, match=r"network must be a mindspore.nn.Cell, but got int"):
        mixing_matrices(3)
    with pytest.raises(TypeError, match=r"residual_stream: layer must be the name of a layer, but got \['0'\]"):
        residual_stream(HyperConnection(2, 4, nn.Identity()), ["0"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="complex"):
        amplification([np.eye(2) * 1j])
    for wrong in (None, 3, ["h"], [[[1.0, 0.0], [0.0]]]):
        with pytest.raises(TypeError, match=r"amplification: matrices must be a sequence of .*, but got "):
            amplification(wrong)  # type: ignore[arg-type]
