"""Shape inference in C++, generated from the contract.

MindSpore infers the shapes of an ``ops.Custom`` by a Python function when a graph is compiled. In a graph with dynamic
shapes it has to infer them again at every step, where it cannot call Python ("The prim is not a PrimitivePy"). A C++
function in a library does for both: ``ops.Custom("<file>.cc:<operator>", None, out_dtype, func_type="aot")`` compiles
the file and calls ``<operator>InferShape`` in it.
"""

from __future__ import annotations

from typing import Dict, List, Tuple

from aclnn_adapter.operators import Dim, Operator

UNKNOWN_RANK = -2  # MindSpore's only dimension of a tensor whose rank is not known

_SOURCE = """#include <cstdint>
#include <initializer_list>
#include <vector>

namespace mindspore {{
class AotExtra;
}}

namespace {{

using Shape = std::vector<std::int64_t>;

// -1, a dimension that is not known yet, makes a product unknown.
std::int64_t product(std::initializer_list<std::int64_t> factors) {{
  std::int64_t result = 1;
  for (const std::int64_t factor : factors) result = factor < 0 || result < 0 ? -1 : result * factor;
  return result;
}}

[[maybe_unused]] std::int64_t tokens(const Shape &dims) {{
  std::int64_t result = 1;
  for (const std::int64_t dim : dims) result = product({{result, dim}});
  return result;
}}

Shape join(std::initializer_list<Shape> parts) {{
  Shape result;
  for (const Shape &part : parts) result.insert(result.end(), part.begin(), part.end());
  return result;
}}

}}  // namespace

extern "C" {result} {name}InferShape(int *ndims, std::int64_t **shapes, mindspore::AotExtra *) {{
{body}
}}
"""


def shape_function(operator: Operator, **known: int) -> str:
    """A C++ source file with the shape inference of one operator.

    Args:
        operator: the contract.
        known: sizes that no input shows, such as ``I``.
    """
    lines = [f"  [[maybe_unused]] const std::int64_t {symbol} = {value};" for symbol, value in known.items()]
    shown, ranks = _shown(operator), {}
    for symbol, (position, text) in shown.items():
        ranks[position] = len(operator.inputs[position].shape)
        kind = "Shape" if symbol == "T" else "std::int64_t"
        lines.append(f"  [[maybe_unused]] const {kind} {symbol}{text};")
    if "F" not in shown:
        lines.append("  [[maybe_unused]] const std::int64_t F = N < 0 ? -1 : N * N + 2 * N;")
    shapes = [_joined(argument.shape) for argument in operator.outputs]
    unknown = ", ".join(f"Shape{{{UNKNOWN_RANK}}}" for _ in shapes)
    several = len(shapes) > 1
    few = " || ".join(f"ndims[{position}] < {rank}" for position, rank in sorted(ranks.items()))
    first = f"  if ({few}) return {'{' + unknown + '}' if several else unknown};"
    lines.append(f"  return {'{' + ', '.join(shapes) + '}' if several else shapes[0]};")
    result = "std::vector<Shape>" if several else "std::vector<std::int64_t>"
    return _SOURCE.format(name=operator.name, result=result, body="\n".join([first, *lines]))


def _shown(operator: Operator) -> Dict[str, Tuple[int, str]]:
    """Where each symbol is read off: the number of the input, and the C++ behind the symbol's name."""
    found: Dict[str, Tuple[int, str]] = {}
    for position, argument in enumerate(operator.inputs):
        dims = argument.shape
        tokens = dims.index("T") if "T" in dims else len(dims)
        for place, dim in enumerate(dims):
            if not (isinstance(dim, str) and dim.isalpha()):
                continue
            behind = len(dims) - place
            if dim == "T":
                end = f"shapes[{position}] + ndims[{position}] - {behind - 1}"
                text = f"(shapes[{position}] + {place}, {end})"
            else:
                index = str(place) if place < tokens else f"ndims[{position}] - {behind}"
                text = f" = shapes[{position}][{index}]"
            found.setdefault(dim, (position, text))
    return found


def _joined(shape: Tuple[Dim, ...]) -> str:
    """The C++ of a symbolic shape."""
    parts: List[str] = []
    for dim in shape:
        factors = str(dim).split("*")
        if dim == "T":
            parts.append("T")
        elif "T" in factors:
            others = [f for f in factors if f != "T"]
            parts.append(f"Shape{{product({{tokens(T), {', '.join(others)}}})}}")
        else:
            parts.append(f"Shape{{product({{{', '.join(factors)}}})}}")
    return f"join({{{', '.join(parts)}}})"
