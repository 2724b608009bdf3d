"""Sinkhorn as a cell."""

from __future__ import annotations

from mindspore import Tensor

from ms_mhc import checks
from ms_mhc.backends import registry
from ms_mhc.cells.precision import GateCell
from ms_mhc.functional import first, sinkhorn_cell, spec


class MhcSinkhorn(GateCell):
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
