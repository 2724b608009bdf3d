"""What each operator accepts, and the messages.

These functions see descriptions of tensors (:class:`Spec`), never tensors, so that they run eagerly and at the
compile time of a graph alike. A dimension that is not known at compile time is ``None`` and fits everything.
"""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import mindspore as ms

from aclnn_adapter.operators import UNKNOWN, Argument, Operator, num_gates, resolve

X_DTYPES = (ms.bfloat16, ms.float16, ms.float32)
RECIPES = ("deepseek_v4", "paper")
MOST_ITERATIONS = 1_000_000  # float32, in which the C++ kernels get it, counts on to 2**24; MindSpore ops take minutes
_MOST_FLOAT32 = 3.4028234e38
_MOST_DIMENSIONS = 8  # of a tensor, in most of MindSpore's operators
_MOST_ENTRIES = 2**40  # of a parameter: four tebibytes

Shape = Tuple[Optional[int], ...]


class Spec(NamedTuple):
    """Shape and dtype of a tensor."""

    shape: Shape
    dtype: Any


def _shape_text(shape: Sequence[Union[int, str, None]]) -> str:
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"


def _dtype_text(dtype: Any) -> str:
    return str(dtype).rsplit(".", 1)[-1].lower()


def tensor(operator: str, argument: str, value: Any) -> Spec:
    """The spec of a tensor argument. ``value`` is ``(shape, dtype)``, or a text that names the type of a non-tensor."""
    if not isinstance(value, tuple):
        raise TypeError(f"{operator}: {argument} must be a mindspore Tensor, but got {_non_tensor(value)}")
    found = Spec(*value)
    if any(size is not None and size < 0 for size in found.shape):
        # MindSpore computes with it, and the process dies of signal 11 at the next operator
        raise ValueError(
            f"{operator}: {argument} describes tensors and is none, its shape is {_shape_text(found.shape)}; such a "
            f"Tensor(shape=(None, ...)) is for set_inputs only"
        )
    return found


def _non_tensor(value: Any) -> str:
    """What came in a tensor's place. The type of a list that a graph makes is known only when the graph runs."""
    return str(value) if value is None or isinstance(value, str) else "something else"


def _dtype(operator: str, argument: str, spec: Spec, accepted: Sequence[Any]) -> None:
    if spec.dtype not in accepted:
        names = ", ".join(map(_dtype_text, accepted))
        raise TypeError(f"{operator}: {argument} has dtype {_dtype_text(spec.dtype)}; accepted: {names}")


def _shape(operator: str, argument: str, spec: Spec, expected: Sequence[Optional[int]], symbols: str) -> None:
    fits = len(spec.shape) == len(expected) and all(
        got is None or want is None or got == want for got, want in zip(spec.shape, expected)
    )
    if not fits:
        raise ValueError(
            f"{operator}: {argument} has shape {_shape_text(spec.shape)}; "
            f"expected {_shape_text(expected)}, which is {symbols}"
        )


def fixed(
    operator: str,
    argument: str,
    spec: Spec,
    expected: Sequence[Optional[int]],
    symbols: str,
    dtypes: Sequence[Any] = (ms.float32,),
) -> None:
    """A tensor whose shape follows from x."""
    _dtype(operator, argument, spec, dtypes)
    _shape(operator, argument, spec, expected, symbols)


def streams(operator: str, name: str, spec: Spec, sizes: Optional[Tuple[int, int]] = None) -> Tuple[Shape, int, int]:
    """x, the widened residual stream. Returns its token dimensions, N and D; ``sizes`` fixes N and D."""
    _dtype(operator, name, spec, X_DTYPES)
    if len(spec.shape) not in (3, 4):
        raise ValueError(
            f"{operator}: {name} has rank {len(spec.shape)} and shape {_shape_text(spec.shape)}; "
            f"accepted: rank 4 [B, S, N, D] or rank 3 [T, N, D]"
        )
    not_empty(operator, name, spec)
    *tokens, n, d = spec.shape
    if n is None or d is None:
        raise ValueError(
            f"{operator}: {name} has shape {_shape_text(spec.shape)}; the number of streams N and the hidden size D "
            f"must be known when the graph is compiled, only B, S and T may vary"
        )
    if sizes is not None and sizes != (n, d):
        raise ValueError(
            f"{operator}: {name} has shape {_shape_text(spec.shape)}, so {n} streams of size {d}; "
            f"expected num_streams={sizes[0]} and hidden_size={sizes[1]}: [B, S, {sizes[0]}, {sizes[1]}] or "
            f"[T, {sizes[0]}, {sizes[1]}]"
        )
    return tuple(tokens), n, d


