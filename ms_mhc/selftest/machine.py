"""What the tests run on: device, ways to call, backends, memory; and the context, put back afterwards.

The only place of this package that asks the backends' registry.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Iterator, Optional, Sequence, Tuple

import mindspore as ms
from mindspore._c_expression import ms_ctx_param
from mindspore.context import _context

from aclnn_adapter import platform
from ms_mhc.backends import registry
from ms_mhc.backends.registry import AUTO, Job
from ms_mhc.selftest.covering import Case

WAYS = ("graph", "jit", "eager")

_BYTES_PER_ELEMENT = 150  # of x: the reference works in float64 and keeps about as many arrays as it has formulas
_MOST_ELEMENTS_QUICK = 2**17
_MOST_ELEMENTS_ON_A_CPU = 2**24  # more would take minutes and reach no other code
_MOST_ELEMENTS = 2**27


@dataclass(frozen=True)
class Machine:
    """The values that options may take here."""

    target: str
    dtypes: Tuple[str, ...]
    ways: Tuple[str, ...]
    backends: Tuple[str, ...]
    quick: bool
    most_elements: int  # of x in one case

    @property
    def sixteen_bits(self) -> str:
        """The dtype of x for what is not compared dtype by dtype."""
        return self.dtypes[0]

    def fits(self, case: Case) -> bool:
        """Whether there is memory and time for a case."""
        return case["tokens"] * case["num_streams"] * case.get("hidden_size", 1) <= self.most_elements


def describe(ways: Sequence[str], backend: str, quick: bool) -> Machine:
    """This machine. With ``backend="auto"`` also the backends that can be asked for by name are tested."""
    target = platform.device_target()
    dtypes = ("bfloat16", "float16") if target == "Ascend" else ("bfloat16", "float16", "float32")
    named = tuple(b.name for b in registry.backends() if b.refusal(Job("mhc_post", 4, 128)) is None)
    on_a_cpu = target == "CPU" or "CANN_HOST_SOC" in os.environ  # the host CANN
    most = _MOST_ELEMENTS_QUICK if quick else _MOST_ELEMENTS_ON_A_CPU if on_a_cpu else _MOST_ELEMENTS
    return Machine(
        target,
        dtypes,
        tuple(ways),
        (AUTO, *named) if backend == AUTO else (backend,),
        quick,
        min(most, available_bytes() // _BYTES_PER_ELEMENT),
    )


_ATTRIBUTES = ("norm_eps", "hc_eps", "sinkhorn_eps", "eps", "num_iters", "recipe")


def _job(operator: str, case: Case) -> Job:
    return Job(
        operator,
        case["num_streams"],
        case.get("hidden_size"),
        getattr(ms, case["dtype"]) if "dtype" in case else None,
        num_iters=case.get("num_iters"),
        recipe=case.get("recipe"),
        absent=("h_res",) if case.get("h_res") == "identity" else () if case.get("gamma", True) else ("gamma",),
        attributes=tuple((name, case[name]) for name in _ATTRIBUTES if name in case),
        precision=case.get("precision", "float32"),
        token_dims={"TND": 1, "BSND": 2}.get(case.get("layout", "")),
    )


def taken(operator: str, case: Case) -> Optional[str]:
    """The backend that a case runs on in a compiled graph, or two of them, for forward and backward.

    ``None`` where the one asked for refuses it.
    """
    return _taken(platform.device_target(), _job(operator, case), case["backend"])


@cache
def _taken(target: str, job: Job, wanted: str) -> Optional[str]:
    try:
        choice = registry.choose("selftest", job, wanted)
    except (ValueError, RuntimeError):
        return None
    names = (choice.forward.name, choice.backward.name)
    return names[0] if names[0] == names[1] else "+".join(names)


def available_bytes() -> int:
    """Memory that may be taken without swapping."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:  # noqa: PTH123
            return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def restored_context() -> Iterator[None]:
    """Whatever happens inside: mode, device, jit level and saved graphs are afterwards what they were."""
    before = {name: ms.get_context(name) for name in ("mode", "save_graphs", "save_graphs_path", "device_target")}
    level, config = ms.get_context("jit_level"), ms.get_context("jit_config")
    try:
        yield
    finally:
        ms.set_context(**before)
        # the public setter has no word for "not set"
        _context().set_param(ms_ctx_param.jit_level, level)
        _context().jit_config = config


def enter(way: str) -> None:
    """The context for a way to call."""
    ms.set_context(mode=ms.GRAPH_MODE if way == "graph" else ms.PYNATIVE_MODE)
    if platform.device_target() == "Ascend":  # the graph engine's O2 has no custom kernels
        ms.set_context(jit_config={"jit_level": "O0"})


def wrapped(function: Any, way: str) -> Any:
    """A function as it is called in a way."""
    return ms.jit(function, jit_level="O0") if way == "jit" else function
