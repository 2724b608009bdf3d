"""One cell's parameters in the names and layouts of other libraries.

All of them, and aclnnMhcPre, agree on this: the projection has one row per output, the rows are N of pre, N of post and
N*N of the residual matrix (row-major), the scales are in the order pre, post, res, and the input is the N streams one
after the other. They differ in names, in how the scales are packed, in the recipe, and MindSpore Transformers in the
direction of the residual matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Tuple

import numpy as np

from aclnn_adapter.operators import num_gates
from ms_mhc.interop.arrays import Array, Arrays, Shape, float32
from ms_mhc.interop.versions import MIXING_KEY, MIXINGS, VERSION_KEY, convention, shown

Shapes = Dict[str, Shape]


@dataclass(frozen=True)
class Layout:
    """How one library writes the parameters of one kind of cell.

    Attributes:
        title: the library and the kind of cell, for messages.
        projection: the tensor from which N and D can be told.
        shapes: of the tensors that must be there, for N and D.
        optional: of those that may be.
        read: from that library's tensors, for N and D, to this package's parameters.
        write: the other way.
    """

    title: str
    projection: str
    shapes: Callable[[int, int], Shapes]
    optional: Callable[[int, int], Shapes]
    read: Callable[[Arrays, int, int], Arrays]
    write: Callable[[Arrays, int, int], Arrays]


def connection_shapes(n: int, d: int) -> Shapes:
    """This package's ``MhcPre``."""
    f = num_gates(n)
    return {"phi": (f, n * d), "alpha": (3,), "bias": (f,)}


def connection_options(n: int, d: int) -> Shapes:
    """What a ``MhcPre`` has with ``use_gamma``."""
    return {"gamma": (n, d)}


def head_shapes(n: int, d: int) -> Shapes:
    """This package's ``MhcHead``."""
    return {"phi": (n, n * d), "scale": (1,), "bias": (n,)}


def nothing(n: int, d: int) -> Shapes:
    """No optional tensors."""
    return {}


def _renamed(renames: Mapping[str, str], shapes: Callable[[int, int], Shapes]) -> Callable[[int, int], Shapes]:
    return lambda n, d: {renames[name]: shape for name, shape in shapes(n, d).items()}


def _renaming(title: str, renames: Mapping[str, str], shapes: Callable[[int, int], Shapes]) -> Layout:
    """The same tensors under other names; ``renames`` is from ours to theirs."""

    def read(tensors: Arrays, n: int, d: int) -> Arrays:
        return {ours: tensors[theirs] for ours, theirs in renames.items()}

    def write(params: Arrays, n: int, d: int) -> Arrays:
        if "gamma" in params and not np.all(params["gamma"] == 1.0):
            raise ValueError(
                f"{title}: gamma is not all ones, and this layout has no place for it; multiply it into phi "
                f"(phi * gamma.reshape(1, -1)) and leave it out, if the rounding does not matter"
            )
        return {theirs: params[ours] for ours, theirs in renames.items()}

    return Layout(title, renames["phi"], _renamed(renames, shapes), nothing, read, write)


HF_CONNECTION = _renaming(
    "Hugging Face DeepSeek-V4 hyper-connection",
    {"phi": "fn", "alpha": "scale", "bias": "base"},
    connection_shapes,
)
HF_HEAD = _renaming(
    "Hugging Face DeepSeek-V4 head",
    {"phi": "fn", "scale": "scale", "bias": "base"},
    head_shapes,
)
MINDFORMERS_HEAD = _renaming(
    "MindSpore Transformers HyperConnectionHead",
    {"phi": "hc_fn.weight", "scale": "hc_scale", "bias": "hc_base"},
    head_shapes,
)


def _residual_transposed(rows: Array, n: int) -> Array:
    """Rows [N*N+2N, ...] with those of the residual matrix reordered: (i, j) becomes (j, i)."""
    residual = rows[2 * n :].reshape(n, n, *rows.shape[1:])
    return np.concatenate([rows[: 2 * n], residual.swapaxes(0, 1).reshape(n * n, *rows.shape[1:])])


def _mindformers_connection(mixing: str) -> Layout:
    alphas = ("alpha_pre", "alpha_post", "alpha_res")

    def rows(values: Array, n: int) -> Array:
        return _residual_transposed(values, n) if mixing == MIXINGS[0] else values

    def shapes(n: int, d: int) -> Shapes:
        f = num_gates(n)
        return {"mapping_proj.weight": (f, n * d), **dict.fromkeys(alphas, (1,)), "bias": (f,)}

    def optional(n: int, d: int) -> Shapes:
        return {"rms_weight": (n * d,)}

    def read(tensors: Arrays, n: int, d: int) -> Arrays:
        params = {
            "phi": rows(tensors["mapping_proj.weight"], n),
            "alpha": np.concatenate([tensors[alpha] for alpha in alphas]),
            "bias": rows(tensors["bias"], n),
        }
        if "rms_weight" in tensors:
            params["gamma"] = tensors["rms_weight"].reshape(n, d)
        return params

    def write(params: Arrays, n: int, d: int) -> Arrays:
        tensors = {
            "mapping_proj.weight": rows(params["phi"], n),
            **dict(zip(alphas, np.split(params["alpha"], 3))),
            "bias": rows(params["bias"], n),
        }
        if "gamma" in params:
            tensors["rms_weight"] = params["gamma"].reshape(n * d)
        return tensors

    return Layout("MindSpore Transformers HyperConnectionModule", "mapping_proj.weight", shapes, optional, read, write)


