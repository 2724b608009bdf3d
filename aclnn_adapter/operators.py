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

A dimension is a symbol or a product of symbols and numbers, such as ``N*D``. ``T`` alone stands for all token
dimensions; inside a product it is their product.
"""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Dict, Mapping, Optional, Sequence, Tuple, Union

Dim = Union[str, int]
UNKNOWN = -1  # what MindSpore calls a dimension that is not known at compile time

TENSOR = "aclTensor*"
TAIL = ("uint64_t*", "aclOpExecutor**")  # workspaceSize and executor end every GetWorkspaceSize prototype


def num_gates(num_streams: int) -> int:
    """F: the rows of phi, N for pre, N for post, N*N for res."""
    return num_streams * num_streams + 2 * num_streams


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
    default: Union[bool, int, float, str, None] = None

    @property
    def snake_name(self) -> str:
        """The name in snake_case, without the suffix ``Optional``."""
        name = self.name[: -len("Optional")] if self.name.endswith("Optional") else self.name
        return snake_case(name)


@dataclass(frozen=True)
class Limits:
    """What one soc's kernel accepts beyond shapes and dtypes that fit together. ``None`` means no limit.

    ``precisions`` says how the kernel multiplies by phi, one entry for each value of ``opImplMode``, a single one where
    the operator has no such argument: ``"float32"``, or ``"hf32"``, which keeps 10 bits of both factors' fractions.
    """

    num_streams: Optional[Tuple[int, ...]] = None
    min_hidden_size: int = 1
    max_hidden_size: Optional[int] = None
    hidden_size_multiple: int = 1
    hidden_sizes: Optional[Tuple[int, ...]] = None
    num_iters: Optional[Tuple[int, int]] = None  # smallest and largest
    token_dims: Tuple[int, ...] = (1, 2)  # how many dimensions T stands for: x [T, N, D], x [B, S, N, D]
    precisions: Tuple[str, ...] = ("float32",)

    def refusal(
        self,
        num_streams: int,
        hidden_size: Optional[int] = None,
        num_iters: Optional[int] = None,
        token_dims: Optional[int] = None,
    ) -> Optional[str]:
        """Why these sizes are not accepted, or ``None`` when they are."""
        if token_dims is not None and token_dims not in self.token_dims:
            return f"x has {token_dims} token dimensions, not {' or '.join(map(str, self.token_dims))}"
        if self.num_streams is not None and num_streams not in self.num_streams:
            return f"num_streams {num_streams} is not one of {', '.join(map(str, self.num_streams))}"
        if num_iters is not None and self.num_iters is not None:
            least, most = self.num_iters
            if not least <= num_iters <= most:
                return f"num_iters {num_iters} is not {least if least == most else f'within {least} to {most}'}"
        if hidden_size is None:
            return None
        if self.hidden_sizes is not None and hidden_size not in self.hidden_sizes:
            return f"hidden_size {hidden_size} is not one of {', '.join(map(str, self.hidden_sizes))}"
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

    @cached_property
    def inputs(self) -> Tuple[Argument, ...]:
        return tuple(a for a in self.arguments if a.role == "input")

    @cached_property
    def attrs(self) -> Tuple[Argument, ...]:
        return tuple(a for a in self.arguments if a.role == "attr")

    @cached_property
    def outputs(self) -> Tuple[Argument, ...]:
        return tuple(a for a in self.arguments if a.role == "output")

    def select(self, inputs: Sequence[str], without: Sequence[str] = ()) -> Operator:
        """The same operator with the inputs of these names, in this order, and all outputs but a few; no attributes."""
        named = {a.name: a for a in self.inputs}
        outputs = tuple(a for a in self.outputs if a.name not in without)
        return self.with_arguments(*(named[name] for name in inputs), *outputs)

    def with_arguments(self, *arguments: Argument) -> Operator:
        """The same operator with other arguments, for implementations that need more or less than the vendor's."""
        return dataclasses.replace(self, arguments=arguments)

    def impl_mode(self, soc: str, precision: str) -> Optional[int]:
        """The ``opImplMode`` in which the soc's kernel multiplies in this precision, or ``None`` where none does.

        0 where the operator has no such argument and its one way to multiply is the one that was asked for.
        """
        limits = self.limits.get(soc)
        if limits is None or precision not in limits.precisions:
            return None
        return limits.precisions.index(precision)

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
            dims: Sequence[Dim] = argument.shape
            if "T" in dims:
                first = dims.index("T")
                others = len(dims) - 1 - first
                sizes.setdefault("T", tuple(shape[first : len(shape) - others]))
                dims = [*dims[:first], *[1] * (len(shape) - len(dims) + 1), *dims[first + 1 :]]
            for dim, size in zip(dims, shape):
                if isinstance(dim, str) and dim.isalpha():
                    sizes.setdefault(dim, (size,))
        if "F" not in sizes and "N" in sizes:
            (streams,) = sizes["N"]
            sizes["F"] = (UNKNOWN if streams == UNKNOWN else num_gates(streams),)
        return sizes


