"""A small network that is trained in every way there is, and what a training leaves behind.

Its weights, its data and its rate are such that ten steps change the loss and nothing grows: what rounding makes of
them stays small, and what a wrong gradient makes of them does not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, List, Optional, Tuple

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from mindspore.parallel import Layout

from ms_mhc import HyperConnection, MhcHead, expand_streams, merge_streams
from tests.launch import Trained

BATCH, SEQUENCE, STREAMS, SIZE, LAYERS = 4, 4, 4, 64, 2
TOKENS = BATCH * SEQUENCE
STEPS, RATE, MICRO_BATCHES = 10, 1e-2, 2

# Of the largest entry. A step adds up to a thousand rounded numbers, an error of about sqrt(1000) units in the last
# place, and ten steps follow one another: some hundreds of units, of float32.
TOLERANCE = 2**10 * float(np.finfo(np.float32).eps)


class Split:
    """How many ranks there are along the batch and along the sequence, and how many have the same tokens.

    Only for graphs that MindSpore distributes itself; in all others it stays as it is.
    """

    def __init__(self, batch: int = 1, sequence: int = 1, same: int = 1) -> None:
        self.batch, self.sequence, self.same = batch, sequence, same

    def layout(self, flat: bool = False) -> Layout:
        """Of the streams, [B, S, N, D] or [T, N, D]."""
        mesh = Layout((self.batch, self.sequence, self.same), ("dp", "sp", "tp"))
        return mesh("dp", "None", "None") if flat else mesh("dp", "sp", "None", "None")

    def __call__(self, primitive: Any, *ranks: int) -> Any:
        """An operator whose inputs have these ranks; those of rank 1 are parameters, all others begin with B and S."""
        if self.batch * self.sequence * self.same == 1:
            return primitive
        return primitive.shard(tuple((1,) if r == 1 else (self.batch, self.sequence, *[1] * (r - 2)) for r in ranks))

    def rows_and_all_keys(self, primitive: Any) -> Any:
        """A product of what the rows of this part of the sequence have with the keys of the whole sequence."""
        if self.batch * self.sequence * self.same == 1:
            return primitive
        return primitive.shard(((self.batch, self.sequence, 1), (self.batch, 1, 1)))


class Attention(nn.Cell):
    """Looks at all tokens of a sequence, in float32. The keys are the values too.

    Args:
        split: in graphs that MindSpore distributes.
        gather: joins the keys of the parts of a sequence, where it was split by hand.
        flat: whether h is [T, D] rather than [B, S, D].
    """

    def __init__(self, split: Split, gather: Optional[nn.Cell], flat: bool) -> None:
        super().__init__()
        self.query = Parameter(Tensor(np.zeros(SIZE, np.float32)), name="query")
        self.key = Parameter(Tensor(np.ones(SIZE, np.float32)), name="key")
        self.gather = gather
        self.flat = flat
        self.cast = split(ops.Cast(), 3)
        self.mul = split(ops.Mul(), 3, 1)
        self.scores = split.rows_and_all_keys(ops.BatchMatMul(transpose_b=True))
        self.softmax = split(ops.Softmax(), 3)
        self.mix = split.rows_and_all_keys(ops.BatchMatMul())
        self.tanh = split(ops.Tanh(), 3)

    def construct(self, h: Tensor) -> Tensor:
        if self.flat:
            h = ops.reshape(h, (BATCH, SEQUENCE, SIZE))
        h = self.cast(h, ms.float32)
        keys = self.mul(h, self.key)
        if self.gather is not None:
            keys = self.gather(keys)
        weights = self.softmax(self.scores(self.mul(h, self.query), keys))
        out = self.tanh(self.mix(weights, keys))
        return ops.reshape(out, (TOKENS, SIZE)) if self.flat else out


class Embedding(nn.Cell):
    """Stands for what comes before the streams. MindSpore wants a parameter of plain operators in the first stage."""

    def __init__(self, split: Split, dtype: Any) -> None:
        super().__init__()
        self.scale = Parameter(Tensor(np.ones(SIZE, np.float32)), name="scale")
        self.mul = split(ops.Mul(), 3, 1)
        self.cast = split(ops.Cast(), 3)
        self.dtype = dtype

    def construct(self, h: Tensor) -> Tensor:
        return self.cast(self.mul(h, self.scale), self.dtype)


class Network(nn.Cell):
    """From h and a target, both [B, S, D], to the sum of squares over what there is, divided by ``tokens``.

    The streams end twice: in their mean between the layers, from which they begin again, and in a learned collapse.
    """

    def __init__(
        self,
        split: Split,
        gather: Optional[nn.Cell] = None,
        tokens: int = TOKENS,
        backend: str = "auto",
        dtype: Any = ms.float32,
        flat: bool = False,
    ) -> None:
        super().__init__()
        self.embedding = Embedding(split, dtype)
        first = Attention(split, gather, False)
        second = Attention(split, gather, flat)
        self.layout, self.last_layout = split.layout(), split.layout(flat)
        usual = {"num_iters": 4, "backend": backend}  # few steps of Sinkhorn, which compile faster
        self.first = HyperConnection(STREAMS, SIZE, first, use_gamma=True, layout=self.layout, **usual)
        self.second = HyperConnection(STREAMS, SIZE, second, layout=self.last_layout, **usual)
        self.head = MhcHead(STREAMS, SIZE, layout=self.last_layout)
        self.flat = flat
        self.tokens = tokens
        self.cast = split(ops.Cast(), 3)
        self.sub = split(ops.Sub(), 3, 3)
        self.square = split(ops.Square(), 3)
        self.sum = split(ops.ReduceSum(), 3)

    def construct(self, h: Tensor, target: Tensor) -> Tensor:
        x = self.first(expand_streams(self.embedding(h), STREAMS, layout=self.layout))
        h = merge_streams(x, layout=self.layout)
        if self.flat:
            h = ops.reshape(h, (TOKENS, SIZE))
        out = self.head(self.second(expand_streams(h, STREAMS, layout=self.last_layout)))
        if self.flat:
            out = ops.reshape(out, (BATCH, SEQUENCE, SIZE))
        return self.sum(self.square(self.sub(self.cast(out, ms.float32), target))) / self.tokens


def initialise(network: nn.Cell) -> None:
    """Small deviations from the initial values, the same for the same names."""
    for parameter in network.trainable_params():
        rng = np.random.default_rng(list(parameter.name.encode()))
        noise = rng.normal(0, 0.02 if parameter.name.endswith("phi") else 0.2, parameter.shape)
        start = 0.0 if parameter.name.endswith("phi") else parameter.asnumpy()
        parameter.set_data(Tensor((start + noise).astype(np.float32)))


def batch() -> Tuple[np.ndarray, np.ndarray]:
    """h and the target, the same at every step."""
    rng = np.random.default_rng(0)
    h = rng.normal(size=(BATCH, SEQUENCE, SIZE)).astype(np.float32)
    return h, np.tanh(np.roll(h, 1, 1))


def optimizer_of(network: nn.Cell) -> nn.Optimizer:
    """Without momentum: what it keeps for every parameter is the gradient of the last step."""
    return nn.Momentum(network.trainable_params(), RATE, 0.0)


def report(number: int, rank: int, losses: List[float], optimizer: nn.Optimizer, folder: Optional[str]) -> None:
    """Prints the losses of a case; saves the trained parameters and the gradients of the last step."""
    if folder:
        values = {}
        for parameter, gradient in zip(optimizer.parameters, optimizer.moments):
            values[parameter.name] = parameter.asnumpy()
            values["gradient of " + parameter.name] = gradient.asnumpy()
        np.savez(Path(folder) / f"{number}.{rank}.npz", **values)
    print("LOSSES", json.dumps({"case": number, "rank": rank, "losses": losses}), flush=True)


def assert_trains(found: Trained) -> None:
    """The loss falls at every step, and by a lot."""
    assert len(found.losses) == STEPS
    assert all(after < before for before, after in zip(found.losses, found.losses[1:]))
    assert found.losses[-1] < found.losses[0] / 2
    gradients = {name: value for name, value in found.values.items() if name.startswith("gradient of ")}
    assert len(gradients) * 2 == len(found.values)
    assert all(np.abs(value).max() > 0 for value in gradients.values())


def assert_same(found: Trained, expected: Trained, tolerance: float = TOLERANCE) -> None:
    """Losses, parameters, and gradients of the last step are the same but for rounding."""
    assert found.losses == pytest.approx(expected.losses, rel=tolerance)
    assert found.values.keys() == expected.values.keys()
    for name, value in expected.values.items():
        assert found.values[name].shape == value.shape, name
        error = np.abs(found.values[name] - value).max() / np.abs(value).max()
        assert error <= tolerance, f"{name}: {error:.3g} of its largest entry off, {tolerance:.3g} allowed"
