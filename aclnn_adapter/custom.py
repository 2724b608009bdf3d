"""An entry of the contract becomes an ``ops.Custom`` that calls the aclnn kernel.

Registration is explicit, so that C types are right with and without the vendor's header. The callback that MindSpore
generates and compiles goes into a folder of this process, which is removed at exit: nothing is written into the user's
current folder, and processes that start together do not share a file.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import mindspore as ms
from mindspore import ops
from mindspore.ops import CustomRegOp, DataType

from aclnn_adapter import extension, folders, platform
from aclnn_adapter.cpp_infer import shape_function
from aclnn_adapter.extension import EagerKernel
from aclnn_adapter.operators import Argument, Operator, resolve
from aclnn_adapter.platform import called_eagerly, recording

_ATTR_TYPES = {"double": "double", "float": "float", "int64_t": "int", "bool": "bool"}
_REGISTERED_TYPES = {
    "float32": DataType.F32_Default,
    "bfloat16": DataType.BF16_Default,
    "float16": DataType.F16_Default,
}
X_DTYPES = ("bfloat16", "float16")

_CACHE_VARIABLE, _HEADERS_VARIABLE = "MS_COMPILER_CACHE_PATH", "ASCEND_CUSTOM_OPP_PATH"
_build_lock = threading.Lock()
_graph_lock = threading.RLock()  # MindSpore's graphs give wrong results where two threads run one at once
_folder: List[str] = []


def _process_folder() -> str:
    """A folder for this process's callbacks, made at the first call and removed at exit.

    MindSpore splits its compiler's options at blanks, and the names of sources at colons.
    """
    if not _folder:
        _folder.append(str(folders.of_process("aclnn_adapter_", folders.temporary_parent(r"[\s:]"))))
    return _folder[0]


@contextmanager
def _environment(operator: Operator) -> Iterator[None]:
    """Environment variables, only while MindSpore generates and compiles the callback of an operator.

    One says where it writes them. The other says where it looks for headers first: it finds a declaration of the
    contract there. The vendor's was compared with the contract, and MindSpore's parser knows one way to write it only.
    """
    headers = Path(_process_folder()) / "headers"
    header = headers / "op_api/include" / operator.header
    header.parent.mkdir(parents=True, exist_ok=True)
    wanted = {_CACHE_VARIABLE: _process_folder(), _HEADERS_VARIABLE: str(headers)}
    with _build_lock:
        header.write_text(declaration(operator))
        before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def declaration(operator: Operator) -> str:
    """The declaration of the operator's GetWorkspaceSize, as MindSpore's parser wants it written."""
    return f"aclnnStatus {operator.symbols[0]}({', '.join(f'{t} p{i}' for i, t in enumerate(operator.c_types))});\n"


def registration(operator: Operator) -> Dict[str, Any]:
    """The operator's registration for ``ops.Custom``."""
    registered = CustomRegOp(operator.name)
    for index, argument in enumerate(operator.inputs):
        registered.input(index, argument.name, "optional" if argument.optional else "required")
    for index, argument in enumerate(operator.outputs):
        registered.output(index, argument.name, "required")
    for argument in operator.attrs:
        registered.attr(argument.name, "required", _ATTR_TYPES[argument.c_type])
    tensors = operator.inputs + operator.outputs
    for dtype in X_DTYPES if any(a.dtype == "x" for a in tensors) else ("float32",):
        registered.dtype_format(*(_REGISTERED_TYPES[dtype if a.dtype == "x" else a.dtype] for a in tensors))
    info: Dict[str, Any] = registered.target("Ascend").get_op_info()
    return info


def infer_functions(
    operator: Operator, leading: int = 0, **known: int
) -> Tuple[Callable[..., Any], Callable[..., Any]]:
    """Shape and dtype inference. Sizes that no input shows (such as ``I``) are given by keyword.

    ``leading``: so many tensors that the contract does not name come before its inputs.
    """
    outputs = operator.outputs
    first_x = next((i for i, a in enumerate(operator.inputs) if a.dtype == "x"), None)

    def one_or_many(items: Sequence[Any]) -> Any:
        return tuple(items) if len(items) > 1 else items[0]

    def shapes(*inputs: Sequence[int]) -> Any:
        sizes = operator.bind(inputs[leading : leading + len(operator.inputs)], **known)
        return one_or_many([list(resolve(a.shape, sizes)) for a in outputs])

    def dtypes(*inputs: Any) -> Any:
        def of(argument: Argument) -> Any:
            return (
                inputs[leading + first_x]
                if argument.dtype == "x" and first_x is not None
                else getattr(ms, argument.dtype)
            )

        return one_or_many([of(a) for a in outputs])

    return shapes, dtypes


class AclnnKernel(ops.Custom):
    """One aclnn operator. Inside a compiled graph it is the kernel.

    Called from Python in PyNative mode it is a function of MindSpore's extension (:mod:`aclnn_adapter.extension`).
    Where that cannot be had, in graph mode, and while MindSpore records a gradient, which the kernel does not have, it
    compiles a graph of itself.

    Args:
        operator: the contract.
        dynamic: whether it stands in graphs whose numbers of tokens are not known when they are compiled. Then its
            shapes are inferred in C++, which MindSpore compiles with g++.
        known: sizes that no input shows, see :func:`infer_functions`.

    The call takes the inputs, then the attributes, in the contract's order. A tensor is never ``None``: MindSpore
    crashes on it at launch.

    Raises:
        RuntimeError: where this machine cannot call the operator, with the reason.
    """

    def __init__(self, operator: Operator, dynamic: bool = False, **known: int) -> None:
        reason = platform.refusal(operator)
        if reason:
            raise RuntimeError(f"{operator.name}: {reason}")
        self.operator = operator
        shapes, dtypes = infer_functions(operator, **known)
        function = operator.name
        python: Optional[Callable[..., Any]] = shapes
        if dynamic:
            source = Path(_process_folder()) / f"{operator.name}_{'_'.join(map(str, known.values()))}.cc"
            source.write_text(shape_function(operator, **known))
            function, python = f"{source}:{operator.name}", None
        with _environment(operator):
            super().__init__(function, python, dtypes, func_type="aot", reg_info=registration(operator))
        self._graph = _as_graph(self)
        self._shapes = shapes
        self._eager: Optional[EagerKernel] = None

    def __call__(self, *args: Any) -> Any:
        if not called_eagerly() or recording() or extension.refusal():
            return self._graph(*args)
        if self._eager is None:
            self._eager = EagerKernel(self.operator, self._shapes)
        return self._eager(*args)


def _as_graph(kernel: AclnnKernel) -> Callable[..., Any]:
    @ms.jit(jit_level="O0")
    def call(*args: Any) -> Any:
        return kernel(*args)

    def run(*args: Any) -> Any:
        with _graph_lock:
            # with MS_JIT=0 MindSpore would call the Python function, which would end up here again
            switch = os.environ.pop("MS_JIT", None)
            try:
                return call(*args)
            finally:
                if switch is not None:
                    os.environ["MS_JIT"] = switch

    return run
