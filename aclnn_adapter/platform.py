"""What this machine is: device, soc, CANN, which entry points are there, and why not.

Every question answers with a reason in words where the answer is no, so that fall-backs and errors can pass it on.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import shutil
import threading
from functools import cache
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

import mindspore as ms
from mindspore._c_expression import MSContext, ms_ctx_param

from aclnn_adapter.operators import A2, A3, A5, OPERATORS, Operator

try:
    from mindspore.graph.api import _pynative_executor
except ImportError:  # MindSpore 2.9
    from mindspore.common.api import _pynative_executor

pynative_executor = _pynative_executor


def _context(parameter: object) -> object:
    """What ``ms.get_context`` finds, in a thirtieth of its time: eager calls ask at every turn."""
    return MSContext.get_instance().get_param(parameter)


def device_target() -> str:
    """``"CPU"``, ``"GPU"`` or ``"Ascend"``: where MindSpore runs its operators now."""
    return str(_context(ms_ctx_param.device_target))


def called_eagerly() -> bool:
    """Whether Python code computes now, rather than a graph: only for code that runs, not for what is compiled."""
    return bool(_context(ms_ctx_param.mode) == ms.PYNATIVE_MODE)


def recording() -> bool:
    """Whether MindSpore records what is computed eagerly now, for a gradient."""
    return bool(pynative_executor.requires_grad())


@cache
def soc_version() -> str:
    """The soc in the form that CANN's folders use, such as ``ascend950``. Only where the device target is Ascend.

    MindSpore does not ask the device in a dry run (``MS_SIMULATION_LEVEL``); then CANN's runtime is asked. Empty where
    that does not know either, as on a machine without the device.
    """
    return str(MSContext.get_instance().get_ascend_soc_version()) or _version_of(_soc_name())


# The beginnings of the names that CANN's runtime gives to socs with mHC operators.
_SOC_NAMES = {"Ascend950": A5, "Ascend910_93": A3, "Ascend910B": A2}


def _version_of(soc_name: str) -> str:
    return next((version for start, version in _SOC_NAMES.items() if soc_name.startswith(start)), soc_name.lower())


def _soc_name() -> str:
    """The name that CANN's runtime gives to this machine's soc, or an empty string."""
    home = cann_home()
    try:
        runtime = ctypes.CDLL(str(home / "lib64/libascendcl.so") if home else "libascendcl.so")
        runtime.aclrtGetSocName.restype = ctypes.c_char_p
        name = runtime.aclrtGetSocName()
    except (OSError, AttributeError):
        return ""
    return name.decode() if name else ""


def cann_home() -> Optional[Path]:
    """The root of the CANN installation, or ``None`` when the environment names none."""
    opp = os.environ.get("ASCEND_OPP_PATH")
    if opp:
        return Path(opp).parent
    home = os.environ.get("ASCEND_HOME_PATH")
    return Path(home) if home else None


def cann_version() -> Optional[str]:
    """The version that CANN states of itself, or ``None``."""
    home = cann_home()
    if home is None:
        return None
    for name in ("version.cfg", "opp/version.info", "compiler/version.info", "version.info"):
        path = home / name
        if path.is_file():
            match = re.search(r"(?im)^\s*version\s*=\s*\[?([\w.:\-]+)", path.read_text(errors="replace"))
            if match:
                return match.group(1)
    return None


def _vendor_folders() -> List[Path]:
    """Folders of operators that were added to CANN, in the order in which MindSpore looks through them."""
    folders = [Path(p) for p in os.environ.get("ASCEND_CUSTOM_OPP_PATH", "").split(":") if p]
    home = cann_home()
    config = home / "opp/vendors/config.ini" if home else None
    if home and config and config.is_file():
        match = re.search(r"(?im)^\s*load_priority\s*=(.*)$", config.read_text(errors="replace"))
        names = match.group(1).split(",") if match else []
        folders.extend(home / "opp/vendors" / name.strip() for name in names if name.strip())
    return folders


def header_folders() -> List[Path]:
    """Where vendor headers lie, in the order in which MindSpore reads them."""
    folders = [folder / "op_api/include" for folder in _vendor_folders()]
    home = cann_home()
    return folders + ([home / "include/aclnnop"] if home else [])


def _library_paths() -> Iterator[Path]:
    for folder in _vendor_folders():
        yield folder / "op_api/lib/libcust_opapi.so"
    homes = (os.environ.get("ASCEND_HOME_PATH"), cann_home())
    for home in dict.fromkeys(Path(home) for home in homes if home):
        yield from sorted((home / "lib64").glob("libopapi*.so"))


_lock = threading.Lock()
_libraries: Dict[Path, ctypes.CDLL] = {}


def _loaded_libraries() -> List[ctypes.CDLL]:
    loaded = []
    with _lock:
        for path in _library_paths():
            if path not in _libraries and path.is_file():
                try:
                    _libraries[path] = ctypes.CDLL(str(path))
                except OSError:
                    continue  # a library of another machine: MindSpore cannot use it either
            if path in _libraries:
                loaded.append(_libraries[path])
    return loaded


def missing_symbols(operator: Operator) -> List[str]:
    """The entry points of the operator that no library of CANN exports."""
    libraries = _loaded_libraries()
    return [s for s in operator.symbols if not any(hasattr(library, s) for library in libraries)]


# Words of a parameter that are not its type: qualifiers, and macros such as IN or __restrict.
_QUALIFIER = re.compile(r"(const|volatile|restrict|__restrict(__)?|struct|enum|_*[A-Z][A-Z0-9_]*)$")
_BUILTIN = {"unsigned", "signed", "short", "long", "int", "char", "float", "double", "bool", "void"}


def prototype(header: str, operator: Operator) -> Optional[Tuple[str, ...]]:
    """The C types of the operator's GetWorkspaceSize in a header's text, or ``None`` when it does not declare it."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*|\\\n|^\s*#[^\n]*", " ", header, flags=re.DOTALL | re.MULTILINE)
    for match in re.finditer(rf"\baclnnStatus\b[^;{{}}()]*\b{operator.symbols[0]}\s*\(([^()]*)\)", text):
        parameters = [p for p in match.group(1).split(",") if p.split() not in ([], ["void"])]
        return tuple(_parameter_type(p) for p in parameters)
    return None


