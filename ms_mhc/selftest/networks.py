"""What a single operator does not show: recomputation, a hundred training steps, kernels per step, time."""

from __future__ import annotations

import itertools
import math
import re
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from ms_mhc import HyperConnection, MhcPre, expand_streams, merge_streams
from ms_mhc.accuracy import to_float64
from ms_mhc.selftest.machine import wrapped

STEPS = 100
_N, _D, _LAYERS = 4, 64, 2
_ALLOWED = {"float32": 1e-3, "bfloat16": 5e-2, "float16": 1e-2}  # of a loss, after a hundred rounded steps


class _Branch(nn.Cell):
    """A layer in fp32 between streams of any dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(_D, _D)

    def construct(self, h: Tensor) -> Tensor:
        return ops.cast(ops.tanh(self.dense(ops.cast(h, ms.float32))), h.dtype)


class _Network(nn.Cell):
    """Some connections, and the mean square distance to a target."""

    def __init__(self, backend: str, dtype: Any, recompute: bool) -> None:
        super().__init__()
        self.dtype = dtype
        layers = [HyperConnection(_N, _D, _Branch(), use_gamma=True, backend=backend) for _ in range(_LAYERS)]
        for layer in layers if recompute else ():
            layer.recompute()
        self.layers = nn.SequentialCell(layers)
        rng = np.random.default_rng(0)
        for parameter in self.trainable_params():
            kind = str(parameter.name).rsplit(".", 1)[-1]
            scale, offset = {"alpha": (0.3, 0.5), "gamma": (0.1, 1.0), "bias": (0.1, 0.0)}.get(kind, (0.1, 0.0))
            parameter.set_data(Tensor((rng.normal(size=parameter.shape) * scale + offset).astype(np.float32)))

    def construct(self, h: Tensor, target: Tensor) -> Tensor:
        x = expand_streams(ops.cast(h, self.dtype), _N)
        out = ops.cast(merge_streams(self.layers(x)), ms.float32)
        difference = out - target
        return (difference * difference).mean()


def _batch(index: int) -> Tuple[Tensor, Tensor]:
    rng = np.random.default_rng(index)
    h = rng.normal(size=(2, 9, _D)).astype(np.float32)
    return Tensor(h), Tensor(np.roll(h, 1, axis=-1) * np.float32(0.5))


def recompute_difference(way: str, dtype: str, backend: str) -> float:
    """The largest difference that ``recompute()`` makes to loss and gradients, as a fraction of the largest entry."""
    results = []
    for recompute in (False, True):
        network = _Network(backend, getattr(ms, dtype), recompute)
        step = wrapped(ops.value_and_grad(network, 0, list(network.trainable_params())), way)
        loss, (grad_h, grads) = step(*_batch(0))
        results.append([to_float64(tensor) for tensor in (loss, grad_h, *grads)])
    return max(float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-30)) for a, b in zip(*results))


def training_losses(way: str, dtype: str, backend: str, steps: int = STEPS) -> List[float]:
    """Of some steps of Adam, always from the same start on the same data."""
    network = _Network(backend, getattr(ms, dtype), recompute=False)
    step = nn.TrainOneStepCell(network, nn.Adam(network.trainable_params(), 5e-3)).set_train()
    run = wrapped(step, way)
    return [float(to_float64(run(*_batch(index)))) for index in range(steps)]


def compare_training(losses: List[float], plain: List[float], dtype: str) -> Dict[str, float]:
    """How far a training is from one that is right, as fractions of what is allowed.

    In a hundred steps the loss must fall to less than a half (in fewer, fall clearly), and in every step be near that
    of the composite backend.
    """
    tenth = max(1, len(losses) // 10)
    end, start = statistics.fmean(losses[-tenth:]), statistics.fmean(losses[:tenth])
    apart = max(abs(a / b - 1) if math.isfinite(a / b) else math.inf for a, b in zip(losses, plain))
    fallen = end / start / (0.5 if len(losses) >= STEPS else 0.9)
    return {"fall": fallen if math.isfinite(fallen) else math.inf, "composite": apart / _ALLOWED[dtype]}


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
    x = Tensor(np.random.default_rng(0).normal(size=(tokens, n, d)).astype(np.float32), getattr(ms, dtype))
    return lambda: gradient(x)


def kernels_per_step(dtype: str, backend: str) -> Dict[str, int]:
    """How many nodes of each kernel the compiled training step of one MhcPre contains. The context is the caller's."""
    with tempfile.TemporaryDirectory() as folder:
        ms.set_context(save_graphs=2, save_graphs_path=folder)
        try:
            _step((16, 4, 64), dtype, backend)()
        finally:
            ms.set_context(save_graphs=0)
        graphs = sorted(Path(folder).rglob("*execute*.ir"), key=lambda path: path.stat().st_mtime)
        text = graphs[-1].read_text(errors="replace") if graphs else ""
    found = re.findall(r'func_name: "(?:[^"]*:)?(\w*Mhc\w+)"', text)
    return {name: found.count(name) for name in sorted(set(found))}


def times(dtype: str, sizes: Tuple[int, int, int], backend: str, rounds: int = 15) -> Dict[str, Any]:
    """Forward and backward of one MhcPre, interleaved with MindSpore ops so that a disturbance meets both."""
    steps = {"ours": _step(sizes, dtype, backend), "composite": _step(sizes, dtype, "composite")}
    for step in steps.values():
        for _ in range(3):
            step()[0].asnumpy()
    taken: Dict[str, List[float]] = {name: [] for name in steps}
    for name in itertools.chain(*itertools.repeat(tuple(steps), rounds)):
        start = time.perf_counter()
        steps[name]()[0].asnumpy()
        taken[name].append(time.perf_counter() - start)
    ratios = sorted(c / o for o, c in zip(taken["ours"], taken["composite"]))
    return {
        "shape": list(sizes),
        "dtype": dtype,
        "milliseconds": 1e3 * statistics.median(taken["ours"]),
        "composite_over_ours": statistics.median(ratios),
        "quartiles": [ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]],
        "pairs": rounds,
    }
