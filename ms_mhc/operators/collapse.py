"""The formula of :func:`ms_mhc.mhc_head`, and the cell that computes it where it is called.

In a file of its own: amp O1 copies a construct and the functions that it calls, but not what stands beside them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Tuple

from mindspore import Tensor, nn, ops
from mindspore.ops import constexpr

from aclnn_adapter.operators import Argument, Operator
from aclnn_adapter.platform import called_eagerly
from ms_mhc import checks, parallel
from ms_mhc.dispatch import CELLS_KEPT
from ms_mhc.operators.arithmetic import bmm, float32, matmul_nt, sigmoid, sum_of_row
from ms_mhc.operators.precision import Float32Cell, entering, ready, run_eagerly


class _Head(Float32Cell):
    """Once per network and cheap, so MindSpore derives its gradient."""

    def __init__(self, norm_eps: float, hc_eps: float) -> None:
        super().__init__()
        self.norm_eps = norm_eps
        self.hc_eps = hc_eps

    def __call__(self, tensors: Tuple[Tensor, ...]) -> Tuple[Tensor, ...]:
        names = ("x", "phi", "scale", "bias")
        if called_eagerly():
            return run_eagerly(self.construct, ready("mhc_head", names, tensors))
        return nn.Cell.__call__(self, entering("mhc_head", names, tensors))

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


@constexpr(check=False)
def head_cell(caller: str, arguments: Tuple[Any, ...], norm_eps: Any, hc_eps: Any, layout: Any) -> nn.Cell:
    """The head's cell for tensors like these."""
    names = [a.snake_name for a in _CONTRACT.inputs]
    checks.tensors(caller, _CONTRACT, names, arguments)
    checks.attributes(caller, {"norm_eps": norm_eps, "hc_eps": hc_eps})
    made = _made(float(norm_eps), float(hc_eps))
    placed = parallel.for_mode(caller, layout, len(arguments[0][0]))
    return made if placed is None else parallel.Placed(_CONTRACT, placed, made.formula)


@lru_cache(maxsize=CELLS_KEPT)
def _made(norm_eps: float, hc_eps: float) -> _Head:
    return _Head(norm_eps, hc_eps)
