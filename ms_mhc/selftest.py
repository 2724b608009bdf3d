"""Does this machine compute what the float64 reference computes, with which kernels, and how fast?

Made for people who have the hardware that this project's own machines lack; it runs on any device. Numbers are judged
by :mod:`ms_mhc.accuracy`.
"""

from __future__ import annotations

import itertools
import re
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from numpy.typing import NDArray

from aclnn_adapter import platform
from ms_mhc import MhcPost, MhcPre, MhcSinkhorn, reference
from ms_mhc.accuracy import error_ratio, to_float64
from ms_mhc.backends import registry
from ms_mhc.backends.registry import Job

Arrays = Dict[str, NDArray[np.float32]]
MODES = ("graph", "jit", "eager")


@dataclass(frozen=True)
class Case:
    """Sizes, dtype and options of one comparison."""

    num_streams: int
    hidden_size: int
    tokens: Tuple[int, ...]
    dtype: str
    gamma: bool
    residual: bool
    norm_eps: float
    hc_eps: float

    def __str__(self) -> str:
        layout = "BSND" if len(self.tokens) == 2 else "TND"
        options = ", ".join(name for name in ("gamma", "residual") if getattr(self, name)) or "plain"
        return (
            f"N={self.num_streams} D={self.hidden_size} {layout} {self.dtype} {options} "
            f"norm_eps={self.norm_eps:g} hc_eps={self.hc_eps:g}"
        )


@dataclass
class Report:
    """Says what was found as soon as it is, and counts what failed."""

    say: Callable[[str], Any]
    failures: int = 0

    def add(self, name: str, ratios: Dict[str, float]) -> None:
        worst = max(ratios, key=lambda tensor: ratios[tensor])
        good = ratios[worst] <= 1
        self.failures += not good
        self.say(f"  {'ok  ' if good else 'FAIL'} {name}: {ratios[worst]:.2f} of what is allowed, in {worst}")


def cases(dtypes: Sequence[str]) -> List[Case]:
    """Every pair of sizes with every layout and dtype; the options alternate so that each meets each size."""
    options = itertools.cycle(itertools.product((True, False), (True, False), (1e-6, 1e-2), (1e-2, 1e-6)))
    found = []
    for n, d in itertools.product((4, 6, 8), (64, 128, 512)):
        for tokens, dtype in itertools.product(((2, 8), (16,)), dtypes):
            gamma, residual, norm_eps, hc_eps = next(options)
            found.append(Case(n, d, tokens, dtype, gamma, residual, norm_eps, hc_eps))
        next(options)  # else options and layouts would keep step
    return found


def _tensor(value: NDArray[Any], dtype: Any = ms.float32) -> Tensor:
    return Tensor(value.astype(np.float32), dtype)


class _Pre(nn.Cell):
    """MhcPre whose residual output, where there is one, is part of what the gradient is taken of."""

    def __init__(self, case: Case, parameters: Arrays, backend: str) -> None:
        super().__init__()
        self.pre = MhcPre(
            case.num_streams,
            case.hidden_size,
            use_gamma=case.gamma,
            norm_eps=case.norm_eps,
            hc_eps=case.hc_eps,
            return_residual=case.residual,
            backend=backend,
        )
        for name, value in parameters.items():
            getattr(self.pre, name).set_data(Tensor(value))

    def construct(self, x: Tensor) -> Any:
        return self.pre(x)


def _wrapped(function: Callable[..., Any], mode: str) -> Callable[..., Any]:
    return ms.jit(function, jit_level="O0") if mode == "jit" else function


