"""Kernels called from Python in PyNative mode: a C++ extension of MindSpore, generated from the contract.

An ``ops.Custom`` runs in compiled graphs only, so that a call from Python needs a small graph of its own, whose call
costs several times as much (``benchmarks/eager_calls.py``). An extension launches the kernel as MindSpore launches its
own operators. MindSpore has the C++ for that; what is generated here says which tensors and attributes go where.

It is compiled at the first call, once for each version of MindSpore, Python and CANN, and kept in the user's cache
folder (``$XDG_CACHE_HOME/ms_mhc``, else ``~/.cache/ms_mhc``).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import logging
import os
import platform as python_platform
import subprocess
import sys
import sysconfig
import tempfile
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Callable, List, Optional, Tuple

import mindspore as ms
from mindspore import ops

from aclnn_adapter import folders, platform
from aclnn_adapter.libraries import cut_short
from aclnn_adapter.operators import OPERATORS, TENSOR, Argument, Operator

logger = logging.getLogger("aclnn_adapter")

_NAME = "aclnn_adapter_kernels"
_COMPILER = "g++"
_SHAPES_KEPT = 1024  # of one kernel

_SOURCE = """#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "pybind11/pybind11.h"
#include "pybind11/stl.h"

#include "include/pynative/utils/pyboost/custom/pyboost_extension.h"
#include "include/kernel/ascend/custom/pyboost_impl/aclnn_op_runner.h"

namespace {

using ms::Tensor;
using Shapes = std::vector<std::vector<std::int64_t>>;

"""

_FUNCTION = """pybind11::object {name}({parameters}, const Shapes &shapes) {{
  const auto launch = [shapes]({parameters}) {{
    const std::vector<Tensor> out{{{outputs}}};
    const auto runner = std::make_shared<ms::pynative::AclnnOpRunner>("{name}");
    runner->SetLaunchFunc(LAUNCH_ACLNN_FUNC({name}, {arguments}));
    runner->Run({{{tensors}}}, out);
    return out;
  }};
  return ms::pynative::PyboostRunner::Call<{count}>(std::string("{name}"), launch, {names});
}}

"""


def source() -> str:
    """The C++ of the extension: a function for each operator of the contract.

    It takes the inputs, the attributes, and the shapes of the outputs.
    """
    functions = "".join(map(_function, OPERATORS.values()))
    defined = "".join(f'  m.def("{name}", &{name});\n' for name in OPERATORS)
    return f"{_SOURCE}{functions}}}  // namespace\n\nPYBIND11_MODULE(MS_EXTENSION_NAME, m) {{\n{defined}}}\n"


def _function(operator: Operator) -> str:
    taken = (*operator.inputs, *operator.attrs)
    places = {a.name: f"out[{place}]" for place, a in enumerate(operator.outputs)}
    x = next((a.name for a in operator.inputs if a.dtype == "x"), "")

    def output(place: int, argument: Argument) -> str:
        dtype = f"{x}.data_type()" if argument.dtype == "x" else f"mindspore::kNumberType{argument.dtype.capitalize()}"
        return f"Tensor({dtype}, shapes[{place}])"

    return _FUNCTION.format(
        name=operator.name,
        parameters=", ".join(
            f"const Tensor &{a.name}" if a.c_type == TENSOR else f"{a.c_type} {a.name}" for a in taken
        ),
        outputs=", ".join(output(place, a) for place, a in enumerate(operator.outputs)),
        arguments=", ".join(places.get(a.name, a.name) for a in operator.arguments),
        tensors=", ".join(a.name for a in operator.inputs),
        count=len(operator.outputs),
        names=", ".join(a.name for a in taken),
    )


class EagerKernel:
    """One operator of the extension, called as an :class:`aclnn_adapter.custom.AclnnKernel` is.

    Args:
        operator: the contract.
        shapes: gives the shapes of the outputs from those of the inputs.
    """

    def __init__(self, operator: Operator, shapes: Callable[..., Any]) -> None:
        self._function = getattr(_loaded(), operator.name)
        self._inputs = len(operator.inputs)
        several = len(operator.outputs) > 1

        @lru_cache(maxsize=_SHAPES_KEPT)
        def outputs(*inputs: Tuple[int, ...]) -> List[List[int]]:
            found = shapes(*inputs)
            return list(found) if several else [found]

        self._outputs = outputs

    def __call__(self, *args: Any) -> Any:
        return self._function(*args, self._outputs(*(tensor.shape for tensor in args[: self._inputs])))


def about() -> str:
    """What calls a kernel from Python here, in words. Nothing is compiled."""
    try:
        library = _builder().library()
    except (OSError, ValueError) as error:
        return f"small graphs ({error})"
    return f"extension at {library}" if _usable(library) else f"extension, which the first call compiles to {library}"


@cache
def refusal() -> Optional[str]:
    """Why there is no extension here, or ``None``. The first call compiles it if it is not in the cache."""
    try:
        _loaded()
    except (OSError, RuntimeError, ImportError) as error:
        reason = f"MindSpore's extension for kernels called eagerly cannot be had: {error}"
        logger.warning("%s; each eager call goes through a small graph, which is slower", reason)
        return reason
    return None


@cache
def _loaded() -> Any:
    path = _builder().cached()
    spec = importlib.util.spec_from_file_location(_NAME, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python extension")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _builder() -> _Builder:
    return _Builder(_NAME, [], backend="Ascend", cflags="-O1", ldflags="-l:libmindspore_ops_ascend.so")


class _Builder(ops.CustomOpBuilder):
    """MindSpore's builder of extensions, whose folders and flags these are.

    Its own ``build`` wants ninja, and a folder for each process or a lock that a killed process leaves behind.
    """

    def library(self) -> Path:
        """Where the compiled extension lies in the cache."""
        stated = (source(), ms.__version__, sys.version, platform.cann_version(), python_platform.machine())
        digest = hashlib.sha256(repr((*stated, self.get_cflags(), self.ldflags)).encode()).hexdigest()[:16]
        return _cache_folder() / digest / f"{_NAME}.so"

    def cached(self) -> Path:
        """The compiled extension, compiled now if it is not there."""
        library = self.library()
        if _usable(library):
            return library
        folder = library.parent
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            with contextlib.suppress(OSError):  # not every network folder has locks; each process compiles then
                fcntl.flock(lock, fcntl.LOCK_EX)
            if not _usable(library):
                logger.warning("compiling MindSpore's extension for kernels called eagerly, once: %s", library)
                self._compile(source(), library)
        return library

    def _compile(self, text: str, library: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="compiling.", dir=library.parent) as folder:
            path = Path(folder, f"{_NAME}.cc")
            path.write_text(text)
            built = path.with_suffix(".so")
            include = [f"-I{folder}" for folder in (*self.get_include_paths(), sysconfig.get_path("include"))]
            flags = [flag for flag in self.get_cflags() if flag != "-pie"]  # of programs
            command = [_COMPILER, *flags, "-w", *include, str(path), "-o", str(built), *self.get_ldflags()]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            if done.returncode:
                first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:300])
                raise RuntimeError(f"{_COMPILER} refused it: {first}")
            built.replace(library)


def _usable(library: Path) -> bool:
    return library.is_file() and not cut_short(library)


def _cache_folder() -> Path:
    """A folder that lasts, or one for this user in the temporary folder where there is none."""
    try:
        folder = folders.caches() / "ms_mhc"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: no home
        pass
    else:
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    folder = Path(tempfile.gettempdir(), f"ms_mhc-{os.getuid()}")
    folders.private(folder)
    return folder
