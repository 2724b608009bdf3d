"""What is measured: an operator, a pass, a dtype and sizes; its input, and the least work that it can mean."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Dict, Iterable, List, Optional, Tuple

import numpy as np
from numpy.typing import NDArray

from aclnn_adapter import operators
from aclnn_adapter.operators import Argument, num_gates, resolve

Array = NDArray[np.float32]

OPERATORS = ("mhc_pre", "mhc_post", "mhc_sinkhorn", "hyper_connection")
PASSES = ("forward", "both")  # both: forward and backward
DTYPES = ("float32", "bfloat16")
NUM_ITERS = 20
RECIPE = "deepseek_v4"
EPS = 1e-6

_ITEM_SIZE = {"float32": 4, "bfloat16": 2}
CONTRACTS = {
    "mhc_pre": (operators.MHC_PRE, operators.MHC_PRE_BACKWARD),
    "mhc_post": (operators.MHC_POST, operators.MHC_POST_BACKWARD),
    "mhc_sinkhorn": (operators.MHC_SINKHORN, operators.MHC_SINKHORN_BACKWARD),
}
_PARTS = ("mhc_pre", "mhc_sinkhorn", "mhc_post")
_OF_THE_VENDOR = ("normOut", "sumOut")  # what aclnn saves for Sinkhorn's backward; nobody else does


@dataclass(frozen=True)
class Shape:
    """T tokens, N streams, hidden size D."""

    tokens: int
    streams: int
    hidden: int

    def __str__(self) -> str:
        return f"{self.tokens},{self.streams},{self.hidden}"


@dataclass(frozen=True)
class Task:
    """One row of the table."""

    operator: str
    passes: str
    dtype: str
    shape: Shape

    def __str__(self) -> str:
        return f"{self.operator} {self.passes} {self.dtype} {self.shape}"


@dataclass(frozen=True)
class Inputs:
    """The numbers that every contender gets. ``streams`` names those that take the task's dtype."""

    tensors: Dict[str, Array]
    parameters: Dict[str, Array]  # of the cell HyperConnection; elsewhere parameters are tensors too
    cotangents: Tuple[Array, ...]
    streams: Tuple[str, ...]


def make_inputs(task: Task, seed: int = 0) -> Inputs:
    """Random numbers of the sizes that occur in networks; the same ones for the same task."""
    rng = np.random.default_rng(seed)
    t, n, d = task.shape.tokens, task.shape.streams, task.shape.hidden
    f = num_gates(n)

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape, dtype=np.float32)

    if task.operator == "mhc_sinkhorn":
        return Inputs({"h_res": normal(t, n, n)}, {}, (normal(t, n, n),), ())
    x = normal(t, n, d)
    if task.operator == "mhc_post":
        tensors = {"x": x, "h_res": np.abs(normal(t, n, n)) / n, "h_out": normal(t, d), "h_post": normal(t, n)}
        return Inputs(tensors, {}, (normal(t, n, d),), ("x", "h_out"))
    weights = {"phi": normal(f, n * d) / np.float32(math.sqrt(n * d)), "alpha": normal(3), "bias": normal(f)}
    if task.operator == "mhc_pre":
        return Inputs({"x": x, **weights}, {}, (normal(t, d), normal(t, n), normal(t, n, n)), ("x",))
    return Inputs({"x": x}, weights, (normal(t, n, d),), ("x",))


def symbols(task: Task) -> Dict[str, Tuple[int, ...]]:
    """The sizes of the contract's symbols."""
    t, n, d = task.shape.tokens, task.shape.streams, task.shape.hidden
    return {"T": (t,), "N": (n,), "D": (d,), "F": (num_gates(n),), "I": (NUM_ITERS,)}


def _bytes(arguments: Iterable[Argument], task: Task) -> int:
    sizes, item = symbols(task), _ITEM_SIZE[task.dtype]
    return sum(math.prod(resolve(a.shape, sizes)) * (item if a.dtype == "x" else 4) for a in arguments)


def least_bytes(task: Task) -> int:
    """Every input read once and every output written once, pass by pass: no implementation can move less.

    (That holds for tensors larger than the caches. The whole HyperConnection counts its three operators; its branch
    does nothing.)
    """
    if task.operator == "hyper_connection":
        return sum(least_bytes(Task(part, task.passes, task.dtype, task.shape)) for part in _PARTS)
    forward, backward = CONTRACTS[task.operator]
    total = _bytes(present(forward.inputs + forward.outputs), task)
    if task.passes == "both":
        total += _bytes(present(backward.inputs + backward.outputs), task)
        if task.operator == "mhc_sinkhorn":  # its logits, in place of what the vendor saved
            total += _bytes(forward.inputs, task)
    return total


def present(arguments: Iterable[Argument]) -> List[Argument]:
    """Without gamma, grad_x_post and the vendor's own tensors."""
    absent = ("gammaOptional", "gradXPostOptional", "gradGamma", *_OF_THE_VENDOR)
    return [a for a in arguments if a.name not in absent]


def least_operations(task: Task) -> int:
    """Additions and multiplications of the formulas, terms without a factor D or N*N left out."""
    t, n, d = task.shape.tokens, task.shape.streams, task.shape.hidden
    f, both = num_gates(n), task.passes == "both"
    if task.operator == "hyper_connection":
        return sum(least_operations(Task(part, task.passes, task.dtype, task.shape)) for part in _PARTS)
    if task.operator == "mhc_sinkhorn":
        steps = 2 * NUM_ITERS  # each adds N*N numbers and divides N*N; backward also multiplies, adds and divides
        return t * n * n * steps * (2 + (2 + 4) * both)
    if task.operator == "mhc_post":
        forward, backward = 2 * n * n * d + 2 * n * d, 4 * n * n * d + 4 * n * d
    else:  # products with phi (one forward, two backward), then h_in and the mean square; gates and grad_x
        forward, backward = 2 * f * n * d + 4 * n * d, 4 * f * n * d + 6 * n * d
    return t * (forward + both * backward)


def saved_bytes_per_token(task: Task) -> Optional[float]:
    """What our forward keeps for backward beyond the operator's own inputs. ``None`` where there is no backward."""
    if task.passes == "forward":
        return None
    n, d = task.shape.streams, task.shape.hidden
    pre = 4 * (n * n + 4 * n + 1)  # h_mix, h_pre, h_post, inv_rms
    if task.operator == "mhc_pre":
        return float(pre)
    if task.operator == "hyper_connection":  # and logits, their Sinkhorn result, and h_out for MhcPost
        return float(pre + 2 * 4 * n * n + d * _ITEM_SIZE[task.dtype])
    return 0.0