def compare_mhc_pre(case: Case, mode: str, backend: str = "auto", seed: int = 0) -> Dict[str, float]:
    """The worst error of every output and gradient, as a fraction of what is allowed."""
    rng = np.random.default_rng([seed, case.num_streams, case.hidden_size])
    n, d, tokens, f = case.num_streams, case.hidden_size, case.tokens, case.num_streams**2 + 2 * case.num_streams
    dtype = getattr(ms, case.dtype)
    parameters: Arrays = {
        "phi": (rng.normal(size=(f, n * d)) / np.sqrt(n * d)).astype(np.float32),
        "alpha": rng.normal(size=3).astype(np.float32),
        "bias": rng.normal(size=f).astype(np.float32),
    }
    if case.gamma:
        parameters["gamma"] = rng.normal(size=(n, d)).astype(np.float32)
    x = _tensor(rng.normal(size=(*tokens, n, d)), dtype)
    cotangents = [
        _tensor(rng.normal(size=(*tokens, d)), dtype),
        _tensor(rng.normal(size=(*tokens, n))),
        _tensor(rng.normal(size=(*tokens, n, n))),
    ]
    share = _tensor(rng.normal(size=(*tokens, n, d)), dtype) if case.residual else None
    if share is not None:
        cotangents.append(share)

    cell = _Pre(case, parameters, backend)
    weights = list(cell.trainable_params())
    gradient = ops.GradOperation(get_all=True, get_by_list=True, sens_param=True)(cell, weights)
    out = _wrapped(cell, mode)(x)
    (grad_x,), grads = _wrapped(gradient, mode)(x, tuple(cotangents))

    exact = to_float64(x)
    eps = {"norm_eps": case.norm_eps, "hc_eps": case.hc_eps}
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
        hc_eps=case.hc_eps,
    )
    ratios = {name: float(error_ratio(t, getattr(want, name)).max()) for name, t in zip(want._fields, out[:3])}
    ratios["grad_x"] = float(error_ratio(grad_x, want_grads.grad_x).max())
    for parameter, value in zip(weights, grads):
        name = "grad_" + str(parameter.name).rsplit(".", 1)[-1]
        ratios[name] = float(error_ratio(value, getattr(want_grads, name)).max())
    return ratios


def compare_mhc_sinkhorn(num_streams: int, num_iters: int, mode: str, backend: str = "auto") -> Dict[str, float]:
    """The same for Sinkhorn."""
    rng = np.random.default_rng([num_streams, num_iters])
    logits = rng.normal(0, 2, size=(2, 5, num_streams, num_streams)).astype(np.float32)
    grad = rng.normal(size=logits.shape).astype(np.float32)
    cell = MhcSinkhorn(num_iters, 1e-3, backend=backend)
    out = _wrapped(cell, mode)(Tensor(logits))
    got = _wrapped(ops.GradOperation(sens_param=True)(cell), mode)(Tensor(logits), Tensor(grad))
    options = {"num_iters": num_iters, "eps": 1e-3}
    want = reference.mhc_sinkhorn(logits, **options)  # type: ignore[arg-type]
    want_grad = reference.mhc_sinkhorn_backward(grad, logits, **options)  # type: ignore[arg-type]
    return {"h_res": float(error_ratio(out, want).max()), "grad": float(error_ratio(got, want_grad).max())}


def compare_mhc_post(
    num_streams: int, hidden_size: int, dtype: str, mode: str, backend: str = "auto"
) -> Dict[str, float]:
    """The same for MhcPost."""
    rng, kind = np.random.default_rng([num_streams, hidden_size]), getattr(ms, dtype)
    n, d, tokens = num_streams, hidden_size, (2, 5)
    inputs = (
        _tensor(rng.normal(size=(*tokens, n, d)), kind),
        _tensor(rng.normal(size=(*tokens, n, n))),
        _tensor(rng.normal(size=(*tokens, d)), kind),
        _tensor(rng.normal(size=(*tokens, n))),
    )
    grad = _tensor(rng.normal(size=(*tokens, n, d)), kind)
    cell = MhcPost(backend)
    out = _wrapped(cell, mode)(*inputs)
    grads = _wrapped(ops.GradOperation(get_all=True, sens_param=True)(cell), mode)(*inputs, grad)
    exact = [to_float64(t) for t in inputs]
    want = reference.mhc_post_backward(to_float64(grad), *exact)
    ratios = {"out": float(error_ratio(out, reference.mhc_post(*exact)).max())}
    ratios.update({name: float(error_ratio(g, w).max()) for name, g, w in zip(want._fields, grads, want)})
    return ratios


class _Loss(nn.Cell):
    """A training step's forward: one MhcPre whose every output is used."""

    def __init__(self, pre: MhcPre) -> None:
        super().__init__()
        self.pre = pre

    def construct(self, x: Tensor) -> Tensor:
        h_in, h_post, h_res, x = self.pre(x)
        return ops.cast(h_in, ms.float32).sum() + h_post.sum() + h_res.sum() + (ops.cast(x, ms.float32) * 0.5).sum()


def _step(sizes: Tuple[int, int, int], dtype: str, backend: str) -> Callable[[], Any]:
    tokens, n, d = sizes
    loss = _Loss(MhcPre(n, d, use_gamma=True, return_residual=True, backend=backend))
    gradient = ops.value_and_grad(loss, 0, list(loss.trainable_params()))
    x = _tensor(np.random.default_rng(0).normal(size=(tokens, n, d)), getattr(ms, dtype))
    return lambda: gradient(x)


