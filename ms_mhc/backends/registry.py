"""Which ways there are to compute an operator, and which one to take.

A backend is one entry: its name, a function that says why it cannot do a job, and a function that returns the
operator's forward and backward. To add one, write its file and name its entry in :func:`backends`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache
from typing import Any, Callable, Optional, Tuple

logger = logging.getLogger("ms_mhc")

AUTO = "auto"


@dataclass(frozen=True)
class Job:
    """What is to be computed: an operator of ``ms_mhc.functional``, its sizes and the dtype of x.

    A size or dtype that is not known yet is ``None`` and refuses nothing.
    """

    operator: str
    num_streams: int
    hidden_size: Optional[int] = None
    dtype: Any = None
    num_iters: Optional[int] = None
    recipe: Optional[str] = None
    identity: bool = False  # mhc_post without h_res
    dynamic: bool = False  # the number of tokens is not known when the graph is compiled

    def without_sizes(self) -> Job:
        """The part of a job that kernels are made for; they take any sizes and dtypes that were not refused."""
        return Job(self.operator, 0, num_iters=self.num_iters)


@dataclass(frozen=True)
class Refusal:
    """Why a backend cannot do a job. ``about`` is ``"machine"``, or ``"job"`` where other sizes or dtypes would do."""

    reason: str
    about: str = "machine"


@dataclass(frozen=True)
class Kernels:
    """Forward and backward of one operator: functions or cells, with the arguments of the aclnn contract in order."""

    forward: Callable[..., Any]
    backward: Callable[..., Any]


@dataclass(frozen=True)
class Backend:
    """One way to compute."""

    name: str
    refusal: Callable[[Job], Optional[Refusal]]
    kernels: Callable[[Job, bool], Kernels]  # the flag: this backend was asked for by name, not chosen by auto


def backends() -> Tuple[Backend, ...]:
    """All backends, best first."""
    from ms_mhc.backends import aclnn, composite, cpu

    return aclnn.BACKEND, cpu.BACKEND, composite.BACKEND


def names() -> Tuple[str, ...]:
    """What the argument ``backend`` accepts."""
    return (AUTO, *(b.name for b in backends()))


def choose(name: str, job: Job, wanted: str) -> Backend:
    """The backend for a job. ``name`` is what messages call the operator.

    ``"auto"`` takes the best one that can do it and never fails. A backend asked for by name is taken or refused.

    Raises:
        ValueError: the named backend does not accept these sizes or this dtype.
        RuntimeError: this machine lacks what the named backend needs.
    """
    for backend in backends():
        if wanted not in (AUTO, backend.name):
            continue
        refusal = backend.refusal(job)
        if refusal is None:
            return backend
        if wanted == backend.name:
            error = ValueError if refusal.about == "job" else RuntimeError
            raise error(f"{name}: backend={wanted!r} cannot be used: {refusal.reason}")
        _say_once(job.operator, backend.name, refusal.reason)
    raise ValueError(f"{name}: backend must be one of {', '.join(names())}, but got {wanted!r}")


@cache
def _say_once(operator: str, backend: str, reason: str) -> None:
    """A fall-back is news where the better backend was within reach: on a machine of its kind."""
    from aclnn_adapter import platform

    expected = backend == "aclnn" and platform.device_target() == "Ascend"
    logger.log(
        logging.WARNING if expected else logging.DEBUG,
        "%s: the %s backend cannot be used, falling back: %s",
        operator,
        backend,
        reason,
    )
