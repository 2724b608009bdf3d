"""Each operator with its options, forward and backward against the float64 reference."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional, Tuple

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from numpy.typing import NDArray

from aclnn_adapter.operators import num_gates
from ms_mhc import MhcPost, MhcPre, MhcSinkhorn, mhc_pre_sinkhorn, reference
from ms_mhc.accuracy import error_ratio, to_float64, unit_in_last_place
from ms_mhc.selftest.covering import Case
from ms_mhc.selftest.machine import Machine, wrapped

Arrays = Dict[str, NDArray[np.float32]]
Ratios = Dict[str, float]
Factors = Dict[str, Tuple[Any, ...]]

# Sizes at which the vendor's kernels take other tilings: one token and few, odd numbers of them, blocks and more than
# a block, a hidden size that forward takes and backward does not, one within a tile, and the largest.
TOKENS = {True: (1, 6, 37), False: (1, 6, 37, 1024, 4095, 8192)}
HIDDEN_SIZES = {True: (64, 80, 128, 576), False: (64, 80, 128, 576, 4096, 7168, 16384)}
STREAMS = (4, 6, 8)
EPS = (1e-6, 1e-2)
PRECISIONS = ("float32", "hf32")
RECIPES = ("deepseek_v4", "paper")


@dataclass(frozen=True)
class Program:
    """How one operator is tested.

    Attributes:
        operator: its name in ``ms_mhc``.
        factors: its options on a machine, besides the way to call and the backend.
        compare: a case to the worst error of each tensor, as a fraction of what is allowed.
        allowed: what can be judged.
    """

    operator: str
    factors: Callable[[Machine], Factors]
    compare: Callable[[Case], Ratios]
    allowed: Callable[[Case], bool] = lambda case: True


def _streams(machine: Machine) -> Factors:
    return {
        "layout": ("BSND", "TND"),
        "dtype": machine.dtypes,
        "num_streams": STREAMS,
        "tokens": TOKENS[machine.quick],
        "hidden_size": HIDDEN_SIZES[machine.quick],
    }


def tokens(case: Case) -> Tuple[int, ...]:
    """The token dimensions of a case."""
    count = case["tokens"]
    if case["layout"] == "TND":
        return (count,)
    batch = next(b for b in (4, 3, 2, 1) if count % b == 0)
    return (batch, count // batch)


def _random(case: Case) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(repr(sorted(case.items())).encode()))


def _tensor(value: NDArray[Any], dtype: Any = ms.float32) -> Tensor:
    return Tensor(value.astype(np.float32), dtype)


_HF32 = 4e-3  # of the largest entry: factors of ten bits, whose errors reach gates and gradients


def _worst(
    got: Tensor, want: NDArray[np.float64], precision: str = "float32", terms: Optional[NDArray[np.float64]] = None
) -> float:
    """The worst error over what is allowed. ``terms``: what want is a sum of, where that may cancel."""
    if precision == "float32":
        ratio = float(error_ratio(got, want).max())
        if terms is None:
            return ratio
        return ratio * min(1.0, float(np.abs(want).max()) / max(float(np.abs(terms).max()), 1e-30))
    largest = float(np.abs(want).max())
    rounding = 0.0 if got.dtype == ms.float32 else unit_in_last_place(np.asarray(largest), got.dtype)
    error = np.nan_to_num(np.abs(to_float64(got) - want), nan=np.inf)
    return float((error / np.maximum(_HF32 * largest + rounding, 1e-30)).max())


def _all_worst(
    results: Dict[str, Tuple[Tensor, NDArray[np.float64]]],
    case: Case,
    grad_bias: NDArray[np.float64],
    normalized: NDArray[np.float64],
) -> Ratios:
    """Of each tensor the worst error. grad_alpha is a sum of grad_bias times the normalized product with phi."""
    terms = {"grad_alpha": grad_bias * np.abs(normalized).max()}
    return {name: _worst(got, want, case["precision"], terms.get(name)) for name, (got, want) in results.items()}


def _parameters(rng: np.random.Generator, case: Case) -> Arrays:
    n, d = case["num_streams"], case["hidden_size"]
    f = num_gates(n)
    parameters: Arrays = {
        "phi": (rng.standard_normal((f, n * d)) / np.sqrt(n * d)).astype(np.float32),
        "alpha": rng.normal(size=3).astype(np.float32),
        "bias": rng.normal(size=f).astype(np.float32),
    }
    if case["gamma"]:
        parameters["gamma"] = rng.normal(size=(n, d)).astype(np.float32)
    return parameters


def _pre_factors(machine: Machine) -> Factors:
    more: Factors = {
        "gamma": (True, False),
        "residual": (True, False),
        "norm_eps": EPS,
        "hc_eps": EPS,
        "precision": PRECISIONS,
    }
    return {**_streams(machine), **more}


def compare_mhc_pre(case: Case) -> Ratios:
    """Outputs and gradients of the cell, with the residual's share of grad_x where there is one."""
    rng, n, d, lead = _random(case), case["num_streams"], case["hidden_size"], tokens(case)
    dtype, way = getattr(ms, case["dtype"]), case["way"]
    parameters = _parameters(rng, case)
    x = _tensor(rng.standard_normal((*lead, n, d), np.float32), dtype)
    cotangents = [
        _tensor(rng.standard_normal((*lead, d), np.float32), dtype),
        _tensor(rng.normal(size=(*lead, n))),
        _tensor(rng.normal(size=(*lead, n, n))),
    ]
    share = _tensor(rng.standard_normal((*lead, n, d), np.float32), dtype) if case["residual"] else None
    if share is not None:
        cotangents.append(share)
    eps: Dict[str, Any] = {"norm_eps": case["norm_eps"], "hc_eps": case["hc_eps"]}
    options = {"precision": case["precision"], "backend": case["backend"]}
    cell = MhcPre(n, d, use_gamma=case["gamma"], return_residual=case["residual"], **eps, **options)
    for name, value in parameters.items():
        getattr(cell, name).set_data(Tensor(value))
    weights = list(cell.trainable_params())
    gradient = ops.GradOperation(get_all=True, get_by_list=True, sens_param=True)(cell, weights)
    out = wrapped(cell, way)(x)
    (grad_x,), grads = wrapped(gradient, way)(x, tuple(cotangents))

    exact = to_float64(x)
    want = reference.mhc_pre(exact, **parameters, **eps)  # type: ignore[arg-type]
    want_grads = reference.mhc_pre_backward(
        exact,
        parameters["phi"],
        parameters["alpha"],
        to_float64(cotangents[0]),
        to_float64(cotangents[1]),
        to_float64(cotangents[2]),
        want.inv_rms,
        want.h_mix,
        want.h_pre,
        want.h_post,
        parameters.get("gamma"),
        None if share is None else to_float64(share),
        hc_eps=case["hc_eps"],
    )
    results = {name: (tensor, getattr(want, name)) for name, tensor in zip(want._fields, out[:3])}
    if share is not None:
        results["x"] = (out[3], exact)
    results["grad_x"] = (grad_x, want_grads.grad_x)
    for parameter, value in zip(weights, grads):
        name = "grad_" + str(parameter.name).rsplit(".", 1)[-1]
        results[name] = (value, getattr(want_grads, name))
    return _all_worst(results, case, want_grads.grad_bias, want.h_mix * want.inv_rms[..., None])


