"""MhcPost as a cell."""

from __future__ import annotations

from typing import Optional

from mindspore import Tensor

from ms_mhc import checks
from ms_mhc.backends import registry
from ms_mhc.cells.precision import GateCell
from ms_mhc.functional import post_cell, spec


class MhcPost(GateCell):
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
        x, h_out = self.streams(x), self.streams(h_out)
        cell = post_cell("MhcPost", spec(x), spec(h_res), spec(h_out), spec(h_post), self.backend)
        return cell(x, h_res, h_out, h_post)

    def extend_repr(self) -> str:
        return f"backend={self.backend!r}"
