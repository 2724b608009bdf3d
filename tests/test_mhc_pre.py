"""MhcPre on the backends of this machine: numbers against the reference, in the three ways of running MindSpore."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint, nn, ops

from ms_mhc import MhcPre, mhc_pre, mhc_pre_backward, reference
from tests.compare import JIT_IS_SLOW, as_numpy, assert_close, in_turn, pre_cotangents, pre_inputs

Way = Callable[[Any], Any]
OUTPUTS = ("h_in", "h_post", "h_res")
DTYPES = {"float32": ms.float32, "bfloat16": ms.bfloat16, "float16": ms.float16}


class Operator(nn.Cell):
    """The functional operator as a cell, so that its gradients can be taken by any means."""

    def __init__(self, backend: str, **eps: float) -> None:
        super().__init__()
        self.backend = backend
        self.norm_eps = eps.get("norm_eps", 1e-6)
        self.hc_eps = eps.get("hc_eps", 1e-6)

    def construct(self, x: Tensor, phi: Tensor, alpha: Tensor, bias: Tensor, gamma: Optional[Tensor] = None) -> Any:
        out = mhc_pre(
            x,
            phi,
            alpha,
            bias,
            gamma,
            norm_eps=self.norm_eps,
            hc_eps=self.hc_eps,
            backend=self.backend,
        )
        return out[:3]


class Cell(nn.Cell):
    """MhcPre with the residual output, its parameters as inputs of the test."""

    def __init__(self, n: int, d: int, inputs: Dict[str, np.ndarray], backend: str, **eps: float) -> None:
        super().__init__()
        self.pre = MhcPre(n, d, use_gamma="gamma" in inputs, return_residual=True, backend=backend, **eps)
        for name, value in inputs.items():
            if name != "x":
                getattr(self.pre, name).set_data(Tensor(value))

    def construct(self, x: Tensor) -> Any:
        return self.pre(x)


def given(inputs: Dict[str, np.ndarray], dtype: Any) -> Tuple[Tensor, ...]:
    return (Tensor(inputs["x"]).astype(dtype), *(Tensor(v) for k, v in inputs.items() if k != "x"))


def expected(
    inputs: Dict[str, np.ndarray], cotangents: Sequence[np.ndarray], share: Optional[np.ndarray] = None, **eps: float
) -> Tuple[Any, Any]:
    """Outputs and gradients of the reference, for x and the cotangents as they are after the cast to x's dtype."""
    out = reference.mhc_pre(**inputs, **eps)
    grads = reference.mhc_pre_backward(
        inputs["x"],
        inputs["phi"],
        inputs["alpha"],
        *cotangents[:3],
        out.inv_rms,
        out.h_mix,
        out.h_pre,
        out.h_post,
        inputs.get("gamma"),
        share,
        hc_eps=eps.get("hc_eps", 1e-6),
    )
    return out, grads


def cast_and_back(value: np.ndarray, dtype: Any) -> np.ndarray:
    return as_numpy(Tensor(value).astype(dtype)).astype(np.float32)


@pytest.mark.parametrize(
    ("way", "n", "d", "tokens", "dtype", "gamma", "eps"),
    in_turn(
        (4, 64, (2, 3), "float32", True, 1e-2),
        (4, 64, (5,), "bfloat16", True, 1e-2),
        (4, 128, (2, 3), "float16", True, 1e-6),
        (1, 1, (1,), "float32", True, 1e-2),
        (1, 33, (4,), "float32", False, 1e-2),
        (2, 7, (1, 1), "bfloat16", False, 1e-6),
        (3, 80, (2, 2), "float32", True, 1e-2),
        (6, 32, (7,), "float16", False, 1e-2),
        (8, 512, (64,), "float32", True, 1e-2),
        (16, 24, (3,), "bfloat16", True, 1e-2),
    ),
    indirect=["way"],
)
def test_outputs_and_gradients_equal_the_reference(
    way: Way, backend: str, n: int, d: int, tokens: Tuple[int, ...], dtype: str, gamma: bool, eps: float
) -> None:
    rng = np.random.default_rng([n, d])
    kind = DTYPES[dtype]
    inputs = pre_inputs(rng, n, d, tokens, gamma)
    inputs["x"] = cast_and_back(inputs["x"], kind)
    cotangents = [c if i in (1, 2) else cast_and_back(c, kind) for i, c in enumerate(pre_cotangents(rng, n, d, tokens))]
    want, want_grads = expected(inputs, cotangents, norm_eps=eps, hc_eps=3 * eps)

    operator = Operator(backend, norm_eps=eps, hc_eps=3 * eps)
    arguments = given(inputs, kind)
    sens = (Tensor(cotangents[0]).astype(kind), Tensor(cotangents[1]), Tensor(cotangents[2]))
    out = way(operator)(*arguments)
    grads = way(ops.GradOperation(get_all=True, sens_param=True)(operator))(*arguments, sens)

    assert out[0].dtype == kind
    assert grads[0].dtype == kind
    for name, value in zip(OUTPUTS, out):
        assert_close(name, value, getattr(want, name))
    for name, value, target in zip(inputs, grads, want_grads):
        assert_close("grad_" + name, value, target)


