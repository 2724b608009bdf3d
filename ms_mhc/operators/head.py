"""The learned collapse of the streams at the end of a network. CANN has no kernel for it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Tuple

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.ops import constexpr

from aclnn_adapter.operators import Argument, Operator
from ms_mhc import checks, parallel
from ms_mhc.dispatch import CELLS_KEPT, specs
from ms_mhc.operators import initial
from ms_mhc.operators.arithmetic import bmm, float32, matmul_nt, sigmoid, sum_of_row
from ms_mhc.operators.precision import Float32Cell, GateCell, called_eagerly, local, run_eagerly


def mhc_head(
    x: Tensor, phi: Tensor, scale: Tensor, bias: Tensor, *, norm_eps: float = 1e-6, hc_eps: float = 1e-6
) -> Tensor:
    """Collapse N streams into one by learned gates, as DeepSeek V4 ends a network.

    With xf the N*D values of one token::

        inv_rms = 1 / sqrt(mean(xf**2) + norm_eps)
        gates   = sigmoid(scale * (xf @ phi.T) * inv_rms + bias) + hc_eps
        out     = sum_i gates[i] * x[i]

    Args:
        x: [B, S, N, D] or [T, N, D], bfloat16, float16 or float32.
        phi: [N, N*D], float32.
        scale: [1], float32.
        bias: [N], float32.
        norm_eps: added to the mean square, >= 0.
        hc_eps: added to every gate, >= 0.

    Returns:
        [..., D], in the dtype of x.

    Raises:
        TypeError, ValueError: as :func:`mhc_pre`.
    """
    return _head("mhc_head", (x, phi, scale, bias), norm_eps, hc_eps)


class _Head(Float32Cell):
    """Once per network and cheap, so MindSpore derives its gradient."""

    def __init__(self, norm_eps: float, hc_eps: float) -> None:
        super().__init__()
        self.norm_eps = norm_eps
        self.hc_eps = hc_eps

    def __call__(self, tensors: Tuple[Tensor, ...]) -> Tuple[Tensor, ...]:
        if called_eagerly():
            return run_eagerly(self.construct, tuple(map(local, ("x", "phi", "scale", "bias"), tensors)))
        return nn.Cell.__call__(self, tensors)

    def construct(self, tensors: Tuple[Tensor, ...]) -> Tuple[Tensor, ...]:
        return (self.formula(*tensors),)

    def formula(self, x: Tensor, phi: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        """That of :func:`ms_mhc.reference.mhc_head`."""
        n, d = x.shape[-2], x.shape[-1]
        streams = float32(x).reshape(-1, n, d)
        flat = streams.reshape(-1, n * d)
        inv_rms = 1.0 / ops.sqrt(sum_of_row(flat * flat) / (n * d) + self.norm_eps)
        gates = sigmoid(matmul_nt(flat, phi) * inv_rms * scale + bias) + self.hc_eps
        out = bmm(gates.reshape(-1, 1, n), streams)
        return ops.cast(out.reshape(x.shape[:-2] + (d,)), x.dtype)


_CONTRACT = Operator(
    "MhcHead",
    (
        Argument("x", "input", dtype="x", shape=("T", "N", "D")),
        Argument("phi", "input", dtype="float32", shape=("N", "N*D")),
        Argument("scale", "input", dtype="float32", shape=(1,)),
        Argument("bias", "input", dtype="float32", shape=("N",)),
        Argument("out", "output", dtype="x", shape=("T", "D")),
    ),
    {},
)


def _head(caller: str, tensors: Tuple[Tensor, ...], norm_eps: float, hc_eps: float, layout: Any = None) -> Tensor:
    return _cell(caller, specs(tensors), norm_eps, hc_eps, layout)(tensors)[0]


@constexpr(check=False)
def _cell(caller: str, arguments: Tuple[Any, ...], norm_eps: Any, hc_eps: Any, layout: Any) -> nn.Cell:
    names = [a.snake_name for a in _CONTRACT.inputs]
    checks.tensors(caller, _CONTRACT, names, arguments)
    checks.attributes(caller, {"norm_eps": norm_eps, "hc_eps": hc_eps})
    made = _made(float(norm_eps), float(hc_eps))
    placed = parallel.for_mode(caller, layout, len(arguments[0][0]))
    return made if placed is None else parallel.Placed(_CONTRACT, placed, made.formula)


@lru_cache(maxsize=CELLS_KEPT)
def _made(norm_eps: float, hc_eps: float) -> _Head:
    return _Head(norm_eps, hc_eps)


class MhcHead(GateCell):
    """The learned collapse of N streams into one, as DeepSeek V4 ends a network; see :func:`ms_mhc.mhc_head`.

    Args:
        num_streams: N, >= 1.
        hidden_size: D, >= 1.
        norm_eps: added to the mean square, >= 0.
        hc_eps: added to every gate, >= 0.
        layout: how x is split under semi_auto_parallel, see :class:`ms_mhc.HyperConnection`.

    Parameters (float32): phi [N, N*D], scale [1], bias [N]. With their initial values the gates are 1/N, so that the
    head starts as :func:`ms_mhc.merge_streams`.

    Inputs:
        x: [B, S, N, D] or [T, N, D], bfloat16, float16 or float32.

    Outputs:
        [..., D], in the dtype of x.

    Raises:
        TypeError, ValueError: as :class:`ms_mhc.MhcPre`.
    """

    def __init__(
        self,
        num_streams: int,
        hidden_size: int,
        *,
        norm_eps: float = 1e-6,
        hc_eps: float = 1e-6,
        layout: Any = None,
    ) -> None:
        super().__init__()
        checks.positive_int("MhcHead", "num_streams", num_streams)
        checks.positive_int("MhcHead", "hidden_size", hidden_size)
        checks.eps("MhcHead", "norm_eps", norm_eps)
        checks.eps("MhcHead", "hc_eps", hc_eps)
        parallel.check("MhcHead", layout)
        self.num_streams = num_streams
        self.hidden_size = hidden_size
        self.norm_eps = float(norm_eps)
        self.hc_eps = float(hc_eps)
        self.layout = layout
        self.phi = Parameter(initial.phi(num_streams, num_streams * hidden_size), name="phi")
        self.scale = Parameter(Tensor(np.full(1, initial.ALPHA, np.float32)), name="scale")
        self.bias = Parameter(Tensor(initial.mean_logits(num_streams)), name="bias")

    def construct(self, x: Tensor) -> Tensor:
        tensors = (self.streams(x), self.phi, self.scale, self.bias)
        return _head("MhcHead", tensors, self.norm_eps, self.hc_eps, self.layout)

    def extend_repr(self) -> str:
        return (
            f"num_streams={self.num_streams}, hidden_size={self.hidden_size}, norm_eps={self.norm_eps}, "
            f"hc_eps={self.hc_eps}"
        )