def _sinkhorn_factors(machine: Machine) -> Factors:
    return {
        "layout": ("BSND", "TND"),
        "num_streams": STREAMS,
        "tokens": TOKENS[machine.quick],
        "num_iters": (1, 3, 20) if machine.quick else (1, 3, 20, 100),
        "eps": (1e-6, 1e-3),
        "recipe": RECIPES,
    }


def compare_mhc_sinkhorn(case: Case) -> Ratios:
    """The matrices and the gradient of the logits."""
    rng, n, way = _random(case), case["num_streams"], case["way"]
    logits = rng.normal(0, 2, size=(*tokens(case), n, n)).astype(np.float32)
    grad = rng.normal(size=logits.shape).astype(np.float32)
    cell = MhcSinkhorn(case["num_iters"], case["eps"], case["recipe"], case["backend"])
    out = wrapped(cell, way)(Tensor(logits))
    got = wrapped(ops.GradOperation(sens_param=True)(cell), way)(Tensor(logits), Tensor(grad))
    options = {"num_iters": case["num_iters"], "eps": case["eps"], "recipe": case["recipe"]}
    want = reference.mhc_sinkhorn(logits, **options)
    return {"h_res": _worst(out, want), "grad": _worst(got, reference.mhc_sinkhorn_backward(grad, logits, **options))}


def _post_factors(machine: Machine) -> Factors:
    return {**_streams(machine), "h_res": ("given", "identity")}


class _IdentityPost(nn.Cell):
    """MhcPost without h_res; a gradient is not taken of ``None``."""

    def __init__(self, backend: str) -> None:
        super().__init__()
        self.post = MhcPost(backend)

    def construct(self, x: Tensor, h_out: Tensor, h_post: Tensor) -> Tensor:
        return self.post(x, None, h_out, h_post)