@pytest.mark.parametrize(
    ("way", "gamma", "dtype"),
    in_turn((True, "float32"), (True, "bfloat16"), (False, "bfloat16"), (False, "float32")),
    indirect=["way"],
)
def test_residual_output_brings_its_gradient_into_the_backward(way: Way, backend: str, gamma: bool, dtype: str) -> None:
    n, d, tokens, kind = 4, 16, (2, 3), DTYPES[dtype]
    rng = np.random.default_rng(3)
    inputs = pre_inputs(rng, n, d, tokens, gamma)
    inputs["x"] = cast_and_back(inputs["x"], kind)
    cotangents = [c if i in (1, 2) else cast_and_back(c, kind) for i, c in enumerate(pre_cotangents(rng, n, d, tokens))]
    _, want = expected(inputs, cotangents, cotangents[3], norm_eps=1e-2, hc_eps=3e-2)

    cell = Cell(n, d, inputs, backend, norm_eps=1e-2, hc_eps=3e-2)
    sens = tuple(Tensor(c).astype(kind if i in (0, 3) else ms.float32) for i, c in enumerate(cotangents))
    gradient = ops.GradOperation(get_all=True, get_by_list=True, sens_param=True)
    (grad_x,), grads = way(gradient(cell, list(cell.trainable_params())))(given(inputs, kind)[0], sens)
    assert_close("grad_x", grad_x, want.grad_x)
    names = [p.name.split(".")[-1] for p in cell.trainable_params()]
    assert set(names) == set(inputs) - {"x"}
    for name, value in zip(names, grads):
        assert_close("grad_" + name, value, getattr(want, "grad_" + name))


@pytest.mark.parametrize(("way", "used"), in_turn((0,), (1,), (2,), (3,)), indirect=["way"])
def test_output_that_the_loss_does_not_use_gets_a_zero_gradient(way: Way, backend: str, used: int) -> None:
    n, d, tokens = 4, 16, (2, 3)
    rng = np.random.default_rng(4)
    inputs = pre_inputs(rng, n, d, tokens)
    weights = pre_cotangents(rng, n, d, tokens)
    cotangents = [w * (i == used) for i, w in enumerate(weights)]
    _, want = expected(inputs, cotangents, cotangents[3])
    cell = Cell(n, d, inputs, backend)
    weight = Tensor(weights[used])

    def loss(x: Tensor) -> Tensor:
        return (cell(x)[used] * weight).sum()

    _, (grad_x, grads) = way(ops.value_and_grad(loss, 0, list(cell.trainable_params())))(Tensor(inputs["x"]))
    assert_close("grad_x", grad_x, want.grad_x)
    for parameter, value in zip(cell.trainable_params(), grads):
        assert_close("grad of " + parameter.name, value, getattr(want, "grad_" + parameter.name.split(".")[-1]))


class Network(nn.Cell):
    """MhcPre somewhere in the middle."""

    def __init__(self, backend: str) -> None:
        super().__init__()
        self.before = nn.Dense(8, 4 * 8)
        self.pre = MhcPre(4, 8, use_gamma=True, return_residual=True, backend=backend)
        self.after = nn.Dense(8, 8)
        rng = np.random.default_rng(9)  # gates that matter: the initial values keep them almost shut
        for parameter, scale in ((self.pre.phi, 0.2), (self.pre.alpha, 1.0), (self.pre.bias, 1.0)):
            parameter.set_data(Tensor(rng.normal(0, scale, parameter.shape).astype(np.float32)))

    def construct(self, h: Tensor) -> Tensor:
        x = self.before(h).reshape(h.shape[:-1] + (4, 8))
        h_in, h_post, h_res, x = self.pre(x)
        out = self.after(h_in).expand_dims(-2) * h_post.expand_dims(-1) + ops.matmul(h_res, x)
        return (out * out).mean()


