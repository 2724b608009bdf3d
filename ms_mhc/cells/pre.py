"""MhcPre with its parameters."""

from __future__ import annotations

from typing import Tuple

import numpy as np
from mindspore import Parameter, Tensor

from ms_mhc import checks
from ms_mhc.backends import registry
from ms_mhc.cells import initial
from ms_mhc.cells.precision import GateCell
from ms_mhc.functional import mhc_pre_cell, spec


class MhcPre(GateCell):
    """MhcPre with its parameters: reads the layer's input and the mixing weights off N residual streams.

    See :func:`ms_mhc.mhc_pre` for the formulas. F is N*N+2N.

    Args:
        num_streams: N, the number of residual streams, >= 1.
        hidden_size: D, >= 1.
        use_gamma: learn a scale [N, D] of x in the product with phi.
        norm_eps: added to the mean square, >= 0.
        hc_eps: added to h_pre, >= 0.
        return_residual: also return x. Use that output instead of x in what comes after, and the backward kernel adds
            x's remaining gradient itself.
        backend: ``"auto"``, or a backend by name. The parameters do not depend on it.

    Parameters (float32): phi [F, N*D], alpha [3], bias [F], and with ``use_gamma`` gamma [N, D]. Initial values:
    phi ~ N(0, 1e-4), alpha 0.01, gamma 1, bias_pre -log(N-1) (20 for N = 1), bias_post 0, bias_res 5 * (I - 1).

    Inputs:
        x: [B, S, N, D] or [T, N, D], bfloat16, float16 or float32.

    Outputs:
        ``(h_in, h_post, h_res)`` or, with ``return_residual``, ``(h_in, h_post, h_res, x)``: h_in [..., D] in the dtype
        of x, h_post [..., N] and h_res [..., N, N] (logits, before Sinkhorn) in float32.

    Raises:
        TypeError: an argument of the wrong type or dtype.
        ValueError: a size below 1, a negative eps, an unknown backend, shapes that do not fit.
        RuntimeError: a backend asked for by name that this machine lacks.
    """

    def __init__(
        self,
        num_streams: int,
        hidden_size: int,
        *,
        use_gamma: bool = False,
        norm_eps: float = 1e-6,
        hc_eps: float = 1e-6,
        return_residual: bool = False,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        name = type(self).__name__
        checks.positive_int(name, "num_streams", num_streams)
        checks.positive_int(name, "hidden_size", hidden_size)
        checks.flag(name, "use_gamma", use_gamma)
        checks.eps(name, "norm_eps", norm_eps)
        checks.eps(name, "hc_eps", hc_eps)
        checks.flag(name, "return_residual", return_residual)
        checks.one_of(name, "backend", backend, registry.names())
        registry.choose(name, registry.Job("mhc_pre", num_streams, hidden_size), backend)

        self.num_streams = num_streams
        self.hidden_size = hidden_size
        self.norm_eps = float(norm_eps)
        self.hc_eps = float(hc_eps)
        self.return_residual = return_residual
        self.backend = backend
        n, d = num_streams, hidden_size
        self.phi = Parameter(initial.phi(n * n + 2 * n, n * d), name="phi")
        self.alpha = Parameter(Tensor(np.full(3, initial.ALPHA, np.float32)), name="alpha")
        self.bias = Parameter(Tensor(initial.bias(n)), name="bias")
        self.gamma = Parameter(Tensor(np.ones((n, d), np.float32)), name="gamma") if use_gamma else None

    def construct(self, x: Tensor) -> Tuple[Tensor, ...]:
        x = self.streams(x)
        cell = mhc_pre_cell(
            "MhcPre",
            (self.num_streams, self.hidden_size),
            spec(x),
            spec(self.phi),
            spec(self.alpha),
            spec(self.bias),
            spec(self.gamma),
            self.norm_eps,
            self.hc_eps,
            self.backend,
            self.return_residual,
        )
        out = cell(x, self.phi, self.alpha, self.bias, self.gamma)
        if self.return_residual:
            return out[0], out[1], out[2], out[6]
        return out[0], out[1], out[2]

    def extend_repr(self) -> str:
        return (
            f"num_streams={self.num_streams}, hidden_size={self.hidden_size}, use_gamma={self.gamma is not None}, "
            f"norm_eps={self.norm_eps}, hc_eps={self.hc_eps}, return_residual={self.return_residual}, "
            f"backend={self.backend!r}"
        )
