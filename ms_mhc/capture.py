"""The captures of ``ms.jit`` other than the default, ``"bytecode"`` and ``"trace"``, are refused.

In MindSpore 2.10 bytecode capture loses the gradients of parameters wherever it leaves a graph for an operator with a
written gradient, silently; a trace of the C++ kernels cannot be differentiated. So that the refusal is reached,
bytecode capture must run this package's functions as they are: MindSpore has a list of packages that it never enters.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from types import FrameType
from typing import Optional

try:
    from mindspore.graph._utils import pijit_context
    from mindspore.graph.jit_context import jit_context
except ImportError:  # a MindSpore with other captures, or none
    pijit_context = jit_context = None

PACKAGES = ("ms_mhc", "aclnn_adapter")


def leave_out() -> None:
    """Put this package's folders on MindSpore's list, before or after it has read it."""
    if pijit_context is None:
        logging.getLogger("ms_mhc").debug("the captures of ms.jit are not known here")
    elif pijit_context.SKIP_RULES:
        pijit_context.SKIP_RULES["third_party"] = (*pijit_context.SKIP_RULES["third_party"], *PACKAGES)
    else:
        here = Path(__file__).resolve().parents[1]
        pijit_context.pi_jit_set_context(skip_files=tuple(f"{here / name}/" for name in PACKAGES))


def refuse() -> None:
    """Called wherever Python code is about to compute.

    Raises:
        RuntimeError: it does so under one of these captures. (After an error in a trace MindSpore 2.10 goes on tracing;
            start the process anew.)
    """
    if pijit_context is None:
        return
    mode = "trace" if jit_context() is not None else "bytecode" if _under_bytecode_capture() else None
    if mode is not None:
        raise RuntimeError(
            f"ms_mhc: gradients are not right under ms.jit(capture_mode={mode!r}) in MindSpore 2.10; use "
            f'capture_mode="ast", the default'
        )


def _under_bytecode_capture() -> bool:
    if pijit_context.SKIP_RULES:  # MindSpore empties it when the first function is captured
        return False
    frame: Optional[FrameType] = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "_fn" and frame.f_code.co_filename == pijit_context.__file__:
            return True
        frame = frame.f_back
    return False