def test_gradients_reach_parameters_inside_a_larger_network(way: Way, backend: str) -> None:
    network = Network(backend)
    h = Tensor(np.random.default_rng(0).normal(size=(2, 3, 8)).astype(np.float32))
    _, (_, grads) = way(ops.value_and_grad(network, 0, list(network.trainable_params())))(h)
    for parameter, gradient in zip(network.trainable_params(), grads):
        assert np.abs(gradient.asnumpy()).max() > 0, parameter.name
    grad_h = way(ms.grad(network))(h)

    step = 1e-2
    direction = np.random.default_rng(1).normal(size=h.shape).astype(np.float32)
    up, down = (float(network(h + s * step * Tensor(direction))) for s in (1, -1))
    terms = grad_h.asnumpy() * direction
    assert (up - down) / (2 * step) == pytest.approx(float(terms.sum()), abs=5e-3 * float(np.abs(terms).sum()))


def test_training_step_lowers_the_loss_and_moves_every_parameter(way: Way, backend: str) -> None:
    network = Network(backend)
    before = {p.name: p.asnumpy().copy() for p in network.trainable_params()}
    step = nn.TrainOneStepCell(network, nn.SGD(network.trainable_params(), 0.1))
    h = Tensor(np.random.default_rng(0).normal(size=(2, 3, 8)).astype(np.float32))
    run = way(step)
    losses = [float(run(h)) for _ in range(4)]
    assert losses[-1] < losses[0]
    for parameter in network.trainable_params():
        assert np.any(parameter.asnumpy() != before[parameter.name]), parameter.name


class Counting(MhcPre):
    """Counts its forward passes. For PyNative mode; where a graph is compiled, Python code runs only then."""

    runs = 0

    def construct(self, x: Tensor) -> Any:
        self.runs += 1
        return super().construct(x)


def test_recompute_runs_the_forward_once_more_and_changes_no_number(backend: str) -> None:
    """In graph mode MindSpore never recomputes what a cell puts out; tests of HyperConnection look there."""
    mode = ms.get_context("mode")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    results = []
    for recompute in (False, True):
        network = Network(backend)
        parameters = {p.name: p for p in network.get_parameters()}
        network.pre = Counting(4, 8, use_gamma=True, return_residual=True, backend=backend)
        if results:
            parameters = results[0][2]
        ms.load_param_into_net(network, parameters)
        if recompute:
            network.pre.recompute()
        h = Tensor(np.random.default_rng(0).normal(size=(2, 3, 8)).astype(np.float32))
        loss, (grad_h, grads) = ops.value_and_grad(network, 0, list(network.trainable_params()))(h)
        results.append((network.pre.runs, [loss, grad_h, *grads], parameters))
    ms.set_context(mode=mode)
    (once, plain, _), (twice, recomputed, _) = results
    assert (once, twice) == (1, 2)
    assert len(plain) == len(recomputed)
    for one, other in zip(plain, recomputed):
        assert np.abs(one.asnumpy()).max() > 0
        assert np.array_equal(one.asnumpy(), other.asnumpy())


@pytest.mark.parametrize(
    ("way", "dtype", "view"),
    in_turn(*itertools.product(("float32", "bfloat16"), ("transpose", "slice", "step"))),
    indirect=["way"],
)
def test_x_may_be_a_view(way: Way, backend: str, view: str, dtype: str) -> None:
    n, d, kind = 4, 16, DTYPES[dtype]
    cell = MhcPre(n, d, backend=backend)
    whole = Tensor(np.random.default_rng(2).normal(size=(6, 5, n, 2 * d)).astype(np.float32)).astype(kind)
    cut = {
        "transpose": lambda t: t[..., :d].transpose(1, 0, 2, 3),
        "slice": lambda t: t[1:3, :, :, 3 : 3 + d],
        "step": lambda t: t[::2, :, :, ::2],
    }[view]
    x = cut(whole) if ms.get_context("mode") == ms.PYNATIVE_MODE else Tensor(cut(as_numpy(whole).astype(np.float32)))
    copy = Tensor(np.ascontiguousarray(as_numpy(x)).astype(np.float32)).astype(kind)
    got, want = way(cell)(x.astype(kind)), way(cell)(copy)
    for name, one, other in zip(OUTPUTS, got, want):
        assert np.array_equal(as_numpy(one), as_numpy(other)), name


