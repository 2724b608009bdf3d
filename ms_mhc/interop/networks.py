"""A network's mHC parameters from a checkpoint, and into one."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from ms_mhc import MhcHead, MhcPre
from ms_mhc.interop import files, layouts
from ms_mhc.interop.arrays import Arrays
from ms_mhc.interop.files import Checkpoint, PathLike
from ms_mhc.interop.layouts import HF, Layout, Library, mindformers
from ms_mhc.interop.names import Mapper, Names, targets

_SHOWN = 12  # lines of a message


class _Site:
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


def _sites(library: Library, network: nn.Cell, names: Mapper) -> List[_Site]:
    if not isinstance(network, nn.Cell):
        raise TypeError(f"interop: network must be a mindspore.nn.Cell, but got {type(network).__name__}")
    cells = {name: cell for name, cell in network.cells_and_names() if isinstance(cell, (MhcPre, MhcHead))}
    return [_Site(library, name, cells[name], template) for name, template in targets(names, list(cells)).items()]


def _load(library: Library, network: nn.Cell, path: PathLike, names: Mapper, allow_extra: bool) -> List[str]:
    sites = _sites(library, network, names)
    checkpoint = Checkpoint(path)
    available = set(checkpoint.names())
    lines: List[str] = []
    wanted: List[str] = []
    for site in sites:
        lines += [f"missing: {name} (for {site.name})" for name in site.required() if name not in available]
        wanted += [name for name in (*site.required(), *site.optional()) if name in available]
    if not allow_extra:
        lines += [f"unexpected: {name}" for name in _extra(checkpoint, wanted, sites, names)]
    entries = checkpoint.entries(wanted)
    for site in sites:
        found = {
            site.part(name): entries[name].shape for name in (*site.required(), *site.optional()) if name in entries
        }
        wrong = layouts.problems(
            site.layout.shapes(site.n, site.d), site.layout.optional(site.n, site.d), found, site.template
        )
        lines += [f"{line} (for {site.name})" for line in wrong if not line.startswith("missing")]
        lines += _not_float32(site)
    lines += [line for name, entry in entries.items() for line in [entry.problem(name)] if line]
    _refuse(path, lines)

    tensors = checkpoint.load(wanted)
    updates = [(site, *site.values(tensors)) for site in sites]
    _refuse(path, [line for _, _, line in updates if line])
    for site, values, _ in updates:
        for name, value in values.items():
            # in place: a network that ms.jit has compiled does not see Parameter.set_data
            ops.assign(site.params[name], Tensor(value))
    return wanted


def _extra(checkpoint: Checkpoint, wanted: List[str], sites: List[_Site], names: Mapper) -> List[str]:
    """Tensors that the names speak of, but that no cell takes: a layer too many, a part that is unknown."""
    literal = Names({site.name: site.template for site in sites} if callable(names) else names)
    taken = set(wanted)
    return [name for name in checkpoint.names() if name not in taken and literal.ours(name)]


def _not_float32(site: _Site) -> List[str]:
    return [
        f"the network's {site.name}.{name} is {param.dtype}; only Float32 parameters are written"
        for name, param in site.params.items()
        if param.dtype != ms.float32
    ]


def _refuse(path: Any, lines: List[str]) -> None:
    if lines:
        more = [f"... and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
        raise ValueError(
            f"interop: {path} does not fit the network, nothing was written:\n  " + "\n  ".join(lines[:_SHOWN] + more)
        )


def _save(
    library: Library, network: nn.Cell, path: PathLike, names: Mapper, max_shard_bytes: Optional[int]
) -> List[str]:
    tensors: Arrays = {}
    for site in _sites(library, network, names):
        for part, array in layouts.write(library, site.params, f"{site.name}.{{p}}").items():
            name = site.full(part)
            if name in tensors:
                raise ValueError(f"interop: {site.name!r} and another cell are both mapped to {name!r}")
            tensors[name] = array
    files.save(path, tensors, max_shard_bytes, library.metadata)
    return list(tensors)


def load_hf(network: nn.Cell, path: PathLike, names: Mapper, *, allow_extra: bool = False) -> List[str]:
    """Write the hyper-connections and heads of a Hugging Face DeepSeek-V4 checkpoint into a network.

    Only the tensors of the network's ``MhcPre`` and ``MhcHead`` cells are read, and only the files that hold them need
    to be there. All names, shapes and dtypes are checked before anything is written: it is all or nothing. bfloat16 and
    float16 tensors are widened to float32, exactly. A gamma is set to ones. The other parameters stay as they are.
    What the numbers need besides the weights stands at :func:`from_hf`.

    Args:
        network: any cell. Its ``MhcPre`` and ``MhcHead`` parameters must be float32, as they are unless cast.
        path: a ``.safetensors`` file, an index, or a folder with either.
        names: cells to tensors as in :mod:`ms_mhc.interop`, or a function from a cell's name to its tensors' name with
            ``{p}``. Every such cell must be mapped; ``None`` leaves one alone.
        allow_extra: let the checkpoint hold tensors that fit a pattern but that no cell takes, such as further layers.

    Returns:
        The names of the tensors that were read.

    Raises:
        FileNotFoundError: no checkpoint there, or a file of it is missing.
        ValueError: missing or unexpected tensors, wrong shapes or dtypes, each named; a damaged file; names that leave
            a cell out or map two to the same tensors.
        TypeError: a network that is no cell, names of the wrong type.
    """
    return _load(HF, network, path, names, allow_extra)


def save_hf(network: nn.Cell, path: PathLike, names: Mapper, *, max_shard_bytes: Optional[int] = None) -> List[str]:
    """Save a network's hyper-connections and heads under Hugging Face's names, in float32.

    Args:
        network, names: as for :func:`load_hf`.
        path: a ``.safetensors`` file; with ``max_shard_bytes`` a folder, for files of at most that many bytes of data
            (a larger tensor has a file of its own) and ``model.safetensors.index.json``.
        max_shard_bytes: see ``path``.

    Returns:
        The names of the tensors.

    Raises:
        ValueError: as :func:`load_hf` for names; a gamma that is not all ones, which has no place there.
    """
    return _save(HF, network, path, names, max_shard_bytes)


def load_mindformers(
    network: nn.Cell, path: PathLike, names: Mapper, *, mixing: str = "h_res @ x", allow_extra: bool = False
) -> List[str]:
    """Write the weights of MindSpore Transformers' HyperConnectionModule and HyperConnectionHead into a network.

    As :func:`load_hf`, with ``mixing`` and the rest of :func:`from_mindformers`. An ``rms_weight`` goes to gamma; where
    the cell has none it must be all ones, as it is there.
    """
    return _load(mindformers(mixing), network, path, names, allow_extra)


def save_mindformers(
    network: nn.Cell,
    path: PathLike,
    names: Mapper,
    *,
    mixing: str = "h_res @ x",
    max_shard_bytes: Optional[int] = None,
) -> List[str]:
    """Save a network's hyper-connections and heads under MindSpore Transformers' names.

    As :func:`save_hf`, with ``mixing`` of :func:`from_mindformers`.
    """
    return _save(mindformers(mixing), network, path, names, max_shard_bytes)
