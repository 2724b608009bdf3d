"""Whole models as dicts: only names change, and each cell's tensors as in :mod:`ms_mhc.interop.layouts`."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional

from ms_mhc.interop import layouts
from ms_mhc.interop.arrays import Arrays
from ms_mhc.interop.layouts import HF, Library, mindformers_of
from ms_mhc.interop.names import Names, respelled, spelling_of

_OURS = ("phi", "alpha", "bias", "gamma", "scale")


def _read(library: Library, tensors: Mapping[str, Any], mapping: Mapping[str, Optional[str]]) -> Arrays:
    names = Names(mapping)
    if library.spellings:
        names = _as_spelled(names, tensors)
    cells: Dict[str, Dict[str, Any]] = {}
    for name, value in tensors.items():
        found = names.ours(name)
        if found:
            cells.setdefault(found[0], {})[found[1]] = value
    _every_pattern_used(names, list(cells))
    absent = names.gaps(list(cells))
    if absent:
        raise ValueError(f"interop: missing: {'; '.join(absent)}, while the rest of the layer is there")
    out: Arrays = {}
    for cell, parts in cells.items():
        prefix = names.theirs(cell)[1]
        assert prefix is not None  # it is how the cell was found
        out.update({f"{cell}.{name}": array for name, array in layouts.read(library, parts, prefix).items()})
    return out


def _as_spelled(names: Names, tensors: Mapping[str, Any]) -> Names:
    """The patterns in the spelling that most of the tensors fit."""
    patterns = names.patterns()

    def found(templates: List[str]) -> int:
        some = Names({ours: theirs for (ours, _), theirs in zip(patterns, templates)})
        return sum(some.ours(name) is not None for name in tensors)

    spelling = spelling_of([theirs for _, theirs in patterns], found)
    return Names({ours: respelled(theirs, spelling) for ours, theirs in patterns})


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


def _every_pattern_used(names: Names, cells: List[str]) -> None:
    for ours, theirs in names.patterns():
        if not any(Names({ours: theirs}).theirs(cell)[0] for cell in cells):
            raise ValueError(f"interop: no tensor was given for {ours!r}: {theirs!r}")


def _only_heads(names: Names, tensors: Mapping[str, Any]) -> bool:
    found = [part for _, part in filter(None, map(names.ours, tensors))]
    return "mapping_proj.weight" not in found


def model_from_hf(tensors: Mapping[str, Any], names: Mapping[str, Optional[str]]) -> Arrays:
    """A whole model's :func:`from_hf`.

    Args:
        tensors: by their full names. What fits no pattern (attention, embeddings, ...) is passed over.
        names: cells to tensors, as in :mod:`ms_mhc.interop`. Any of the three namings of Hugging Face's will do.

    Returns:
        Parameters by their full names in this package, ``"blocks.0.attn.pre.phi"``, in float32.

    Raises:
        TypeError, ValueError: as :func:`from_hf`, with full names; a pattern that nothing fits, a layer that has the
            tensors of one pattern and not of another.
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
    tensors: Mapping[str, Any],
    names: Mapping[str, Optional[str]],
    *,
    version: Optional[str] = None,
    mixing: Optional[str] = None,
) -> Arrays:
    """A whole model's :func:`from_mindformers`; otherwise as :func:`model_from_hf`.

    A learned head among the tensors shows version 2.1.0, which need not be given then.
    """
    return _read(mindformers_of(tensors, _only_heads(Names(names), tensors), version, mixing), tensors, names)


def model_to_mindformers(
    params: Mapping[str, Any],
    names: Mapping[str, Optional[str]],
    *,
    version: Optional[str] = None,
    mixing: Optional[str] = None,
) -> Arrays:
    """A whole model's :func:`to_mindformers`; otherwise as :func:`model_to_hf`."""
    found = [name for _, name in filter(None, map(Names(names).ours_with, params))]
    heads = ["hc_fn.weight"] if "scale" in found else []
    return _write(mindformers_of(heads, "alpha" not in found, version, mixing), params, names)
