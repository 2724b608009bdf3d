"""The learned collapse of the streams at the end of a network. CANN has no kernel for it."""

from __future__ import annotations

from typing import Any

import numpy as np
from mindspore import Parameter, Tensor

from ms_mhc import checks, parallel
from ms_mhc.dispatch import specs
from ms_mhc.operators import initial
from ms_mhc.operators.collapse import head_cell
from ms_mhc.operators.precision import GateCell


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
    tensors = (x, phi, scale, bias)
    return head_cell("mhc_head", specs(tensors), norm_eps, hc_eps, None)(tensors)[0]


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
        n, d = checks.sizes("MhcHead", num_streams, hidden_size)
        checks.eps("MhcHead", "norm_eps", norm_eps)
        checks.eps("MhcHead", "hc_eps", hc_eps)
        parallel.check("MhcHead", layout)
        self.num_streams = n
        self.hidden_size = d
        self.norm_eps = float(norm_eps)
        self.hc_eps = float(hc_eps)
        self.layout = layout
        self.phi = Parameter(initial.phi(n, n * d), name="phi")
        self.scale = Parameter(Tensor(np.full(1, initial.ALPHA, np.float32)), name="scale")
        self.bias = Parameter(Tensor(initial.mean_logits(n)), name="bias")

    def construct(self, x: Tensor) -> Tensor:
        tensors = (self.streams(x), self.phi, self.scale, self.bias)
        cell = head_cell("MhcHead", specs(tensors), self.norm_eps, self.hc_eps, self.layout)
        return cell(tensors)[0]

    def extend_repr(self) -> str:
        return (
            f"num_streams={self.num_streams}, hidden_size={self.hidden_size}, norm_eps={self.norm_eps}, "
            f"hc_eps={self.hc_eps}"
        )