def matrices(operator: str, name: str, spec: Spec) -> Tuple[Shape, int]:
    """Mixing matrices. Returns their token dimensions and N."""
    _dtype(operator, name, spec, (ms.float32,))
    if len(spec.shape) not in (3, 4) or spec.shape[-1] != spec.shape[-2]:
        raise ValueError(
            f"{operator}: {name} has shape {_shape_text(spec.shape)}; "
            f"accepted: square matrices [B, S, N, N] or [T, N, N]"
        )
    not_empty(operator, name, spec)
    n = spec.shape[-1]
    if n is None:
        raise ValueError(
            f"{operator}: {name} has shape {_shape_text(spec.shape)}; N must be known when the graph is compiled, "
            f"only B, S and T may vary"
        )
    return tuple(spec.shape[:-2]), n


def not_empty(operator: str, argument: str, spec: Spec) -> None:
    """A tensor with at least one element."""
    if 0 in spec.shape:
        raise ValueError(f"{operator}: {argument} is empty, its shape is {_shape_text(spec.shape)}")


def eps(operator: str, argument: str, value: Any) -> None:
    """A number >= 0 that is finite in float32."""
    number(operator, argument, value)
    if not 0 <= value <= _MOST_FLOAT32:  # which NaN is not
        raise ValueError(
            f"{operator}: {argument} must be a finite number >= 0, also in float32, but got {_short(value)}"
        )


def number(operator: str, argument: str, value: Any) -> None:
    """A real number; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{operator}: {argument} must be a number, but got {_described(value)}")


def positive_int(operator: str, argument: str, value: Any) -> None:
    """An integer >= 1; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{operator}: {argument} must be a positive int, but got {_described(value)}")
    if value < 1:
        raise ValueError(f"{operator}: {argument} must be a positive int, but got {_short(value)}")


def iterations(operator: str, argument: str, value: Any) -> None:
    """A number of Sinkhorn iterations."""
    positive_int(operator, argument, value)
    if value > MOST_ITERATIONS:
        raise ValueError(
            f"{operator}: {argument} must be a positive int of at most {MOST_ITERATIONS}, but got {_short(value)}"
        )


def sizes(operator: str, num_streams: Any, hidden_size: Any) -> Tuple[int, int]:
    """N and D of a cell with parameters."""
    positive_int(operator, "num_streams", num_streams)
    positive_int(operator, "hidden_size", hidden_size)
    n, d = int(num_streams), int(hidden_size)
    if num_gates(n) * n * d > _MOST_ENTRIES:
        raise ValueError(
            f"{operator}: phi for num_streams={_short(n)} and hidden_size={_short(d)} would have more than "
            f"{_MOST_ENTRIES} entries"
        )
    return n, d