def kernels_per_step(dtype: str) -> Dict[str, int]:
    """How many nodes of each aclnn kernel the compiled training step of one MhcPre contains."""
    with tempfile.TemporaryDirectory() as folder:
        ms.set_context(save_graphs=2, save_graphs_path=folder)
        try:
            _step((16, 4, 64), dtype, "auto")()
        finally:
            ms.set_context(save_graphs=0)
        graphs = sorted(Path(folder).rglob("*execute*.ir"), key=lambda path: path.stat().st_mtime)
        text = graphs[-1].read_text(errors="replace") if graphs else ""
    found = re.findall(r'func_name: "(?:[^"]*:)?(\w*Mhc\w+)"', text)
    return {name: found.count(name) for name in sorted(set(found))}


def _median_times(steps: Dict[str, Callable[[], Any]], rounds: int) -> Dict[str, List[float]]:
    """Interleaved, so that a disturbance meets all of them."""
    times: Dict[str, List[float]] = {name: [] for name in steps}
    for name in itertools.chain(*itertools.repeat(tuple(steps), rounds)):
        start = time.perf_counter()
        steps[name]()[0].asnumpy()
        times[name].append(time.perf_counter() - start)
    return times


def _timing(dtype: str, sizes: Tuple[int, int, int], rounds: int) -> str:
    steps = {name: _step(sizes, dtype, name) for name in ("auto", "composite")}
    for step in steps.values():
        for _ in range(3):
            step()[0].asnumpy()
    times = _median_times(steps, rounds)
    ratios = sorted(c / a for a, c in zip(times["auto"], times["composite"]))
    return (
        f"  MhcPre forward and backward, T={sizes[0]} N={sizes[1]} D={sizes[2]} {dtype}: "
        f"{statistics.median(times['auto']) * 1e3:.2f} ms; MindSpore ops take "
        f"{statistics.median(ratios):.2f} times as long ({ratios[len(ratios) // 4]:.2f} to "
        f"{ratios[-1 - len(ratios) // 4]:.2f} in the middle half of {rounds} pairs)"
    )


def run(
    say: Callable[[str], Any],
    modes: Sequence[str] = MODES,
    backend: str = "auto",
    quick: bool = False,
    rounds: int = 15,
) -> int:
    """All checks on MindSpore's current device. Returns the number of those that failed."""
    report = Report(say)
    on_ascend = platform.device_target() == "Ascend"
    dtypes = ("bfloat16", "float16") if on_ascend else ("bfloat16", "float16", "float32")
    job = Job("mhc_pre", 4, 64, getattr(ms, dtypes[0]))
    taken = registry.choose("selftest", job, backend).name
    report.say(f"device {platform.device_target()}, backend {taken}")
    before = ms.get_context("mode")
    for mode in modes:
        ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE)
        if mode == "graph" and on_ascend:
            ms.set_context(jit_config={"jit_level": "O0"})
        report.say(f"{mode} mode against the float64 reference:")
        for case in cases(dtypes)[:: 5 if quick else 1]:
            report.add(f"mhc_pre {case}", compare_mhc_pre(case, mode, backend))
        for n, num_iters in ((4, 20), (6, 3), (8, 1)):
            ratios = compare_mhc_sinkhorn(n, num_iters, mode, backend)
            report.add(f"mhc_sinkhorn N={n} num_iters={num_iters}", ratios)
        for n, d, dtype in ((4, 128, dtypes[0]), (6, 64, dtypes[1]), (8, 512, dtypes[0])):
            report.add(f"mhc_post N={n} D={d} {dtype}", compare_mhc_post(n, d, dtype, mode, backend))
    if "graph" in modes:
        ms.set_context(mode=ms.GRAPH_MODE)
        nodes = kernels_per_step(dtypes[0])
        listed = ", ".join(f"{count} {name}" for name, count in nodes.items()) or "none"
        report.say(f"kernels in the compiled training step of one MhcPre: {listed}")
        report.say("time, interleaved:")
        report.say(_timing(dtypes[0], (256, 4, 128) if quick else (1024, 4, 512), rounds))
    ms.set_context(mode=before)
    report.say("all checks passed" if not report.failures else f"{report.failures} checks FAILED")
    return report.failures


def main(device: Optional[str], modes: Sequence[str], backend: str, quick: bool) -> int:
    """Print the report; 0 when all checks passed."""
    if device:
        ms.set_context(device_target=device)
    failures = run(lambda line: print(line, flush=True), modes, backend, quick)
    return 1 if failures else 0
