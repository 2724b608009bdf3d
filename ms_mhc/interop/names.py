"""Which cell of a network belongs to which tensors of a checkpoint."""

from __future__ import annotations

import re
from itertools import product
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple, Union

# The usual names, to be the right-hand sides of a mapping. Of the first three any will do to read any checkpoint of
# Hugging Face's, see spelling_of; for writing they differ.
HF_NAMES = {  # DeepSeek's released checkpoints; their next-token layers have "mtp.{i}." in place of "layers.{i}."
    "attn": "layers.{i}.hc_attn_{p}",
    "ffn": "layers.{i}.hc_ffn_{p}",
    "head": "hc_head_{p}",
}
TRANSFORMERS_NAMES = {  # what Transformers' own modules are called, as in state_dict()
    "attn": "model.layers.{i}.attn_hc.{p}",
    "ffn": "model.layers.{i}.ffn_hc.{p}",
    "head": "model.hc_head.hc_{p}",
}
TRANSFORMERS_SAVED_NAMES = {  # what DeepseekV4ForCausalLM.save_pretrained of Transformers 5.24 writes
    "attn": "model.layers.{i}.hc_attn_{p}",
    "ffn": "model.layers.{i}.hc_ffn_{p}",
    "head": "model.hc_head.hc_{p}",
}
MINDFORMERS_NAMES = {
    "attn": "decoder.layers.{i}.attn_hc.{p}",
    "ffn": "decoder.layers.{i}.ffn_hc.{p}",
    "head": "decoder.hc_head.{p}",
}

Mapper = Union[Mapping[str, Optional[str]], Callable[[str], Optional[str]]]

Spelling = Tuple[str, str, str]  # before the layer, a connection, a head

_FIELD = re.compile(r"\{(\w+)\}")

# Tensors that are a hyper-connection's or a head's in any of the libraries, and those of next-token layers.
_CONNECTION = re.compile(r"(?:^|\.)(?:hc_(?:attn|ffn)_|(?:attn|ffn)_hc\.)")
_HEAD = re.compile(r"(?:^|\.)hc_head[._]")
_NEXT_TOKEN = re.compile(r"(?:^|\.)mtp\.")

# One tensor's name at Hugging Face: with or without the first part, and two ways to write what follows the layer.
_HF_TEMPLATE = re.compile(r"(?:model\.)?(.*?)(?:hc_(attn|ffn)_|(attn|ffn)_hc\.|hc_head_|hc_head\.hc_)\{p\}")
_SPELLINGS = tuple(product(("", "model."), ("hc_{}_", "{}_hc."), ("hc_head_", "hc_head.hc_")))


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

    def gaps(self, cells: List[str]) -> List[str]:
        """What some of these cells lack: cells of other patterns that begin alike, so belong to the same layer."""
        layers: Dict[str, List[Tuple[str, str]]] = {}
        for ours, theirs in self.patterns():
            if "}" in ours:
                layers.setdefault(ours.rpartition("}")[0], []).append((ours, theirs))
        lines: List[str] = []
        for pairs in layers.values():
            have = {
                ours: [match.groupdict() for match in map(_regex(ours).fullmatch, cells) if match] for ours, _ in pairs
            }
            every = {tuple(numbers.items()): numbers for found in have.values() for numbers in found}
            lines += [
                f"{_filled(theirs, numbers)} (for {_filled(ours, numbers)})"
                for numbers in every.values()
                for ours, theirs in pairs
                if numbers not in have[ours]
            ]
        return lines

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


def respelled(template: str, spelling: Optional[Spelling]) -> str:
    """A template of Hugging Face's in another spelling; any other template stays as it is."""
    match = None if spelling is None else _HF_TEMPLATE.fullmatch(template)
    if match is None or spelling is None:
        return template
    start, connection, head = spelling
    part = match.group(2) or match.group(3)
    return f"{start}{match.group(1)}{connection.format(part) if part else head}{{p}}"


def spelling_of(templates: Sequence[str], found: Callable[[List[str]], int]) -> Optional[Spelling]:
    """How a checkpoint of Hugging Face's writes its names.

    DeepSeek's releases, the modules of Transformers and what its ``save_pretrained`` writes name the same tensors in
    different ways.

    Args:
        templates: tensors' names with ``{p}``.
        found: how many tensors a checkpoint has for some templates.

    Returns:
        The spelling in which most tensors are found; ``None`` for the names as they are, if no other finds more.
    """
    best, most = None, found(list(templates))
    for spelling in _SPELLINGS:
        other = [respelled(template, spelling) for template in templates]
        if len(set(other)) == len(set(templates)):
            count = found(other)
            if count > most:
                best, most = spelling, count
    return best


def kind_of(tensor: str) -> Optional[str]:
    """``"head"`` or ``"connection"`` where a tensor's name says so, in any library; next-token layers are neither."""
    if _NEXT_TOKEN.search(tensor):
        return None
    return "head" if _HEAD.search(tensor) else "connection" if _CONNECTION.search(tensor) else None


def targets(names: Mapper, cells: List[str]) -> Dict[str, str]:
    """For each cell that is not left alone, its tensors' name with ``{p}``.

    Raises:
        TypeError: names is no mapping of texts, or a function that returns something else than a text or ``None``.
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
            if not isinstance(template, str):
                raise TypeError(
                    f"interop: names must give a text or None for each cell, but gave {template!r} for {cell!r}"
                )
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
