"""``python -m aclnn_adapter.contract [WHEEL or FOLDER]``: does torch_npu call the operators as the contract says?

torch_npu is the vendor's own client of the same aclnn operators, compiled against CANN's headers. Its library is
read, not run: neither PyTorch nor CANN is needed. Without an argument the torch_npu of this Python is read. The exit
status is 0 where every call agrees with ``aclnn_adapter/operators.py``, 1 where one differs, and 2 where there is
nothing to read.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence, Set, Tuple

from .compiled_calls import Library, NotReadableError, Types
from .operators import OPERATORS, TENSOR, Operator

LIBRARY = "torch_npu/lib/libtorch_npu.so"
VERSION = "torch_npu/version.py"

# What torch_npu converts each C++ type into (its ConvertType functions). An optional tensor may become a null pointer.
_OPTIONAL = "std::optional<at::Tensor>"
_C_TYPES = {
    "at::Tensor": TENSOR,
    "TensorWrapper": TENSOR,
    _OPTIONAL: TENSOR,
    "bool": "bool",
    "double": "double",
    "float": "float",
    "int": "int32_t",
    "long": "int64_t",
    "unsigned long": "uint64_t",
    "c10::ArrayRef<at::Tensor>": "aclTensorList*",
    "c10::ArrayRef<long>": "aclIntArray*",
    "c10::Scalar": "aclScalar*",
}


class NothingToReadError(ValueError):
    """There is no torch_npu to read, or none that knows the operators."""


@dataclass(frozen=True)
class Source:
    """A torch_npu: where it was found, which one it is, and its library."""

    place: Path
    version: str
    image: bytes


@dataclass(frozen=True)
class Finding:
    """What one operator's call says of its contract. ``differences`` is empty where they agree."""

    operator: Operator
    called: bool
    differences: Tuple[str, ...] = ()


def read(place: Optional[Path]) -> Source:
    """A torch_npu from a wheel, or from an installed package's folder, or the one of this Python."""
    if place is None:
        spec = importlib.util.find_spec("torch_npu")
        if spec is None or spec.origin is None:
            raise NothingToReadError(
                "torch_npu is not installed in this Python; name a wheel (pip download --no-deps torch_npu) or the "
                "folder of an installed package"
            )
        place = Path(spec.origin).parent
    if zipfile.is_zipfile(place):
        return _read_wheel(place)
    for root in (place, place.parent) if place.name == "torch_npu" else (place,):
        if (root / LIBRARY).is_file():
            version = root / VERSION
            text = version.read_text(encoding="utf-8") if version.is_file() else ""
            return Source(root / LIBRARY, _version(text), (root / LIBRARY).read_bytes())
    if not place.exists():
        raise NothingToReadError(f"{place} does not exist")
    raise NothingToReadError(f"{place} is neither a wheel of torch_npu nor a folder with {LIBRARY}")


def _read_wheel(place: Path) -> Source:
    with zipfile.ZipFile(place) as wheel:
        names = set(wheel.namelist())
        if LIBRARY not in names:
            raise NothingToReadError(f"{place} holds no {LIBRARY}: it is no wheel of torch_npu")
        text = wheel.read(VERSION).decode() if VERSION in names else ""
        return Source(place, _version(text), wheel.read(LIBRARY))


def _version(text: str) -> str:
    match = re.search(r"__version__ = ['\"]([^'\"]+)", text)
    return match.group(1) if match else "of unknown version"


def c_type(cpp: str) -> str:
    """The C type of an argument that torch_npu passes as a C++ type; the C++ type itself where it is not known."""
    plain = re.sub(r"( const)?&*$", "", cpp)
    return _C_TYPES.get(plain, plain)


def differences(operator: Operator, passed: Types) -> List[str]:
    """How the types of a compiled call differ from the operator's contract."""
    ours = operator.arguments
    found: List[str] = []
    if len(passed) != len(ours):
        found.append(f"{len(passed)} arguments there, {len(ours)} in the contract")
    for position, (argument, cpp) in enumerate(zip(ours, passed), 1):
        where = f"argument {position} ({argument.name})"
        if c_type(cpp) != argument.c_type:
            found.append(f"{where}: {c_type(cpp)} there, {argument.c_type} in the contract")
        elif _OPTIONAL in cpp and not argument.optional:
            found.append(f"{where} may be null there, not in the contract")
    return found


def compare(library: Library, operators: Mapping[str, Operator]) -> List[Finding]:
    """One finding per operator: each call's types against the contract."""
    calls: Dict[str, Set[Types]] = library.calls(list(operators))
    findings = []
    for name, operator in operators.items():
        lists = sorted(calls.get(name, ()))
        found = [text for passed in lists for text in differences(operator, passed)]
        if name in calls and not lists:
            found.append("its name is there, but the call could not be read")
        findings.append(Finding(operator, name in calls, tuple(found)))
    return findings


def compare_loosely(library: Library, operators: Mapping[str, Operator]) -> List[Finding]:
    """The same where the code cannot be read: a list counts wherever in the library it stands."""
    known = set(library.argument_lists().values())
    findings = []
    for name, operator in operators.items():
        called = name.encode() in library.data
        agrees = any(not differences(operator, passed) for passed in known)
        text = () if agrees or not called else ("no call in the library has the contract's list of types",)
        findings.append(Finding(operator, called, text))
    return findings


def report(source: Source, findings: Sequence[Finding], note: str = "") -> str:
    """The findings in words, one operator after the other."""
    width = max(len(finding.operator.name) for finding in findings)
    lines = [f"torch_npu {source.version}, {source.place}"]
    for finding in findings:
        count = len(finding.operator.arguments)
        words = "; ".join(finding.differences) or (f"agrees, {count} arguments" if finding.called else "not called")
        lines.append(f"  {finding.operator.name:{width}}  {'DIFFERS: ' if finding.differences else ''}{words}")
    return "\n".join([*lines, note] if note else lines)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Read, compare, print."""
    parser = argparse.ArgumentParser(prog="python -m aclnn_adapter.contract", description=__doc__)
    parser.add_argument("place", nargs="?", type=Path, metavar="WHEEL or FOLDER", help="what to read")
    options = parser.parse_args(arguments)
    try:
        source = read(options.place)
        findings, note = _findings(Library(source.image))
    except (NothingToReadError, NotReadableError, OSError) as problem:
        print(f"aclnn_adapter.contract: {problem}", file=sys.stderr)
        return 2
    if not any(finding.called for finding in findings):
        print(f"aclnn_adapter.contract: {source.place} calls none of the operators", file=sys.stderr)
        return 2
    print(report(source, findings, note))
    return 1 if any(finding.differences for finding in findings) else 0


def _findings(library: Library) -> Tuple[List[Finding], str]:
    try:
        return compare(library, OPERATORS), ""
    except NotReadableError as problem:
        note = f"Weaker than usual ({problem}): a list of types counts wherever in the library it stands."
        return compare_loosely(library, OPERATORS), note


if __name__ == "__main__":
    sys.exit(main())
