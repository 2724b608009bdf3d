"""The contract of the aclnn mHC operators.

One entry per operator: its arguments in the order of the C prototype, with their C types, roles, dtypes and symbolic
shapes, and the limits of each soc that has the operator. Registration, infer functions, header check, host CANN and
documentation all derive from these entries; nothing else in the project states them a second time.

Symbols in shapes:

====  ==========================================================
T     the token dimensions: one entry ``T`` or two entries ``B, S``
N     number of residual streams
D     hidden size
F     ``N*N + 2*N``, the rows of phi: pre, post, res
I     number of Sinkhorn iterations (``num_iters``)
====  ==========================================================

A dimension is a symbol or a product of symbols and numbers, such as ``N*D``. ``T`` alone, first in a shape, stands for
all token dimensions; inside a product it is their product.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Dict, Mapping, Optional, Sequence, Tuple, Union

Dim = Union[str, int]
UNKNOWN = -1  # what MindSpore calls a dimension that is not known at compile time

TENSOR = "aclTensor*"
TAIL = ("uint64_t*", "aclOpExecutor**")  # workspaceSize and executor end every GetWorkspaceSize prototype


@dataclass(frozen=True)
class Argument:
    """One argument of a GetWorkspaceSize prototype.

    Attributes:
        name: the name in the vendor's header.
        role: ``"input"``, ``"attr"`` or ``"output"``.
        c_type: the C type without ``const`` and blanks.
        dtype: ``"x"`` for the dtype of x (bfloat16 or float16), else the dtype's name. Empty for attributes.
        shape: the symbolic shape. Empty for attributes.
        optional: whether a null pointer is allowed by the vendor.
        default: the value of an attribute that callers may leave out.
    """

    name: str
    role: str
    c_type: str = TENSOR
    dtype: str = ""
    shape: Tuple[Dim, ...] = ()
    optional: bool = False
    default: Union[int, float, None] = None

    @property
    def snake_name(self) -> str:
        """The name in snake_case, without the suffix ``Optional``."""
        name = self.name[: -len("Optional")] if self.name.endswith("Optional") else self.name
        return snake_case(name)


@dataclass(frozen=True)
class Limits:
    """What one soc's kernel accepts beyond shapes and dtypes that fit together. ``None`` means no limit."""

    num_streams: Optional[Tuple[int, ...]] = None
    min_hidden_size: int = 1
    max_hidden_size: Optional[int] = None
    hidden_size_multiple: int = 1
    num_iters: Optional[Tuple[int, int]] = None  # smallest and largest

    def refusal(
        self, num_streams: int, hidden_size: Optional[int] = None, num_iters: Optional[int] = None
    ) -> Optional[str]:
        """Why these sizes are not accepted, or ``None`` when they are."""
        if self.num_streams is not None and num_streams not in self.num_streams:
            return f"num_streams {num_streams} is not one of {', '.join(map(str, self.num_streams))}"
        if num_iters is not None and self.num_iters is not None:
            least, most = self.num_iters
            if not least <= num_iters <= most:
                return f"num_iters {num_iters} is not within {least} to {most}"
        if hidden_size is None:
            return None
        if hidden_size % self.hidden_size_multiple:
            return f"hidden_size {hidden_size} is not a multiple of {self.hidden_size_multiple}"
        if hidden_size < self.min_hidden_size:
            return f"hidden_size {hidden_size} is below {self.min_hidden_size}"
        if self.max_hidden_size is not None and hidden_size > self.max_hidden_size:
            return f"hidden_size {hidden_size} is above {self.max_hidden_size}"
        return None


