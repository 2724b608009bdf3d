"""A stand-in for ``hyper_parallel``, which is on no package index, where one process uses none of it.

Every module of that name can be imported and has every name. Four mean something: ``DTensor``, ``HSDPModule``,
``get_platform``, and ``enable_mindspore_backward_compat``, with which their trainer gives tensors ``backward()``.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any, Optional

from mindspore.common._grad_function import _Function

NAME = "hyper_parallel"


class _Nothing(type):
    """The type of classes that have every name and do nothing."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return nothing(name)


def nothing(name: str) -> type:
    return _Nothing(name, (), {"__init__": lambda self, *args, **options: None})


class Platform:
    Function = _Function
    platform_type = "mindspore"


def enable_backward() -> None:
    """``loss.backward()`` on MindSpore 2.10: the engine is in its wheel, only the methods of tensors are missing."""
    from mindspore import ops
    from mindspore._c_expression import TensorPy, run_backward
    from mindspore.graph.api import _pynative_executor

    def backward(self: Any, gradient: Any = None) -> None:
        first = ops.ones_like(self) if gradient is None else gradient
        run_backward((self,), (first,), False, False, (), allow_unreachable=True, accumulate_grad=True)

    _pynative_executor.set_grad_flag(True)
    for name in ("grad", "requires_grad"):
        hidden = "_" + name
        getter, setter = (lambda t, h=hidden: getattr(t, h)), (lambda t, value, h=hidden: setattr(t, h, value))
        setattr(TensorPy, name, property(getter, setter))
    TensorPy.backward = backward


_MEANT = {
    "DTensor": type("DTensor", (), {}),
    "HSDPModule": type("HSDPModule", (), {}),
    "get_platform": Platform,
    "enable_mindspore_backward_compat": enable_backward,
}


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _MEANT.get(name) or nothing(name)
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[importlib.machinery.ModuleSpec]:
        if name.split(".", 1)[0] != NAME:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _Module(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def install() -> None:
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
