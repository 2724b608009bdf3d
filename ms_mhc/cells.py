"""The operators as cells: parameters, initial values, configuration."""

from __future__ import annotations

import math
from typing import Any, Optional, Tuple

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn
from mindspore.common.initializer import Normal, initializer

from ms_mhc import checks
from ms_mhc.backends import registry
from ms_mhc.functional import first, mhc_pre_cell, post_cell, sinkhorn_cell, spec

# Initial values that make a block with mHC the plain residual block it wraps, while the gates can still learn.
PHI_STD = 1e-4
ALPHA = 0.01
RES_OFF_DIAGONAL = -5.0
SATURATED = 20.0  # sigmoid(20) is 1 in fp32


def initial_bias(num_streams: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The bias [N*N+2N] at the start: h_pre = 1/N (a mean), h_post = 1, h_res close to the identity after Sinkhorn."""
    n = num_streams
    # sigmoid(-log(n - 1)) = 1 / n; at n = 1 there is no such logit, a large one stands in
    pre = np.full(n, -math.log(n - 1) if n > 1 else SATURATED)
    post = np.zeros(n)
    res = RES_OFF_DIAGONAL * (1.0 - np.eye(n))
    return np.concatenate([pre, post, res.reshape(-1)]).astype(np.float32)


class MhcPre(nn.Cell):
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
        phi = initializer(Normal(sigma=PHI_STD), (n * n + 2 * n, n * d), ms.float32)
        self.phi = Parameter(phi, name="phi")
        self.alpha = Parameter(Tensor(np.full(3, ALPHA, np.float32)), name="alpha")
        self.bias = Parameter(Tensor(initial_bias(n)), name="bias")
        self.gamma = Parameter(Tensor(np.ones((n, d), np.float32)), name="gamma") if use_gamma else None

    def construct(self, x: Tensor) -> Tuple[Tensor, ...]:
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


class MhcSinkhorn(nn.Cell):
    """:func:`ms_mhc.mhc_sinkhorn` as a cell. It has no parameters.

    Args:
        num_iters: number of iterations, >= 1.
        eps: added to every sum before it divides, >= 0.
        recipe: ``"deepseek_v4"`` (what the kernels do) or ``"paper"``.
        backend: ``"auto"``, or a backend by name.

    Inputs:
        h_res: logits, [B, S, N, N] or [T, N, N], float32.

    Outputs:
        The nearly doubly stochastic matrices, in the shape of h_res, float32.
    """

    def __init__(
        self, num_iters: int = 20, eps: float = 1e-6, recipe: str = "deepseek_v4", backend: str = "auto"
    ) -> None:
        super().__init__()
        checks.positive_int("MhcSinkhorn", "num_iters", num_iters)
        checks.eps("MhcSinkhorn", "eps", eps)
        checks.one_of("MhcSinkhorn", "recipe", recipe, checks.RECIPES)
        checks.one_of("MhcSinkhorn", "backend", backend, registry.names())
        self.num_iters = int(num_iters)
        self.eps = float(eps)
        self.recipe = recipe
        self.backend = backend

    def construct(self, h_res: Tensor) -> Tensor:
        cell = sinkhorn_cell("MhcSinkhorn", spec(h_res), self.num_iters, self.eps, self.recipe, self.backend)
        return first(cell(h_res))

    def extend_repr(self) -> str:
        return f"num_iters={self.num_iters}, eps={self.eps}, recipe={self.recipe!r}, backend={self.backend!r}"


class MhcPost(nn.Cell):
    """:func:`ms_mhc.mhc_post` as a cell: ``out[j] = h_post[j] * h_out + sum_i h_res[i, j] * x[i]``.

    It has no parameters. h_res ``None`` means the identity.

    Args:
        backend: ``"auto"``, or a backend by name.
    """

    def __init__(self, backend: str = "auto") -> None:
        super().__init__()
        checks.one_of("MhcPost", "backend", backend, registry.names())
        self.backend = backend

    def construct(self, x: Tensor, h_res: Optional[Tensor], h_out: Tensor, h_post: Tensor) -> Tensor:
        cell = post_cell("MhcPost", spec(x), spec(h_res), spec(h_out), spec(h_post), self.backend)
        return cell(x, h_res, h_out, h_post)

    def extend_repr(self) -> str:
        return f"backend={self.backend!r}"


class HyperConnection(nn.Cell):
    """A residual connection of N streams around any cell.

    ``h_in, h_post, h_res, x = MhcPre(x)``, ``h_out = branch(h_in, *args)``, then
    ``x_next = MhcPost(x, MhcSinkhorn(h_res), h_out, h_post)``. With the initial values and equal streams this is the
    plain residual block ``h + branch(h)`` in every stream.

    Args:
        num_streams: N, >= 1.
        hidden_size: D, >= 1.
        branch: any cell that takes h_in [..., D] first and returns a tensor of that shape, or a tuple whose first
            element is that tensor. A pre-norm belongs into the branch.
        use_gamma, norm_eps, hc_eps: as in :class:`MhcPre`.
        num_iters, sinkhorn_eps, recipe: as in :class:`MhcSinkhorn`.
        backend: ``"auto"``, or a backend by name, for all three operators.

    Inputs:
        x: the streams, [B, S, N, D] or [T, N, D]. Further arguments go to the branch as they are.

    Outputs:
        x_next in shape and dtype of x; where the branch returns a tuple, a tuple of x_next and the rest of it.
    """

    def __init__(
        self,
        num_streams: int,
        hidden_size: int,
        branch: nn.Cell,
        *,
        use_gamma: bool = False,
        norm_eps: float = 1e-6,
        hc_eps: float = 1e-6,
        num_iters: int = 20,
        sinkhorn_eps: float = 1e-6,
        recipe: str = "deepseek_v4",
        backend: str = "auto",
    ) -> None:
        super().__init__()
        if not isinstance(branch, nn.Cell):
            raise TypeError(f"HyperConnection: branch must be a mindspore.nn.Cell, but got {type(branch).__name__}")
        self.pre = MhcPre(
            num_streams,
            hidden_size,
            use_gamma=use_gamma,
            norm_eps=norm_eps,
            hc_eps=hc_eps,
            return_residual=True,
            backend=backend,
        )
        self.sinkhorn = MhcSinkhorn(num_iters, sinkhorn_eps, recipe, backend)
        self.branch = branch
        self.post = MhcPost(backend)

    def construct(self, x: Tensor, *args: Any) -> Any:
        h_in, h_post, h_res, x = self.pre(x)
        h_out = self.branch(h_in, *args)
        if isinstance(h_out, tuple):
            return (self.post(x, self.sinkhorn(h_res), h_out[0], h_post),) + h_out[1:]
        return self.post(x, self.sinkhorn(h_res), h_out, h_post)