@dataclass(frozen=True)
class Operator:
    """The contract of one aclnn operator."""

    name: str
    arguments: Tuple[Argument, ...]
    limits: Mapping[str, Limits]  # soc version -> limits; a soc that is not listed lacks the operator

    @property
    def inputs(self) -> Tuple[Argument, ...]:
        return tuple(a for a in self.arguments if a.role == "input")

    @property
    def attrs(self) -> Tuple[Argument, ...]:
        return tuple(a for a in self.arguments if a.role == "attr")

    @property
    def outputs(self) -> Tuple[Argument, ...]:
        return tuple(a for a in self.arguments if a.role == "output")

    def select(self, inputs: Sequence[str], without: Sequence[str] = ()) -> Operator:
        """The same operator with the inputs of these names, in this order, and all outputs but a few; no attributes."""
        named = {a.name: a for a in self.inputs}
        outputs = tuple(a for a in self.outputs if a.name not in without)
        return Operator(self.name, tuple(named[name] for name in inputs) + outputs, self.limits)

    @property
    def c_types(self) -> Tuple[str, ...]:
        """The C types of the whole GetWorkspaceSize prototype, in order."""
        return tuple(a.c_type for a in self.arguments) + TAIL

    @property
    def symbols(self) -> Tuple[str, str]:
        """The two exported functions of the two-phase interface."""
        return self.name + "GetWorkspaceSize", self.name

    @property
    def header(self) -> str:
        """The file name of the vendor's header."""
        return snake_case(self.name) + ".h"

    def bind(self, shapes: Sequence[Sequence[int]], **known: int) -> Dict[str, Tuple[int, ...]]:
        """The sizes of the symbols, read off the shapes of the inputs (in order).

        Every value is a tuple: one or two entries for ``T``, one for the others. Only bare symbols bind. Sizes that
        the shapes do not show (such as ``I``) are given by keyword.
        """
        sizes: Dict[str, Tuple[int, ...]] = {name: (value,) for name, value in known.items()}
        for argument, shape in zip(self.inputs, shapes):
            dims = argument.shape
            rest = list(shape)
            if dims and dims[0] == "T":
                tokens = len(rest) - (len(dims) - 1)
                sizes.setdefault("T", tuple(rest[:tokens]))
                rest, dims = rest[tokens:], dims[1:]
            for dim, size in zip(dims, rest):
                if isinstance(dim, str) and dim.isalpha():
                    sizes.setdefault(dim, (size,))
        if "F" not in sizes and "N" in sizes:
            (streams,) = sizes["N"]
            sizes["F"] = (UNKNOWN if streams == UNKNOWN else streams * streams + 2 * streams,)
        return sizes


def resolve(shape: Sequence[Dim], sizes: Mapping[str, Tuple[int, ...]]) -> Tuple[int, ...]:
    """A symbolic shape with numbers for symbols."""
    resolved: list[int] = []
    for position, dim in enumerate(shape):
        if dim == "T" and position == 0:
            resolved.extend(sizes["T"])
            continue
        factors = [f for part in str(dim).split("*") for f in ((int(part),) if part.isdigit() else sizes[part])]
        resolved.append(UNKNOWN if UNKNOWN in factors else math.prod(factors))
    return tuple(resolved)


def snake_case(name: str) -> str:
    """camelCase to snake_case, by the rule that MindSpore uses to find a header."""
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()


def _in(name: str, dtype: str, *shape: Dim, optional: bool = False) -> Argument:
    return Argument(name, "input", dtype=dtype, shape=shape, optional=optional)


def _out(name: str, dtype: str, *shape: Dim, optional: bool = False) -> Argument:
    return Argument(name, "output", dtype=dtype, shape=shape, optional=optional)


def _attr(name: str, c_type: str, default: Union[int, float]) -> Argument:
    return Argument(name, "attr", c_type=c_type, default=default)


def _with_impl_mode(arguments: Tuple[Argument, ...]) -> Tuple[Argument, ...]:
    """The V2 forms: ``int64_t opImplMode`` behind the last eps. 0 is full fp32, 1 is HF32."""
    last = max(i for i, a in enumerate(arguments) if a.role == "attr")
    return arguments[: last + 1] + (_attr("opImplMode", "int64_t", 0),) + arguments[last + 1 :]


_PRE = (
    _in("x", "x", "T", "N", "D"),
    _in("phi", "float32", "F", "N*D"),
    _in("alpha", "float32", 3),
    _in("bias", "float32", "F"),
    _in("gammaOptional", "float32", "N", "D", optional=True),
    _attr("normEps", "double", 1e-6),
    _attr("hcEps", "double", 1e-6),
    _out("hIn", "x", "T", "D"),
    _out("hPost", "float32", "T", "N"),
    _out("hRes", "float32", "T", "N", "N"),
    _out("invRmsOptional", "float32", "T", optional=True),
    _out("hMixOptional", "float32", "T", "F", optional=True),
    _out("hPreOptional", "float32", "T", "N", optional=True),
)

_PRE_BACKWARD = (
    _in("x", "x", "T", "N", "D"),
    _in("phi", "float32", "F", "N*D"),
    _in("alpha", "float32", 3),
    _in("gradHIn", "x", "T", "D"),
    _in("gradHPost", "float32", "T", "N"),
    _in("gradHRes", "float32", "T", "N", "N"),
    _in("invRms", "float32", "T"),
    _in("hMix", "float32", "T", "F"),
    _in("hPre", "float32", "T", "N"),
    _in("hPost", "float32", "T", "N"),
    _in("gammaOptional", "float32", "N", "D", optional=True),
    _in("gradXPostOptional", "x", "T", "N", "D", optional=True),
    _attr("hcEps", "float", 1e-6),
    _out("gradX", "x", "T", "N", "D"),
    _out("gradPhi", "float32", "F", "N*D"),
    _out("gradAlpha", "float32", 3),
    _out("gradBias", "float32", "F"),
    _out("gradGamma", "float32", "N", "D", optional=True),
)