def resolve(shape: Sequence[Dim], sizes: Mapping[str, Tuple[int, ...]]) -> Tuple[int, ...]:
    """A symbolic shape with numbers for symbols."""
    resolved: list[int] = []
    for dim in shape:
        if dim == "T":
            resolved.extend(sizes["T"])
            continue
        factors = [f for part in str(dim).split("*") for f in ((int(part),) if part.isdigit() else sizes[part])]
        resolved.append(UNKNOWN if UNKNOWN in factors else math.prod(factors))
    return tuple(resolved)


@cache
def snake_case(name: str) -> str:
    """camelCase to snake_case, by the rule that MindSpore uses to find a header."""
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()


def _in(name: str, dtype: str, *shape: Dim, optional: bool = False) -> Argument:
    return Argument(name, "input", dtype=dtype, shape=shape, optional=optional)


def _out(name: str, dtype: str, *shape: Dim, optional: bool = False) -> Argument:
    return Argument(name, "output", dtype=dtype, shape=shape, optional=optional)


def _attr(name: str, c_type: str, default: Union[bool, int, float]) -> Argument:
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

# hcEps comes before normEps here. Without needBackward the last five outputs are not looked at.
_PRE_SINKHORN = (
    _in("x", "x", "T", "N", "D"),
    _in("phi", "float32", "F", "N*D"),
    _in("alpha", "float32", 3),
    _in("bias", "float32", "F"),
    _attr("hcMult", "int64_t", 4),
    _attr("numIters", "int64_t", 20),
    _attr("hcEps", "double", 1e-6),
    _attr("normEps", "double", 1e-6),
    _attr("needBackward", "bool", True),
    _out("hin", "x", "T", "D"),
    _out("hPost", "float32", "T", "N"),
    _out("hRes", "float32", "T", "N*N"),
    _out("hPre", "float32", "T", "N", optional=True),
    _out("hcBeforeNorm", "float32", "T", "F", optional=True),
    _out("invRms", "float32", "T", 1, optional=True),
    _out("sumOut", "float32", "2*I", "T", "N", optional=True),
    _out("normOut", "float32", "2*I", "T", "N", "N", optional=True),
)

# gradHRes may also come as [T, N*N], the shape of the forward operator's hRes.
_PRE_SINKHORN_BACKWARD = (
    _in("gradHin", "x", "T", "D"),
    _in("gradHPost", "float32", "T", "N"),
    _in("gradHRes", "float32", "T", "N", "N"),
    _in("x", "x", "T", "N", "D"),
    _in("phi", "float32", "F", "N*D"),
    _in("alpha", "float32", 3),
    _in("bias", "float32", "F"),
    _in("hPre", "float32", "T", "N"),
    _in("hcBeforeNorm", "float32", "T", "F"),
    _in("invRms", "float32", "T", 1),
    _in("sumOut", "float32", "2*I", "T", "N"),
    _in("normOut", "float32", "2*I", "T", "N", "N"),
    _attr("hcEps", "double", 1e-6),
    _out("gradX", "x", "T", "N", "D"),
    _out("gradPhi", "float32", "F", "N*D"),
    _out("gradAlpha", "float32", 3),
    _out("gradBias", "float32", "F"),
)