@JIT_IS_SLOW
@pytest.mark.parametrize("axis", [0, 2, 3])
def test_gradient_flows_through_a_view(way: Way, backend: str, axis: int) -> None:
    n, d = 4, 8
    cell = Cell(n, d, pre_inputs(np.random.default_rng(3), n, d, (2, 3)), backend)
    whole = np.random.default_rng(4).normal(size=(4, 3, 2 * n, 2 * d)).astype(np.float32)
    kept = tuple(slice(0, size) for size in (2, 3, n, d))
    trimmed = whole[tuple(kept[i] if i != axis else slice(None) for i in range(4))]
    half = trimmed.shape[axis] // 2

    def through_a_view(z: Tensor) -> Tensor:
        h_in, h_post, h_res, x = cell(mint.split(z, half, dim=axis)[1])
        return (h_in**2).sum() + (h_post**2).sum() + (h_res**2).sum() + (x**2).sum()

    def of_a_copy(x: Tensor) -> Tensor:
        h_in, h_post, h_res, x = cell(x)
        return (h_in**2).sum() + (h_post**2).sum() + (h_res**2).sum() + (x**2).sum()

    got = way(ms.grad(through_a_view))(Tensor(trimmed)).asnumpy()
    first, second = np.split(got, 2, axis=axis)
    part = np.ascontiguousarray(np.split(trimmed, 2, axis=axis)[1])
    want = way(ms.grad(of_a_copy))(Tensor(part)).asnumpy()
    assert np.all(first == 0)
    assert np.abs(second - want).max() <= 1e-5 * np.abs(want).max()


def test_backward_as_an_operator_of_its_own(way: Way, backend: str) -> None:
    n, d, tokens = 4, 16, (2, 3)
    rng = np.random.default_rng(6)
    for gamma in (True, False):
        inputs = pre_inputs(rng, n, d, tokens, gamma)
        cotangents = pre_cotangents(rng, n, d, tokens)
        for share in (None, cotangents[3]):
            out, want = expected(inputs, cotangents, share, hc_eps=1e-2)
            saved = [Tensor(v.astype(np.float32)) for v in (out.inv_rms, out.h_mix, out.h_pre, out.h_post)]
            arguments = [Tensor(inputs[k]) for k in ("x", "phi", "alpha")] + [Tensor(c) for c in cotangents[:3]] + saved
            scale = Tensor(inputs["gamma"]) if gamma else None
            other = None if share is None else Tensor(share)

            def call(*tensors: Tensor) -> Any:
                grads = mhc_pre_backward(*tensors, scale, other, hc_eps=1e-2, backend=backend)  # noqa: B023
                return grads if scale is not None else grads[:4]  # noqa: B023

            got = way(call)(*arguments)
            eager = mhc_pre_backward(*arguments, scale, other, hc_eps=1e-2, backend=backend)
            assert len(eager) == 5
            assert (eager[4] is None) == (not gamma)
            for name, value, target in zip(want._fields, got, want):
                if target is not None:
                    assert_close(name, value, target)


def test_saved_statistics_equal_the_reference(way: Way, backend: str) -> None:
    inputs = pre_inputs(np.random.default_rng(8), 4, 16, (2, 3))
    want = reference.mhc_pre(**inputs)

    def call(*tensors: Tensor) -> Any:
        return mhc_pre(*tensors, backend=backend)

    for name, value, target in zip(want._fields, way(call)(*given(inputs, ms.float32)), want):
        assert_close(name, value, target)


def test_initial_values_make_the_gates_of_a_plain_residual_block() -> None:
    for n in (1, 2, 4, 6, 8):
        cell = MhcPre(n, 32)
        h = np.random.default_rng(n).normal(size=(3, 1, 32)).astype(np.float32)
        h_in, h_post, h_res = cell(Tensor(np.tile(h, (1, n, 1))))
        assert np.allclose(h_in.asnumpy(), h[:, 0], rtol=0, atol=1e-4)
        assert np.allclose(h_post.asnumpy(), 1, atol=1e-4)
        mixed = reference.mhc_sinkhorn(h_res.asnumpy())
        assert np.allclose(mixed, np.eye(n), atol=0.06)
        assert np.allclose(mixed.sum(-2), 1, atol=1e-4)


