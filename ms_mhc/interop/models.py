"""Whole models as dicts: only names change, and each cell's tensors as in :mod:`ms_mhc.interop.layouts`."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional

from ms_mhc.interop import layouts
from ms_mhc.interop.arrays import Arrays
from ms_mhc.interop.layouts import HF, Library, mindformers
from ms_mhc.interop.names import Names

_OURS = ("phi", "alpha", "bias", "gamma", "scale")


def _read(library: Library, tensors: Mapping[str, Any], mapping: Mapping[str, Optional[str]]) -> Arrays:
    names = Names(mapping)
    cells: Dict[str, Dict[str, Any]] = {}
    for name, value in tensors.items():
        found = names.ours(name)
        if found:
            cells.setdefault(found[0], {})[found[1]] = value
    _every_pattern_used(names, list(cells))
    out: Arrays = {}
    for cell, parts in cells.items():
        prefix = names.theirs(cell)[1]
        assert prefix is not None  # it is how the cell was found
        out.update({f"{cell}.{name}": array for name, array in layouts.read(library, parts, prefix).items()})
    return out


def _write(library: Library, params: Mapping[str, Any], mapping: Mapping[str, Optional[str]]) -> Arrays:
    names = Names(mapping)
    cells: Dict[str, Dict[str, Any]] = {}
    for name, value in params.items():
        found = names.ours_with(name)
        if found and found[1] in _OURS:
            cells.setdefault(found[0], {})[found[1]] = value
    _every_pattern_used(names, list(cells))
    out: Arrays = {}
    for cell, parts in cells.items():
        prefix = names.theirs(cell)[1]
        assert prefix is not None  # it is how the cell was found
        for part, array in layouts.write(library, parts, f"{cell}.{{p}}").items():
            name = prefix.replace("{p}", part)
            if name in out:
                raise ValueError(f"interop: {cell!r} and another cell are both mapped to {name!r}")
            out[name] = array
    return out


def _every_pattern_used(names: Names, cells: list[str]) -> None:
    for ours, theirs in names.patterns():
        if not any(Names({ours: theirs}).theirs(cell)[0] for cell in cells):
            raise ValueError(f"interop: no tensor was given for {ours!r}: {theirs!r}")


def model_from_hf(tensors: Mapping[str, Any], names: Mapping[str, Optional[str]]) -> Arrays:
    """A whole model's :func:`from_hf`.

    Args:
        tensors: by their full names. What fits no pattern (attention, embeddings, ...) is passed over.
        names: cells to tensors, as in :mod:`ms_mhc.interop`.

    Returns:
        Parameters by their full names in this package, ``"blocks.0.attn.pre.phi"``, in float32.

    Raises:
        TypeError, ValueError: as :func:`from_hf`, with full names; a pattern that nothing fits.
    """
    return _read(HF, tensors, names)


def model_to_hf(params: Mapping[str, Any], names: Mapping[str, Optional[str]]) -> Arrays:
    """A whole model's :func:`to_hf`, the inverse of :func:`model_from_hf`.

    Args:
        params: by their full names, say ``dict(network.parameters_and_names())``. Others are passed over.
        names: cells to tensors, as in :mod:`ms_mhc.interop`.

    Raises:
        TypeError, ValueError: as :func:`to_hf`, with full names; a pattern that nothing fits, two cells with one name.
    """
    return _write(HF, params, names)


def model_from_mindformers(
    tensors: Mapping[str, Any], names: Mapping[str, Optional[str]], *, mixing: str = "h_res @ x"
) -> Arrays:
    """A whole model's :func:`from_mindformers`; otherwise as :func:`model_from_hf`."""
    return _read(mindformers(mixing), tensors, names)


def model_to_mindformers(
    params: Mapping[str, Any], names: Mapping[str, Optional[str]], *, mixing: str = "h_res @ x"
) -> Arrays:
    """A whole model's :func:`to_mindformers`; otherwise as :func:`model_to_hf`."""
    return _write(mindformers(mixing), params, names)
