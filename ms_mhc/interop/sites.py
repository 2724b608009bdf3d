"""The cells of a network that have mHC parameters, and where these are in a checkpoint."""

from __future__ import annotations

from typing import Dict, List, Optional, Set, Tuple

import mindspore as ms
import numpy as np
from mindspore import Parameter, nn

from ms_mhc import MhcHead, MhcPre
from ms_mhc.interop import layouts
from ms_mhc.interop.arrays import Arrays
from ms_mhc.interop.layouts import Layout, Library
from ms_mhc.interop.names import Mapper, Spelling, respelled, targets


class Mapped:
    """The cells of a network with mHC parameters, and the names of their tensors.

    Attributes:
        templates: from a cell's name to its tensors' with ``{p}``.
        left: the kinds of cells of which some are left alone.
    """

    def __init__(self, network: nn.Cell, names: Mapper) -> None:
        if not isinstance(network, nn.Cell):
            raise TypeError(f"interop: network must be a mindspore.nn.Cell, but got {type(network).__name__}")
        self.network = network
        cells = {name: cell for name, cell in network.cells_and_names() if isinstance(cell, (MhcPre, MhcHead))}
        self.templates = targets(names, list(cells))
        self.left: Set[str] = {kind(cell) for name, cell in cells.items() if name not in self.templates}
        self.cells = {name: cells[name] for name in self.templates}
        self.kinds: Set[str] = {kind(cell) for cell in self.cells.values()}


def kind(cell: nn.Cell) -> str:
    """``"head"`` or ``"connection"``."""
    return "head" if isinstance(cell, MhcHead) else "connection"


class Site:
    """A cell with mHC parameters, and where they are in a checkpoint."""

    def __init__(self, library: Library, name: str, cell: nn.Cell, template: str) -> None:
        self.name = name
        self.template = template
        self.params: Dict[str, Parameter] = dict(cell.parameters_and_names(expand=False))
        self.head = isinstance(cell, MhcHead)
        self.layout: Layout = library.head if self.head else library.connection
        self.n, self.d = layouts.sizes(name, "phi", tuple(self.params["phi"].shape), self.head)

    def full(self, part: str) -> str:
        return self.template.replace("{p}", part)

    def required(self) -> List[str]:
        return [self.full(part) for part in self.layout.shapes(self.n, self.d)]

    def optional(self) -> List[str]:
        return [self.full(part) for part in self.layout.optional(self.n, self.d)]

    def part(self, full: str) -> str:
        start, _, end = self.template.partition("{p}")
        return full[len(start) : len(full) - len(end)]

    def values(self, tensors: Arrays) -> Tuple[Arrays, Optional[str]]:
        """New values of all parameters, and what is wrong."""
        values = self.layout.read(
            {self.part(full): tensors[full] for full in (*self.required(), *self.optional()) if full in tensors},
            self.n,
            self.d,
        )
        gamma = values.pop("gamma", None)
        if "gamma" in self.params:
            values["gamma"] = np.ones((self.n, self.d), np.float32) if gamma is None else gamma
        elif gamma is not None and not np.all(gamma == 1.0):
            return (
                values,
                f"{self.optional()[0]} is not all ones, but {self.name} has no gamma: build it with use_gamma",
            )
        return values, None


def sites(library: Library, mapped: Mapped, spelling: Optional[Spelling] = None) -> List[Site]:
    """All of them, their tensors' names in a spelling of Hugging Face's."""
    return [
        Site(library, name, cell, respelled(mapped.templates[name], spelling)) for name, cell in mapped.cells.items()
    ]


def not_float32(site: Site) -> List[str]:
    """Parameters of another dtype, one line each: a write would round."""
    return [
        f"the network's {site.name}.{name} is {param.dtype}; only Float32 parameters are written"
        for name, param in site.params.items()
        if param.dtype != ms.float32
    ]