def test_parameters_do_not_depend_on_the_backend_and_survive_a_checkpoint(tmp_path: Path) -> None:
    saved = MhcPre(4, 8, use_gamma=True, backend="auto")
    for parameter in saved.trainable_params():
        parameter.set_data(Tensor(np.random.default_rng(1).normal(size=parameter.shape).astype(np.float32)))
    file = str(tmp_path / "mhc.ckpt")
    ms.save_checkpoint(saved, file)
    loaded = MhcPre(4, 8, use_gamma=True, backend="composite")
    missing, unexpected = ms.load_param_into_net(loaded, ms.load_checkpoint(file), strict_load=True)
    assert not missing
    assert not unexpected
    shapes = {"phi": (24, 32), "alpha": (3,), "bias": (24,), "gamma": (4, 8)}
    assert {p.name: p.shape for p in loaded.trainable_params()} == shapes
    for one, other in zip(saved.trainable_params(), loaded.trainable_params()):
        assert np.array_equal(one.asnumpy(), other.asnumpy())
        assert other.dtype == ms.float32
    assert [p.name for p in MhcPre(4, 8).trainable_params()] == ["phi", "alpha", "bias"]


def test_seed_decides_the_initial_values() -> None:
    def phi() -> np.ndarray:
        ms.set_seed(11)
        return MhcPre(4, 8).phi.asnumpy()

    assert np.array_equal(phi(), phi())
    assert 0.5e-4 < phi().std() < 2e-4


def test_repr_tells_the_configuration() -> None:
    text = repr(MhcPre(4, 64, use_gamma=True, hc_eps=1e-4))
    for part in ("MhcPre", "num_streams=4", "hidden_size=64", "use_gamma=True", "hc_eps=0.0001", "backend='auto'"):
        assert part in text


@JIT_IS_SLOW
def test_a_frozen_parameter_stays_and_the_others_get_their_gradients_as_before(way: Way, backend: str) -> None:
    network, whole = Network(backend), Network(backend)
    ms.load_param_into_net(whole, {p.name: p for p in network.get_parameters()})
    network.pre.phi.requires_grad = False
    h = Tensor(np.random.default_rng(0).normal(size=(2, 3, 8)).astype(np.float32))

    def gradients(net: Network) -> Dict[str, np.ndarray]:
        parameters = list(net.trainable_params())
        _, grads = way(ops.value_and_grad(net, None, parameters))(h)
        return {p.name: g.asnumpy() for p, g in zip(parameters, grads)}

    got, want = gradients(network), gradients(whole)
    assert set(got) == set(want) - {"pre.phi"}
    for name, value in got.items():
        assert np.abs(value).max() > 0, name
        assert np.abs(value - want[name]).max() <= 1e-6 * np.abs(want[name]).max(), name

    before = {p.name: p.asnumpy().copy() for p in network.get_parameters()}
    way(nn.TrainOneStepCell(network, nn.SGD(network.trainable_params(), 0.1)))(h)
    moved = {p.name for p in network.get_parameters() if np.any(p.asnumpy() != before[p.name])}
    assert moved >= set(got)
    assert "pre.phi" not in moved


PEAK = """
import resource, sys
import numpy as np, mindspore as ms
from mindspore import Tensor, ops
from ms_mhc import MhcPre
tokens, n, d = int(sys.argv[1]), 8, 256
ms.set_context(mode=int(sys.argv[3]))
cell = MhcPre(n, d, use_gamma=True, return_residual=True, backend=sys.argv[2])
x = Tensor(np.ones((tokens, n, d), np.float32))
def loss(x):
    h_in, h_post, h_res, x = cell(x)
    return h_in.sum() + h_post.sum() + h_res.sum() + x.sum()
ops.value_and_grad(loss, 0, list(cell.trainable_params()))(x)[0].asnumpy()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.parametrize("mode", [0, 1])
def test_no_temporary_is_as_large_as_a_matrix_of_streams(backend: str, mode: int, tmp_path: Path) -> None:
    """A [T, N, N, D] tensor would be 8 times x here."""
    tokens = 8192
    program = tmp_path / "peak.py"
    program.write_text(PEAK)
    x_megabytes = tokens * 8 * 256 * 4 / 2**20

    def peak(t: int) -> float:
        command = [sys.executable, str(program), str(t), backend, str(mode)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return float(done.stdout.split()[-1]) / 1024

    growth = peak(tokens) - peak(8)
    assert growth < 7.5 * x_megabytes + 64, f"{growth:.0f} MB for an x of {x_megabytes:.0f} MB"
