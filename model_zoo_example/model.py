"""A decoder-only transformer whose residual connections are mHC, hyper-connections without Sinkhorn, or additions.

The layers are small and explicit. They use operators which exist on the CPU and, as aclnn calls, on Ascend; where no
single operator does both (embedding, layer norm), the cell picks one when it is built.
"""

from __future__ import annotations

import math
import zlib

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

from model_zoo_example.data import VOCABULARY_SIZE
from model_zoo_example.settings import Settings
from ms_mhc import HyperConnection, MhcPost, MhcPre, expand_streams, merge_streams

EMBEDDING_STD = 0.3
LOGITS_STD = 0.02  # small: at the start every byte is about as likely as any other
MASKED = -1e4  # added to a score that attention must not see; also fits float16


def _on_ascend() -> bool:
    return bool(ms.get_context("device_target") == "Ascend")


class Linear(nn.Cell):
    """A matrix product without bias, in the dtype of its input."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.zeros((inputs, outputs), np.float32)))

    def construct(self, h: Tensor) -> Tensor:
        flat = mint.matmul(h.reshape(-1, h.shape[-1]), ops.cast(self.weight, h.dtype))
        return flat.reshape(h.shape[:-1] + (-1,))


class LayerNorm(nn.Cell):
    """Layer norm over the last dimension, computed in float32."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.ones(size, np.float32)))
        self.bias = Parameter(Tensor(np.zeros(size, np.float32)))
        self.shape = [size]
        self.on_ascend = _on_ascend()
        self.cpu_norm = ops.LayerNorm(begin_norm_axis=-1, begin_params_axis=-1, epsilon=1e-5)

    def construct(self, h: Tensor) -> Tensor:
        dtype = h.dtype
        h = ops.cast(h, ms.float32)
        if self.on_ascend:
            h = mint.nn.functional.layer_norm(h, self.shape, self.weight, self.bias, 1e-5)
        else:
            h = self.cpu_norm(h, self.weight, self.bias)[0]
        return ops.cast(h, dtype)


