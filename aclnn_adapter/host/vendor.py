"""The files of a CANN installation that describe the mHC operators, generated from their contract."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Dict, Iterable, Tuple, Union

from ..operators import (
    A2,
    A3,
    A5,
    MHC_PRE_BACKWARD,
    MHC_PRE_BACKWARD_V2,
    MHC_PRE_SINKHORN_BACKWARD,
    OPERATORS,
    TENSOR,
    Argument,
    Limits,
    Operator,
    snake_case,
)

SOC_VERSIONS = (A5, A3, A2)
_CONST_OUTPUTS = (MHC_PRE_BACKWARD, MHC_PRE_BACKWARD_V2, MHC_PRE_SINKHORN_BACKWARD)  # in the vendor's headers
CANN_VERSION = "9.1.0"
PYTHON_FOLDER = "opp/built-in/op_impl/ai_core/tbe"

_HEADERS = Path(__file__).resolve().parent / "include"
# Headers of CANN that MindSpore's own include where an extension is compiled, and the ones here that say enough.
_SAME_HEADER = {
    "acl/acl_rt.h": ("acl/acl.h", "acl/acl_op.h", "acl/acl_op_compiler.h", "acl/acl_rt_allocator.h", "hccl/hccl.h"),
    "graph/types.h": ("ge/ge_api.h", "graph/operator.h", "graph/operator_reg.h", "graph/tensor.h"),
}

_ACL_META = """#pragma once
#include "acl/acl_base.h"
#define ACLNN_API __attribute__((visibility("default")))
typedef int32_t aclnnStatus;
typedef struct aclOpExecutor aclOpExecutor;
typedef struct aclTensor aclTensor;
typedef struct aclScalar aclScalar;
typedef struct aclIntArray aclIntArray;
typedef struct aclFloatArray aclFloatArray;
typedef struct aclBoolArray aclBoolArray;
typedef struct aclTensorList aclTensorList;
"""


def write_vendor_files(root: Path, old_header: bool) -> None:
    """Lay out headers, operator information and version below the root of a CANN installation."""
    files = {
        **_headers(),
        "include/aclnn/acl_meta.h": _ACL_META,
        "version.cfg": f"version=[{CANN_VERSION}]\n",
        "opp/version.info": f"Version={CANN_VERSION}\n",
        "compiler/version.info": f"Version={CANN_VERSION}\n",
        "runtime/version.info": f"Version={CANN_VERSION}\n",
    }
    for operator in OPERATORS.values():
        shown = _before_residual_gradient(operator) if old_header and operator is MHC_PRE_BACKWARD else operator
        files[f"include/aclnnop/{operator.header}"] = header(shown)
    for soc in SOC_VERSIONS:
        path = f"{PYTHON_FOLDER}/config/{soc}/aic-{soc}-ops-info.json"
        files[path] = json.dumps(operator_information(soc), indent=1)
    for name, text in files.items():
        path_to = root / name
        path_to.parent.mkdir(parents=True, exist_ok=True)
        path_to.write_text(text)
    (root / "opp/vendors").mkdir(exist_ok=True)


def _headers() -> Dict[str, str]:
    """The headers that are not about operators."""
    files = {f"include/{path.relative_to(_HEADERS)}": path.read_text() for path in _HEADERS.rglob("*.h")}
    for shown, names in _SAME_HEADER.items():
        files.update({f"include/{name}": f'#pragma once\n#include "{shown}"\n' for name in names})
    return files


def header(operator: Operator) -> str:
    """The vendor's header of one operator."""
    declarations = "".join(f"ACLNN_API {prototype};\n\n" for prototype in _prototypes(operator))
    return (
        '#pragma once\n#include "aclnn/acl_meta.h"\n#ifdef __cplusplus\nextern "C" {\n#endif\n\n'
        f"{declarations}#ifdef __cplusplus\n}}\n#endif\n"
    )


def _prototypes(operator: Operator) -> Tuple[str, str]:
    """The two exported functions of an operator."""
    parameters = [_parameter(a, operator) for a in operator.arguments]
    parameters += ["uint64_t *workspaceSize", "aclOpExecutor **executor"]
    indent = ",\n    "
    first, second = operator.symbols
    return (
        f"aclnnStatus {first}(\n    {indent.join(parameters)})",
        f"aclnnStatus {second}(\n    void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, "
        "aclrtStream stream)",
    )


def _parameter(argument: Argument, operator: Operator) -> str:
    if argument.c_type != TENSOR:
        return f"{argument.c_type} {argument.name}"
    constant = argument.role == "input" or operator in _CONST_OUTPUTS
    return f"{'const ' if constant else ''}aclTensor *{argument.name}"


