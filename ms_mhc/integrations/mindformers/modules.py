"""Subclasses of MindSpore Transformers' hyper-connections that compute with these operators.

Everything but the computation is theirs: what ``__init__`` makes and ``reset_parameter`` fills. Streams come packed,
[S, B, N*D]; the operators work token by token, so that S and B may stand in any order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Tuple

import mindspore as ms
from mindspore import Tensor, mint, nn, ops
from mindspore.ops import constexpr

from ms_mhc.dispatch import Options, joined, present, specs
from ms_mhc.integrations.mindformers import report
from ms_mhc.interop.versions import Convention
from ms_mhc.operators.head import mhc_head
from ms_mhc.operators.pre_sinkhorn import pre_sinkhorn
from ms_mhc.operators.precision import local


@dataclass(frozen=True)
class Settings:
    """How a module computes.

    Attributes:
        convention: what their version computes from the same tensors.
        backend, precision: as in :func:`ms_mhc.mhc_pre_sinkhorn`.
        share: whether the streams travel on beside h_res.
        fused: whether theirs calls the vendor's kernel, which takes the streams in the network's dtype.
    """

    convention: Convention
    backend: str
    precision: str
    share: bool
    fused: bool


@constexpr(check=False)
def _read(arguments: Tuple[Any, ...], attributes: Tuple[Any, ...], options: Tuple[Any, ...]) -> nn.Cell:
    report.say_once(arguments, attributes, Options(*options))
    return pre_sinkhorn("HyperConnectionModule", arguments, attributes, options)


class _Connection(nn.Cell):
    """HyperConnectionModule: [S, B, N*D] to what the sublayer reads, h_res and h_post."""

    settings: Settings

    def __init__(self, config: Any, layer_number: int) -> None:
        super().__init__(config=config, layer_number=layer_number)
        settings, convention = self.settings, self.settings.convention
        self.fused = settings.fused
        self.share = settings.share
        self.transposed = convention.mixing == "h_res @ x"
        num_iters = max(int(self.sinkhorn_iterations), 1)  # 2.1.0 takes 0, which is 1 there; 2.0.0 does not
        self.attributes = (
            float(self.norm_eps), convention.hc_eps, convention.sinkhorn_eps, num_iters, convention.recipe,
        )  # fmt: skip
        sizes = (self.n, self.hidden_size)
        self.options = tuple(Options(settings.backend, settings.precision, settings.share, sizes, eager_kernels=True))
        self.output_cell = _OutputCell(self.n, self.hidden_size, self.dtype, settings.backend)

    def construct(self, hidden_states: Tensor) -> Tuple[Any, ...]:
        s, b = hidden_states.shape[0], hidden_states.shape[1]
        streams = ops.cast(hidden_states, self.dtype) if self.fused else hidden_states
        # a row of the projection times the weight of the norm: whatever that is, it is honoured
        phi = local("mapping_proj.weight", self.mapping_proj.weight) * local("rms_weight", self.rms_weight)
        alphas = (
            local("alpha_pre", self.alpha_pre),
            local("alpha_post", self.alpha_post),
            local("alpha_res", self.alpha_res),
        )
        x = streams.reshape(s, b, self.n, self.hidden_size)
        tensors = (x, phi, mint.cat(alphas), local("bias", self.bias), None)
        read = _read(specs(tensors), self.attributes, self.options)(present(tensors))
        h_in, h_post, h_res = ops.cast(read[0], self.dtype), read[1].reshape(s, b, self.n, 1), read[2]
        if self.transposed:
            h_res = mint.permute(h_res, (0, 1, 3, 2))
        if self.share:
            return h_in, (h_res, read[len(read) - 1]), h_post
        return h_in, h_res, h_post


class _OutputCell(nn.Cell):
    """HyperConnectionOutputCell: the streams after the sublayer, [S, B, N*D] in the network's dtype."""

    def __init__(self, n: int, hidden_size: int, dtype: Any, backend: str) -> None:
        super().__init__()
        self.n, self.hidden_size, self.dtype = n, hidden_size, dtype
        self.options = tuple(Options(backend, eager_kernels=True))

    def construct(self, h_res: Any, h_post: Tensor, original_streams: Tensor, sublayer_out: Tensor) -> Tensor:
        """``h_res`` may be a pair with the streams, through which their gradient comes back."""
        s, b = original_streams.shape[0], original_streams.shape[1]
        if isinstance(h_res, tuple):
            matrices, x = h_res
        else:
            matrices, x = h_res, original_streams.reshape(s, b, self.n, self.hidden_size)
        h_out = sublayer_out
        if h_out.dtype != x.dtype:  # theirs rounds once, at the end
            h_out, x = ops.cast(h_out, ms.float32), ops.cast(x, ms.float32)
        tensors = (x, matrices, h_out, h_post.reshape(s, b, self.n))
        out = joined("HyperConnectionOutputCell", "mhc_post", specs(tensors), (), self.options)(tensors)[0]
        return ops.cast(out, self.dtype).reshape(s, b, self.n * self.hidden_size)


class _Head(nn.Cell):
    """HyperConnectionHead: [S, B, N*D] to [S, B, D]."""

    def construct(self, hidden_states: Tensor) -> Tensor:
        s, b = hidden_states.shape[0], hidden_states.shape[1]
        x = hidden_states.reshape(s, b, self.n, self.hidden_size)
        phi, scale = local("hc_fn.weight", self.hc_fn.weight), local("hc_scale", self.hc_scale)
        out = mhc_head(
            x, phi, scale, local("hc_base", self.hc_base), norm_eps=float(self.norm_eps), hc_eps=float(self.hc_eps)
        )
        return ops.cast(out, self.dtype)


def connection(theirs: type, settings: Settings) -> type:
    """The subclass of one of their two modules."""
    return _subclass(_Connection, theirs, {"settings": settings})


def head(theirs: type) -> type:
    """The subclass of their head."""
    return _subclass(_Head, theirs, {})


def _subclass(ours: type, theirs: type, attributes: Any) -> type:
    doc = f"{theirs.__name__} of MindSpore Transformers, computed by ms_mhc."
    return type(f"MsMhc{theirs.__name__}", (ours, theirs), {**attributes, "__doc__": doc, "__module__": __name__})