class Embedding(nn.Cell):
    """Rows of a table for the bytes, plus one row for each position."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.zeros((VOCABULARY_SIZE, settings.hidden_size), np.float32)))
        self.position_weight = Parameter(Tensor(np.zeros((settings.context, settings.hidden_size), np.float32)))
        self.on_ascend = _on_ascend()

    def construct(self, tokens: Tensor) -> Tensor:
        if self.on_ascend:
            return mint.nn.functional.embedding(tokens, self.weight) + self.position_weight
        return ops.gather(self.weight, tokens, 0) + self.position_weight


class Attention(nn.Cell):
    """Pre-norm and causal attention: [B, S, D] to [B, S, D]."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.num_heads = settings.num_heads
        self.scale = 1.0 / math.sqrt(settings.hidden_size // settings.num_heads)
        self.norm = LayerNorm(settings.hidden_size)
        self.query_key_value = Linear(settings.hidden_size, 3 * settings.hidden_size)
        self.output = Linear(settings.hidden_size, settings.hidden_size)
        self.by_transposed = ops.BatchMatMul(transpose_b=True)
        later = np.triu(np.ones((settings.context, settings.context), np.float32), k=1)
        self.mask = Tensor(MASKED * later)

    def construct(self, h: Tensor) -> Tensor:
        batch, length, size = h.shape
        heads = self.num_heads
        qkv = self.query_key_value(self.norm(h)).reshape(batch, length, 3, heads, size // heads)
        # One transpose, then a split along the first dimension: its parts are contiguous. (MindSpore 2.10 on the CPU in
        # PyNative mode computes a wrong gradient for a matrix product of parts which are not.)
        q, k, v = mint.split(ops.transpose(qkv, (2, 0, 3, 1, 4)), 1, dim=0)
        parts = (batch * heads, length, size // heads)
        scores = self.by_transposed(q.reshape(parts), k.reshape(parts))
        scores = ops.cast(scores, ms.float32) * self.scale + self.mask
        weights = ops.cast(ops.softmax(scores, -1), h.dtype)
        mixed = mint.bmm(weights, v.reshape(parts)).reshape(batch, heads, length, -1)
        return self.output(ops.transpose(mixed, (0, 2, 1, 3)).reshape(h.shape))


class Mlp(nn.Cell):
    """Pre-norm and two linear layers with a GELU between them: [B, S, D] to [B, S, D]."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.norm = LayerNorm(settings.hidden_size)
        self.widen = Linear(settings.hidden_size, settings.mlp_size)
        self.output = Linear(settings.mlp_size, settings.hidden_size)

    def construct(self, h: Tensor) -> Tensor:
        return self.output(ops.gelu(self.widen(self.norm(h)), approximate="tanh"))


class PlainResidual(nn.Cell):
    """The residual connection of the ordinary transformer: h + branch(h)."""

    def __init__(self, branch: nn.Cell) -> None:
        super().__init__()
        self.branch = branch

    def construct(self, h: Tensor) -> Tensor:
        return h + self.branch(h)


class UnconstrainedConnection(nn.Cell):
    """Hyper-connections as they were before mHC: h_res is applied as it comes, with no Sinkhorn behind it.

    All else is that of ``HyperConnection``, so that a comparison shows what the constraint does. The start values make
    h_res the identity: the plain residual connection, as in the other two.
    """

    def __init__(self, num_streams: int, hidden_size: int, branch: nn.Cell, *, backend: str = "auto") -> None:
        super().__init__()
        self.pre = MhcPre(num_streams, hidden_size, return_residual=True, backend=backend)
        self.branch = branch
        self.post = MhcPost(backend)
        bias = self.pre.bias.asnumpy().copy()
        bias[2 * num_streams :] = np.eye(num_streams, dtype=np.float32).reshape(-1)
        self.pre.bias.set_data(Tensor(bias))

    def construct(self, x: Tensor) -> Tensor:
        h_in, h_post, h_res, x = self.pre(x)
        return self.post(x, h_res, self.branch(h_in), h_post)


class Transformer(nn.Cell):
    """Bytes [B, S] to logits [B, S, 256] in float32.

    Args:
        settings: the sizes, and the seed that decides the weights. Each is drawn by its own name, so that those which
            the plain and the mHC network share are the same in both.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.num_streams = settings.num_streams if settings.residual != "plain" else 0
        self.dtype = getattr(ms, settings.dtype)
        self.embedding = Embedding(settings)
        branches = [branch(settings) for _ in range(settings.num_layers) for branch in (Attention, Mlp)]
        self.blocks = nn.SequentialCell([_residual(branch, settings) for branch in branches])
        if self.num_streams:
            for place, connection in enumerate(self.blocks):
                _spread_streams(connection, place)
        self.norm = LayerNorm(settings.hidden_size)
        self.logits = Linear(settings.hidden_size, VOCABULARY_SIZE)
        _draw_weights(self, settings.seed, len(branches))
        if settings.recompute:
            for connection in self.blocks:
                connection.recompute()

    def construct(self, tokens: Tensor) -> Tensor:
        h = ops.cast(self.embedding(tokens), self.dtype)
        n = self.num_streams
        h = merge_streams(self.blocks(expand_streams(h, n))) if n else self.blocks(h)
        return ops.cast(self.logits(self.norm(h)), ms.float32)


def _residual(branch: nn.Cell, settings: Settings) -> nn.Cell:
    if settings.residual == "plain":
        return PlainResidual(branch)
    connection = HyperConnection if settings.residual == "mhc" else UnconstrainedConnection
    return connection(settings.num_streams, settings.hidden_size, branch, backend=settings.backend)


def _spread_streams(connection: nn.Cell, place: int) -> None:
    """Give the streams different shares of what the branch adds, 1 on average, in another order at every place.

    The average of the streams, which is all that the branches and the logits read at the start, stays what it is in the
    plain network. With equal shares the streams would start as copies of each other and take long to become different;
    until then h_res has nothing to mix.
    """
    n = connection.pre.num_streams
    bias = connection.pre.bias.asnumpy().copy()
    if n > 1:
        bias[n : 2 * n] = np.roll(np.linspace(-1.0, 1.0, n), place)  # h_post = 2 * sigmoid(bias)
    connection.pre.bias.set_data(Tensor(bias))


def _draw_weights(network: nn.Cell, seed: int, num_branches: int) -> None:
    """Fill the matrices of the layers above. The parameters of mHC keep the values that the package gives them."""
    for name, parameter in network.parameters_and_names():
        if not (name.endswith("weight") and parameter.ndim == 2):
            continue
        if name.startswith("embedding."):
            std = EMBEDDING_STD
        elif name.startswith("logits."):
            std = LOGITS_STD
        else:
            std = 1.0 / math.sqrt(parameter.shape[0])
        if name.endswith("output.weight"):
            std /= math.sqrt(num_branches)
        rng = np.random.default_rng((seed, zlib.crc32(name.encode())))
        parameter.set_data(Tensor(rng.normal(0.0, std, parameter.shape).astype(np.float32)))


class Loss(nn.Cell):
    """Mean negative log-likelihood of the targets, in nats per byte."""

    def __init__(self, network: nn.Cell) -> None:
        super().__init__()
        self.network = network

    def construct(self, tokens: Tensor, targets: Tensor) -> Tensor:
        logits = self.network(tokens)
        log_likelihood = ops.log_softmax(logits.reshape(-1, logits.shape[-1]), -1)
        return -mint.mean(mint.gather(log_likelihood, 1, targets.reshape(-1, 1)))
