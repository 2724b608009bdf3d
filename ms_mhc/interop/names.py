"""Which cell of a network belongs to which tensors of a checkpoint."""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, List, Mapping, Optional, Set, Tuple, Union

# The usual names, to be the right-hand sides of a mapping.
HF_NAMES = {  # DeepSeek's released checkpoints; their next-token layers have "mtp.{i}." in place of "layers.{i}."
    "attn": "layers.{i}.hc_attn_{p}",
    "ffn": "layers.{i}.hc_ffn_{p}",
    "head": "hc_head_{p}",
}
TRANSFORMERS_NAMES = {  # what Transformers' own modules are called, and save_pretrained may write
    "attn": "model.layers.{i}.attn_hc.{p}",
    "ffn": "model.layers.{i}.ffn_hc.{p}",
    "head": "model.hc_head.hc_{p}",
}
MINDFORMERS_NAMES = {
    "attn": "decoder.layers.{i}.attn_hc.{p}",
    "ffn": "decoder.layers.{i}.ffn_hc.{p}",
    "head": "decoder.hc_head.{p}",
}

Mapper = Union[Mapping[str, Optional[str]], Callable[[str], Optional[str]]]

_FIELD = re.compile(r"\{(\w+)\}")


class Names:
    """A mapping from cells to tensors, in both directions.

    Args:
        mapping: from a cell's name with numbers in braces, ``"blocks.{i}.attn.pre"``, to its tensors' name with
            ``{p}`` as well, ``"layers.{i}.hc_attn_{p}"``; ``None`` means that such cells are left alone.

    Raises:
        TypeError: no mapping of texts.
        ValueError: a template without ``{p}``, or braces that differ between the two sides.
    """

    def __init__(self, mapping: Mapping[str, Optional[str]]) -> None:
        if not isinstance(mapping, Mapping):
            raise TypeError(f"interop: names must be a mapping, but got {type(mapping).__name__}")
        self._pairs: List[Tuple[str, Optional[str]]] = []
        for ours, theirs in mapping.items():
            if not isinstance(ours, str) or not (theirs is None or isinstance(theirs, str)):
                raise TypeError(f"interop: names must map texts to texts or None, but {ours!r} is mapped to {theirs!r}")
            _check(ours, theirs)
            self._pairs.append((ours, theirs))

    def theirs(self, cell: str) -> Tuple[bool, Optional[str]]:
        """Whether a cell's name fits a pattern, and its tensors' name, in which only ``{p}`` is left open."""
        for ours, theirs in self._pairs:
            match = _regex(ours).fullmatch(cell)
            if match:
                return True, None if theirs is None else _filled(theirs, match.groupdict())
        return False, None

    def ours(self, tensor: str) -> Optional[Tuple[str, str]]:
        """The cell that a tensor's name belongs to, and the ``{p}`` in it; ``None`` where it fits no pattern."""
        for ours, theirs in self._pairs:
            match = None if theirs is None else _regex(theirs).fullmatch(tensor)
            if match:
                return _filled(ours, match.groupdict()), match.group("p")
        return None

    def ours_with(self, parameter: str) -> Optional[Tuple[str, str]]:
        """The same for a parameter's name in this package: the cell, and the part after it."""
        cell, _, name = parameter.rpartition(".")
        found, theirs = self.theirs(cell)
        return (cell, name) if found and theirs is not None else None

    def patterns(self) -> List[Tuple[str, str]]:
        """The pairs that are not left alone."""
        return [(ours, theirs) for ours, theirs in self._pairs if theirs is not None]


def _check(ours: str, theirs: Optional[str]) -> None:
    fields = _FIELD.findall(ours)
    if "p" in fields or len(set(fields)) != len(fields):
        raise ValueError(f"interop: {ours!r} names a cell: each word in braces may be there once, and {{p}} may not")
    if theirs is None:
        return
    theirs_fields = _FIELD.findall(theirs)
    if theirs_fields.count("p") != 1:
        raise ValueError(f"interop: {theirs!r} must have {{p}} once, where fn, base, scale, ... go")
    if set(theirs_fields) - {"p"} != set(fields) or len(set(theirs_fields)) != len(theirs_fields):
        raise ValueError(f"interop: {ours!r} and {theirs!r} must have the same words in braces, each once")


def _regex(template: str) -> re.Pattern[str]:
    parts = _FIELD.split(template)  # text, field, text, field, ..., text
    return re.compile(
        "".join(
            re.escape(part) if index % 2 == 0 else f"(?P<{part}>.+)" if part == "p" else rf"(?P<{part}>\d+)"
            for index, part in enumerate(parts)
        )
    )


def _filled(template: str, numbers: Mapping[str, Any]) -> str:
    return _FIELD.sub(lambda field: field[0] if field[1] == "p" else str(numbers[field[1]]), template)


def targets(names: Mapper, cells: List[str]) -> Dict[str, str]:
    """For each cell that is not left alone, its tensors' name with ``{p}``.

    Raises:
        ValueError: a cell that nothing is said about, two cells with the same tensors, or no cell at all.
    """
    lookup: Callable[[str], Tuple[bool, Optional[str]]]
    if callable(names):
        function = names
        lookup = lambda cell: (True, function(cell))  # noqa: E731
    else:
        lookup = Names(names).theirs
    out: Dict[str, str] = {}
    unknown: List[str] = []
    taken: Set[str] = set()
    for cell in cells:
        found, template = lookup(cell)
        if not found:
            unknown.append(cell)
        elif template is not None:
            if _FIELD.findall(template) != ["p"]:
                raise ValueError(
                    f"interop: {cell!r} is mapped to {template!r}, which must have {{p}} once and no other"
                )
            if template in taken:
                raise ValueError(f"interop: {cell!r} and another cell are both mapped to {template!r}")
            taken.add(template)
            out[cell] = template
    if unknown:
        raise ValueError(
            f"interop: names says nothing about {', '.join(unknown)}; map them to their tensors, or to None to leave "
            f"them alone"
        )
    if not out:
        raise ValueError("interop: the network has no MhcPre and no MhcHead that names maps to tensors")
    return out