A5, A3, A2 = "ascend950", "ascend910_93", "ascend910b"

_FORWARD_950 = Limits(num_streams=(4, 6, 8), min_hidden_size=16, max_hidden_size=16384, hidden_size_multiple=16)
_BACKWARD_950 = Limits(num_streams=(4, 6, 8), max_hidden_size=16384, hidden_size_multiple=64)
_BACKWARD_A2_A3 = Limits(num_streams=(4,), max_hidden_size=100000, hidden_size_multiple=128)
_POST_A2_A3 = Limits(num_streams=(4,), max_hidden_size=99999, hidden_size_multiple=128)
_SINKHORN_950 = Limits(num_streams=(4, 6, 8), num_iters=(1, 100))
_PRE_SINKHORN_950 = Limits(
    num_streams=(4,), hidden_sizes=(4096, 7168), num_iters=(20, 20), token_dims=(2,), precisions=("hf32",)
)
_PRE_SINKHORN_A2_A3 = dataclasses.replace(
    _PRE_SINKHORN_950, hidden_sizes=None, max_hidden_size=100000, hidden_size_multiple=128
)
_PRE_SINKHORN_BACKWARD_950 = Limits(
    num_streams=tuple(range(1, 9)), max_hidden_size=99999, hidden_size_multiple=128, num_iters=(20, 20)
)
_PRE_SINKHORN_BACKWARD_A2_A3 = dataclasses.replace(_PRE_SINKHORN_BACKWARD_950, token_dims=(2,), precisions=("hf32",))


def _with_hf32(limits: Limits) -> Limits:
    """The limits of a V2 form: mode 0 multiplies in float32, mode 1 in HF32."""
    return dataclasses.replace(limits, precisions=("float32", "hf32"))


MHC_PRE = Operator("aclnnMhcPre", _PRE, {A5: _FORWARD_950})
MHC_PRE_V2 = Operator("aclnnMhcPreV2", _with_impl_mode(_PRE), {A5: _with_hf32(_FORWARD_950)})
MHC_PRE_BACKWARD = Operator(
    "aclnnMhcPreBackward", _PRE_BACKWARD, {A5: _BACKWARD_950, A3: _BACKWARD_A2_A3, A2: _BACKWARD_A2_A3}
)
MHC_PRE_BACKWARD_V2 = Operator("aclnnMhcPreBackwardV2", _with_impl_mode(_PRE_BACKWARD), {A5: _with_hf32(_BACKWARD_950)})
MHC_POST = Operator("aclnnMhcPost", _POST, {A5: Limits(), A3: _POST_A2_A3, A2: _POST_A2_A3})
MHC_POST_BACKWARD = Operator(
    "aclnnMhcPostBackward",
    _POST_BACKWARD,
    {A5: Limits(num_streams=(4, 6, 8)), A3: _BACKWARD_A2_A3, A2: _BACKWARD_A2_A3},
)
MHC_SINKHORN = Operator("aclnnMhcSinkhorn", _SINKHORN, {A5: _SINKHORN_950})
MHC_SINKHORN_BACKWARD = Operator("aclnnMhcSinkhornBackward", _SINKHORN_BACKWARD, {A5: _SINKHORN_950})
MHC_PRE_SINKHORN = Operator(
    "aclnnMhcPreSinkhorn", _PRE_SINKHORN, {A5: _PRE_SINKHORN_950, A3: _PRE_SINKHORN_A2_A3, A2: _PRE_SINKHORN_A2_A3}
)
MHC_PRE_SINKHORN_BACKWARD = Operator(
    "aclnnMhcPreSinkhornBackward",
    _PRE_SINKHORN_BACKWARD,
    {A5: _PRE_SINKHORN_BACKWARD_950, A3: _PRE_SINKHORN_BACKWARD_A2_A3, A2: _PRE_SINKHORN_BACKWARD_A2_A3},
)

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
        MHC_PRE_SINKHORN,
        MHC_PRE_SINKHORN_BACKWARD,
    )
}