def _parameter_type(parameter: str) -> str:
    """The type of one C parameter, such as ``aclTensor*``: no qualifiers, no name, no blanks."""
    tokens = re.findall(r"\w+|[*\[]", parameter.replace("std::", " ").split("=")[0])
    words = [t for t in tokens if t not in "*[" and not _QUALIFIER.match(t)]
    builtin = list(itertools.takewhile(_BUILTIN.__contains__, words))
    return " ".join(builtin or words[:1]) + "*" * sum(t in "*[" for t in tokens)


def _header_path(operator: Operator) -> Optional[Path]:
    for folder in header_folders():
        if (folder / operator.header).is_file():
            return folder / operator.header
    return None


def header_difference(operator: Operator) -> Optional[str]:
    """How the vendor's header differs from the contract, or ``None``.

    MindSpore takes the C types of a call from the header it finds; a header of an older or newer operator would make
    it call the function with the wrong ones. A missing header is no difference: the registration carries the types.
    """
    path = _header_path(operator)
    if path is None:
        return None
    found = prototype(path.read_text(errors="replace"), operator)
    if found is None:
        return f"{path} does not declare {operator.symbols[0]}"
    if found == operator.c_types:
        return None
    return f"{path} declares {operator.symbols[0]} with {_first_difference(operator, found)}"


def _first_difference(operator: Operator, found: Sequence[str]) -> str:
    names = [a.name for a in operator.arguments] + ["workspaceSize", "executor"]
    expected = operator.c_types
    for position, (name, want) in enumerate(zip(names, expected)):
        got = found[position] if position < len(found) else "nothing"
        if got != want:
            return (
                f"{len(found)} parameters where {len(expected)} are expected, the first difference at parameter "
                f"{position + 1}: {got} instead of {want} ({name})"
            )
    return f"{len(found)} parameters where {len(expected)} are expected"


def refusal(operator: Operator) -> Optional[str]:
    """Why this machine cannot call the operator, or ``None`` when it can."""
    target = device_target()
    if target != "Ascend":
        return f"the device target is {target}, not Ascend"
    if cann_home() is None:
        return "neither ASCEND_OPP_PATH nor ASCEND_HOME_PATH is set, so CANN cannot be found"
    soc = soc_version()
    if not soc:
        dry_run = os.environ.get("MS_SIMULATION_LEVEL")
        why = f"in a dry run (MS_SIMULATION_LEVEL={dry_run})" if dry_run else "here"
        return f"the soc is unknown: neither MindSpore nor CANN's runtime names it {why}"
    if soc not in operator.limits:
        return f"{operator.name} is not available on {soc}, only on {', '.join(operator.limits)}"
    reason = _cann_refusal(operator.name, str(cann_home()), os.environ.get("ASCEND_CUSTOM_OPP_PATH", ""))
    return reason or _compiling_refusal(os.environ.get("ASCEND_OPP_PATH"), os.environ.get("PATH"))


@cache
def _cann_refusal(name: str, home: str, custom: str) -> Optional[str]:
    """What is wrong with the operator in this CANN. Asked at every eager call, so the files are read once."""
    operator = OPERATORS[name]
    missing = missing_symbols(operator)
    if missing:
        version = cann_version()
        return f"CANN{f' {version}' if version else ''} at {home} does not export {' or '.join(missing)}"
    return header_difference(operator)


@cache
def _compiling_refusal(opp: Optional[str], path: Optional[str]) -> Optional[str]:
    """Why MindSpore cannot compile the few lines of C++ by which it calls a kernel; ``path`` is that of programs."""
    if not opp:
        return "ASCEND_OPP_PATH is not set, which MindSpore needs to call a kernel; source CANN's set_env.sh"
    header = Path(opp.split("opp")[0]) / "include/acl/acl_base.h"  # as MindSpore takes it from there
    if not header.is_file():
        return f"ASCEND_OPP_PATH is {opp}, so MindSpore wants {header} to call a kernel, which is not there"
    if " " in str(header):
        return (
            f"MindSpore cannot use CANN under a path with a blank, {header.parents[2]}; make a link without one to it"
        )
    if shutil.which("g++", path=path) is None:
        return "MindSpore compiles the call of a kernel with g++, which is not on the PATH; install it"
    return None