def _before_residual_gradient(operator: Operator) -> Operator:
    """The prototype before gradXPostOptional was added, when hcEps was still documented as a double."""
    kept = [a for a in operator.arguments if a.name != "gradXPostOptional"]
    return dataclasses.replace(
        operator, arguments=tuple(dataclasses.replace(a, c_type="double") if a.name == "hcEps" else a for a in kept)
    )


def operator_information(soc: str) -> Dict[str, Dict[str, object]]:
    """What the kernels of one soc take, in the form of aic-<soc>-ops-info.json."""
    return {o.name[len("aclnn") :]: _information(o) for o in OPERATORS.values() if soc in o.limits}


def _information(operator: Operator) -> Dict[str, object]:
    entries: Dict[str, object] = {}
    for kind, arguments in (("input", operator.inputs), ("output", operator.outputs)):
        for position, argument in enumerate(arguments):
            entries[f"{kind}{position}"] = {
                "name": argument.snake_name,
                "dtype": "bfloat16,float16" if argument.dtype == "x" else "float,float",
                "format": "ND,ND",
                "paramType": "optional" if argument.optional else "required",
            }
    entries["attr"] = {"list": ",".join(a.snake_name for a in operator.attrs)}
    for argument in operator.attrs:
        entries[f"attr_{argument.snake_name}"] = {
            "paramType": "optional",
            # The vendor's files know no double: they say float where the C prototype has either.
            "type": {"int64_t": "int", "bool": "bool"}.get(argument.c_type, "float"),
            "defaultValue": str(argument.default).lower(),
            "value": "all",
        }
    return entries


def entry_points() -> str:
    """The exported functions of all operators as C++: they hand over to the functions in src/mhc (entry.h there)."""
    functions = {o.name: re.sub(r"_v\d+$", "", snake_case(o.name[len("aclnn") :])) for o in OPERATORS.values()}
    declarations = "".join(f"Plan {function}(Call call);\n" for function in dict.fromkeys(functions.values()))
    definitions = ""
    for operator in OPERATORS.values():
        first, second = _prototypes(operator)
        arguments = ", ".join(a.name for a in operator.arguments)
        definitions += (
            f'HOST_API {first} {{\n  return host::hand_over("{operator.name}", '
            f"host::kernels::{functions[operator.name]},\n    workspaceSize, executor, {arguments});\n}}\n\n"
            f"HOST_API {second} {{\n"
            f'  return host::second_phase("{operator.name}", workspace, workspaceSize, executor, stream);\n}}\n\n'
        )
    return (
        '#include "mhc/entry.h"\n\nnamespace host::kernels {\n'
        f'{declarations}}}\n\nextern "C" {{\n\n{definitions}}}  // extern "C"\n'
    )


def contract_table() -> str:
    """The contract as C++ (src/framework/contract.h)."""
    entries = ",\n".join(_operator(o) for o in OPERATORS.values())
    return (
        '#include "framework/contract.h"\n\nnamespace host::contract {\n\n'
        "const std::vector<Operator> &table() {\n  static const auto *operators = new std::vector<Operator>{\n"
        f"{entries}\n  }};\n  return *operators;\n}}\n\n}}  // namespace host::contract\n"
    )


def _operator(operator: Operator) -> str:
    arguments = ",\n".join(f"      {_argument(a)}" for a in operator.arguments)
    limits = [f'{{"{soc}", {_limits(limit)}}}' for soc, limit in operator.limits.items()]
    return f'    {{"{operator.name}",\n     {{\n{arguments}\n     }},\n     {{{", ".join(limits)}}}}}'


def _limits(limits: Limits) -> str:
    most = "{}" if limits.max_hidden_size is None else str(limits.max_hidden_size)
    iterations = "{}" if limits.num_iters is None else f"{{{{{limits.num_iters[0]}, {limits.num_iters[1]}}}}}"
    hf32 = _list("true" if precision == "hf32" else "false" for precision in limits.precisions)
    values = [_list(limits.num_streams or ()), limits.min_hidden_size, most, limits.hidden_size_multiple]
    return _list([*values, _list(limits.hidden_sizes or ()), iterations, _list(limits.token_dims), hf32])


def _argument(argument: Argument) -> str:
    words = (argument.name, argument.role, argument.c_type, argument.dtype)
    texts = ", ".join(f'"{word}"' for word in words)
    dims = _list([_dim(d) for d in argument.shape])
    return f"{{{texts}, {dims}, {'true' if argument.optional else 'false'}}}"


def _dim(dim: Union[str, int]) -> str:
    factor, symbols = 1, []
    for part in str(dim).split("*"):
        if part.isdigit():
            factor *= int(part)
        else:
            symbols.append(f'"{part}"')
    return f"{{{factor}, {_list(symbols)}}}"


def _list(items: Iterable[object]) -> str:
    return "{" + ", ".join(str(item) for item in items) + "}"