def flag(operator: str, argument: str, value: Any) -> None:
    """True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{operator}: {argument} must be True or False, but got {_described(value)}")


def one_of(operator: str, argument: str, value: Any, accepted: Sequence[str]) -> None:
    """One of some texts."""
    if not isinstance(value, str):
        raise TypeError(f"{operator}: {argument} must be one of {', '.join(accepted)}, but got {_described(value)}")
    if value not in accepted:
        raise ValueError(f"{operator}: {argument} must be one of {', '.join(accepted)}, but got {value!r}")


def _described(value: Any) -> str:
    return f"{value!r} of type {type(value).__name__}"


def _short(value: Any) -> str:
    """A number; Python refuses to write out an int of thousands of digits."""
    return f"an int of {value.bit_length()} bits" if isinstance(value, int) and abs(value) >= 10**30 else str(value)


class Sizes(NamedTuple):
    """What the tensors of an operator show."""

    tokens: Shape
    num_streams: int
    hidden_size: Optional[int]
    dtype: Any  # of x; None where there is no x


def tensors(
    operator: str,
    contract: Operator,
    names: Sequence[str],
    given: Sequence[Any],
    sizes: Optional[Tuple[int, int]] = None,
) -> Sizes:
    """All tensors of an operator against its contract.

    Args:
        operator: what messages call it.
        contract: the first input of shape [T, N, D] or [T, N, N] is what everything else is measured by.
        names: what the contract's inputs are called here.
        given: for each of them ``(shape, dtype)``, a text that names the type of a non-tensor, or ``None``.
        sizes: N and D, where the caller fixes them.
    """
    specs: Dict[str, Spec] = {}
    for argument, name, value in zip(contract.inputs, names, given):
        if value is not None or not argument.optional:
            specs[name] = tensor(operator, name, value)
    measure = next(a for a in contract.inputs if a.shape in (_STREAMS, _MATRICES))
    of_measure = names[contract.inputs.index(measure)]
    if measure.shape == _STREAMS:
        tokens, n, d = streams(operator, of_measure, specs[of_measure], sizes)
        found = Sizes(tokens, n, d, specs[of_measure].dtype)
    else:
        tokens, n = matrices(operator, of_measure, specs[of_measure])
        found = Sizes(tokens, n, None, None)
    known = {"T": tuple(UNKNOWN if t is None else t for t in tokens), "N": (n,), "D": (found.hidden_size or 0,)}
    known["F"] = (num_gates(n),)
    for argument, name in zip(contract.inputs, names):
        if name in specs and name != of_measure:
            expected = [None if size == UNKNOWN else size for size in resolve(argument.shape, known)]
            dtypes = (found.dtype,) if argument.dtype == "x" else (getattr(ms, argument.dtype),)
            fixed(operator, name, specs[name], expected, _symbols(name, argument, measure, of_measure), dtypes)
    return found


_STREAMS, _MATRICES = ("T", "N", "D"), ("T", "N", "N")
_ENTRIES = {"alpha": ": pre, post, res"}


def _symbols(name: str, argument: Argument, measure: Argument, of_measure: str) -> str:
    """A symbolic shape in words."""
    if argument.shape == measure.shape:
        return f"the shape of {of_measure}"
    if argument.shape == ("T",):
        return f"the token dimensions of {of_measure}"
    written = ["..." if dim == "T" else "N*N+2N" if dim == "F" else str(dim) for dim in argument.shape]
    return f"[{', '.join(written)}]{_ENTRIES.get(name, '')}"


def attributes(operator: str, values: Mapping[str, Any]) -> None:
    """All attributes of an operator, by name."""
    for name, value in values.items():
        if name == "num_iters":
            iterations(operator, name, value)
        elif name == "recipe":
            one_of(operator, name, value, RECIPES)
        else:
            eps(operator, name, value)


def expand_streams(operator: str, h: Spec, num_streams: Any) -> Shape:
    """Any tensor [..., D] of a dtype that x may have. Returns its shape."""
    _dtype(operator, "h", h, X_DTYPES)
    if not 1 <= len(h.shape) < _MOST_DIMENSIONS:
        raise ValueError(
            f"{operator}: h has rank {len(h.shape)}; accepted: [..., D] of rank 1 to {_MOST_DIMENSIONS - 1}"
        )
    not_empty(operator, "h", h)
    positive_int(operator, "num_streams", num_streams)
    return h.shape


def merge_streams(operator: str, x: Spec) -> int:
    """Any tensor [..., N, D] of a dtype that x may have. Returns N."""
    _dtype(operator, "x", x, X_DTYPES)
    if len(x.shape) < 2:
        raise ValueError(f"{operator}: x has shape {_shape_text(x.shape)}; accepted: [..., N, D]")
    not_empty(operator, "x", x)
    n = x.shape[-2]
    if n is None:
        raise ValueError(f"{operator}: x has shape {_shape_text(x.shape)}; N must be known when the graph is compiled")
    return n


def branch(operator: str, given: Any, x: Spec) -> Spec:
    """What a branch returned as its output: h_out [..., D] for the streams x, of a dtype that can become x's."""
    if not isinstance(given, tuple):
        raise TypeError(
            f"{operator}: branch must return a mindspore Tensor [..., D], or a tuple whose first element is one, but "
            f"got {_non_tensor(given)}"
        )
    h_out = Spec(*given)
    _dtype(operator, "the output of branch", h_out, (*X_DTYPES, ms.float64))
    _shape(operator, "the output of branch", h_out, (*x.shape[:-2], x.shape[-1]), "that of h_in")
    return h_out