def compare_mhc_post(case: Case) -> Ratios:
    """The streams and the gradients of all inputs."""
    rng, n, d, lead = _random(case), case["num_streams"], case["hidden_size"], tokens(case)
    kind, way = getattr(ms, case["dtype"]), case["way"]
    identity = case["h_res"] == "identity"
    x = _tensor(rng.standard_normal((*lead, n, d), np.float32), kind)
    h_res = _tensor(rng.normal(size=(*lead, n, n)))
    h_out = _tensor(rng.standard_normal((*lead, d), np.float32), kind)
    h_post = _tensor(rng.normal(size=(*lead, n)))
    grad = _tensor(rng.standard_normal((*lead, n, d), np.float32), kind)
    inputs = (x, h_out, h_post) if identity else (x, h_res, h_out, h_post)
    cell = _IdentityPost(case["backend"]) if identity else MhcPost(case["backend"])
    out = wrapped(cell, way)(*inputs)
    grads = wrapped(ops.GradOperation(get_all=True, sens_param=True)(cell), way)(*inputs, grad)

    exact = (to_float64(x), None if identity else to_float64(h_res), to_float64(h_out), to_float64(h_post))
    want = reference.mhc_post_backward(to_float64(grad), *exact)
    names = [name for name in want._fields if not (identity and name == "grad_h_res")]
    ratios = {"out": _worst(out, reference.mhc_post(*exact))}
    ratios.update({name: _worst(tensor, getattr(want, name)) for name, tensor in zip(names, grads)})
    return ratios


def _pre_sinkhorn_factors(machine: Machine) -> Factors:
    more: Factors = {
        "gamma": (True, False),
        "norm_eps": EPS,
        "hc_eps": EPS,
        "sinkhorn_eps": (1e-6, 1e-3),
        "num_iters": (1, 3, 20),
        "recipe": RECIPES,
        "precision": PRECISIONS,
    }
    return {**_streams(machine), **more}


def _pre_sinkhorn_allowed(case: Case) -> bool:
    """The vendor's fused kernel, which is reached in HF32, is off by the order of hc_eps (ACLNN_SPEC.md section 8)."""
    return case["precision"] == "float32" or case["hc_eps"] == case["sinkhorn_eps"] == min(EPS)


class _PreSinkhorn(nn.Cell):
    """The function with its options, so that a gradient is taken of tensors alone."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.num_iters, self.recipe, self.backend = case["num_iters"], case["recipe"], case["backend"]
        self.norm_eps, self.hc_eps, self.sinkhorn_eps = case["norm_eps"], case["hc_eps"], case["sinkhorn_eps"]
        self.precision = case["precision"]

    def construct(self, x: Tensor, phi: Tensor, alpha: Tensor, bias: Tensor, gamma: Any = None) -> Any:
        return mhc_pre_sinkhorn(
            x,
            phi,
            alpha,
            bias,
            gamma,
            num_iters=self.num_iters,
            norm_eps=self.norm_eps,
            hc_eps=self.hc_eps,
            sinkhorn_eps=self.sinkhorn_eps,
            recipe=self.recipe,
            precision=self.precision,
            backend=self.backend,
        )


def compare_mhc_pre_sinkhorn(case: Case) -> Ratios:
    """The fused pair against the reference of its two parts."""
    rng, n, d, lead = _random(case), case["num_streams"], case["hidden_size"], tokens(case)
    dtype, way = getattr(ms, case["dtype"]), case["way"]
    parameters = _parameters(rng, case)
    x = _tensor(rng.standard_normal((*lead, n, d), np.float32), dtype)
    cotangents = (
        _tensor(rng.standard_normal((*lead, d), np.float32), dtype),
        _tensor(rng.normal(size=(*lead, n))),
        _tensor(rng.normal(size=(*lead, n, n))),
    )
    cell, inputs = _PreSinkhorn(case), (x, *(Tensor(value) for value in parameters.values()))
    out = wrapped(cell, way)(*inputs)
    grads = wrapped(ops.GradOperation(get_all=True, sens_param=True)(cell), way)(*inputs, cotangents)

    exact = to_float64(x)
    pre = reference.mhc_pre(exact, **parameters, norm_eps=case["norm_eps"], hc_eps=case["hc_eps"])
    options = {"num_iters": case["num_iters"], "eps": case["sinkhorn_eps"], "recipe": case["recipe"]}
    grad_logits = reference.mhc_sinkhorn_backward(to_float64(cotangents[2]), pre.h_res, **options)
    want = reference.mhc_pre_backward(
        exact,
        parameters["phi"],
        parameters["alpha"],
        to_float64(cotangents[0]),
        to_float64(cotangents[1]),
        grad_logits,
        pre.inv_rms,
        pre.h_mix,
        pre.h_pre,
        pre.h_post,
        parameters.get("gamma"),
        hc_eps=case["hc_eps"],
    )
    results = {
        "h_in": (out[0], pre.h_in),
        "h_post": (out[1], pre.h_post),
        "h_res": (out[2], reference.mhc_sinkhorn(pre.h_res, **options)),
    }
    results.update({n: (got, target) for n, got, target in zip(want._fields, grads, want) if target is not None})
    return _all_worst(results, case, want.grad_bias, pre.h_mix * pre.inv_rms[..., None])


PROGRAMS = (
    Program("mhc_pre", _pre_factors, compare_mhc_pre),
    Program("mhc_sinkhorn", _sinkhorn_factors, compare_mhc_sinkhorn),
    Program("mhc_post", _post_factors, compare_mhc_post),
    Program("mhc_pre_sinkhorn", _pre_sinkhorn_factors, compare_mhc_pre_sinkhorn, _pre_sinkhorn_allowed),
)