_MINDFORMERS_CONNECTIONS = {mixing: _mindformers_connection(mixing) for mixing in MIXINGS}


@dataclass(frozen=True)
class Library:
    """Another library: its layout of either kind of cell, and how its tensors tell the kind.

    Attributes:
        metadata: what it wants to find in a safetensors file, and what this package notes there.
        spellings: its tensors have several names.
    """

    connection: Layout
    head: Layout
    is_head: Callable[[Mapping[str, Any]], bool]
    metadata: Optional[Dict[str, str]] = None
    spellings: bool = False


HF = Library(
    HF_CONNECTION,
    HF_HEAD,
    is_head=lambda tensors: np.size(tensors.get("scale", ())) == 1,
    metadata={"format": "pt"},
    spellings=True,
)


def mindformers(mixing: str, version: Optional[str] = None) -> Library:
    """MindSpore Transformers, whose residual matrix is applied in one of two directions."""
    return Library(
        _MINDFORMERS_CONNECTIONS[mixing],
        MINDFORMERS_HEAD,
        is_head=lambda tensors: "hc_fn.weight" in tensors,
        metadata={"format": "ms", MIXING_KEY: mixing, **({VERSION_KEY: version} if version else {})},
    )


def mindformers_of(
    names: Iterable[str], only_heads: bool, version: Optional[str], mixing: Optional[str], title: str = "the tensors"
) -> Library:
    """MindSpore Transformers, as the caller and tensors' names tell. A head has no matrix, so needs no direction."""
    seen = shown(list(names), None, title, {})
    if only_heads and version is None and mixing is None:
        mixing = MIXINGS[0]
    return mindformers(*convention(title, version, mixing, seen)[:2])


def problems(required: Shapes, optional: Shapes, found: Mapping[str, Shape], prefix: str = "{p}") -> List[str]:
    """What is missing, not expected or of the wrong shape, one line each, under the full names.

    A number without dimensions is as good as an array of one.
    """
    lines = [f"missing: {prefix.replace('{p}', name)}" for name in required if name not in found]
    for name, shape in found.items():
        expected = required.get(name, optional.get(name))
        full = prefix.replace("{p}", name)
        if expected is None:
            accepted = ", ".join((*required, *optional))
            lines.append(f"unexpected: {full} (accepted: {accepted})")
        elif tuple(shape) != expected and not (expected == (1,) and tuple(shape) == ()):
            lines.append(f"{full} has shape {list(shape)}; expected {list(expected)}")
    return lines


def sizes(title: str, projection: str, shape: Optional[Shape], head: bool) -> Tuple[int, int]:
    """N and D, from the shape of the projection [N*N+2N or N, N*D]."""
    if shape is None:
        raise ValueError(f"{title}: missing: {projection}")
    rows = shape[0] if len(shape) == 2 else 0
    n = rows if head else isqrt(rows + 1) - 1
    if n < 1 or rows != (n if head else num_gates(n)) or shape[1] == 0 or shape[1] % n:
        expected = "[N, N*D]" if head else "[N*N+2N, N*D]"
        raise ValueError(f"{title}: {projection} has shape {list(shape)}; expected {expected}")
    return n, shape[1] // n


def _mapping(name: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise TypeError(f"interop: {name} must be a mapping from names to tensors, but got {type(value).__name__}")


def read(library: Library, tensors: Mapping[str, Any], prefix: str = "{p}") -> Arrays:
    """One cell's tensors to its parameters."""
    _mapping("tensors", tensors)
    head = library.is_head(tensors)
    layout = library.head if head else library.connection
    arrays = {name: float32(prefix.replace("{p}", name), value) for name, value in tensors.items()}
    found = {name: array.shape for name, array in arrays.items()}
    n, d = sizes(layout.title, prefix.replace("{p}", layout.projection), found.get(layout.projection), head)
    _refuse(layout.title, problems(layout.shapes(n, d), layout.optional(n, d), found, prefix))
    return layout.read(arrays, n, d)


def write(library: Library, params: Mapping[str, Any], prefix: str = "{p}") -> Arrays:
    """One cell's parameters to its tensors."""
    _mapping("params", params)
    head = "scale" in params
    layout = library.head if head else library.connection
    required, optional = (head_shapes, nothing) if head else (connection_shapes, connection_options)
    arrays = {name: float32(prefix.replace("{p}", name), value) for name, value in params.items()}
    found = {name: array.shape for name, array in arrays.items()}
    title = "MhcHead" if head else "MhcPre"
    n, d = sizes(title, prefix.replace("{p}", "phi"), found.get("phi"), head)
    _refuse(title, problems(required(n, d), optional(n, d), found, prefix))
    return layout.write(arrays, n, d)


def _refuse(title: str, lines: List[str]) -> None:
    if lines:
        raise ValueError(f"{title}: " + "; ".join(lines))