_POST = (
    _in("x", "x", "T", "N", "D"),
    _in("hRes", "float32", "T", "N", "N", optional=True),
    _in("hOut", "x", "T", "D"),
    _in("hPost", "float32", "T", "N"),
    _out("out", "x", "T", "N", "D"),
)

_POST_BACKWARD = (
    _in("gradOutput", "x", "T", "N", "D"),
    _in("x", "x", "T", "N", "D"),
    _in("hRes", "float32", "T", "N", "N", optional=True),
    _in("hOut", "x", "T", "D"),
    _in("hPost", "float32", "T", "N"),
    _out("gradX", "x", "T", "N", "D"),
    _out("gradHRes", "float32", "T", "N", "N"),
    _out("gradHOut", "x", "T", "D"),
    _out("gradHPost", "float32", "T", "N"),
)

# The rows of a matrix are padded to 8 floats in the saved tensors, which are opaque: only their length is agreed.
_SINKHORN = (
    _in("x", "float32", "T", "N", "N"),
    _attr("eps", "float", 1e-6),
    _attr("numIters", "int64_t", 20),
    _out("output", "float32", "T", "N", "N"),
    _out("normOut", "float32", "2*I*T*N*8", optional=True),
    _out("sumOut", "float32", "2*I*T*8", optional=True),
)

_SINKHORN_BACKWARD = (
    _in("gradOutput", "float32", "T", "N", "N"),
    _in("normOut", "float32", "2*I*T*N*8"),
    _in("sumOut", "float32", "2*I*T*8"),
    _out("out", "float32", "T", "N", "N"),
)

A5, A3, A2 = "ascend950", "ascend910_93", "ascend910b"

_FORWARD_950 = Limits(num_streams=(4, 6, 8), min_hidden_size=16, max_hidden_size=16384, hidden_size_multiple=16)
_BACKWARD_950 = Limits(num_streams=(4, 6, 8), max_hidden_size=16384, hidden_size_multiple=64)
_BACKWARD_A2_A3 = Limits(num_streams=(4,), max_hidden_size=100000, hidden_size_multiple=128)
_POST_A2_A3 = Limits(num_streams=(4,), max_hidden_size=99999, hidden_size_multiple=128)
_SINKHORN_950 = Limits(num_streams=(4, 6, 8), num_iters=(1, 100))

MHC_PRE = Operator("aclnnMhcPre", _PRE, {A5: _FORWARD_950})
MHC_PRE_V2 = Operator("aclnnMhcPreV2", _with_impl_mode(_PRE), {A5: _FORWARD_950})
MHC_PRE_BACKWARD = Operator(
    "aclnnMhcPreBackward", _PRE_BACKWARD, {A5: _BACKWARD_950, A3: _BACKWARD_A2_A3, A2: _BACKWARD_A2_A3}
)
MHC_PRE_BACKWARD_V2 = Operator("aclnnMhcPreBackwardV2", _with_impl_mode(_PRE_BACKWARD), {A5: _BACKWARD_950})
MHC_POST = Operator("aclnnMhcPost", _POST, {A5: Limits(), A3: _POST_A2_A3, A2: _POST_A2_A3})
MHC_POST_BACKWARD = Operator(
    "aclnnMhcPostBackward",
    _POST_BACKWARD,
    {A5: Limits(num_streams=(4, 6, 8)), A3: _BACKWARD_A2_A3, A2: _BACKWARD_A2_A3},
)
MHC_SINKHORN = Operator("aclnnMhcSinkhorn", _SINKHORN, {A5: _SINKHORN_950})
MHC_SINKHORN_BACKWARD = Operator("aclnnMhcSinkhornBackward", _SINKHORN_BACKWARD, {A5: _SINKHORN_950})

OPERATORS: Dict[str, Operator] = {
    operator.name: operator
    for operator in (
        MHC_PRE,
        MHC_PRE_V2,
        MHC_PRE_BACKWARD,
        MHC_PRE_BACKWARD_V2,
        MHC_POST,
        MHC_POST_BACKWARD,
        MHC_SINKHORN,
        MHC_SINKHORN_BACKWARD,
    )
}
