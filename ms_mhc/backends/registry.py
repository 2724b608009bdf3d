"""Which ways there are to compute an operator, and which one to take."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Callable, Iterator, List, Optional, Set, Tuple

from aclnn_adapter.operators import Operator
from ms_mhc.operation import BACKWARD, FORWARD, OPERATIONS, RESIDUAL, Operation

logger = logging.getLogger("ms_mhc")

AUTO = "auto"
PRECISIONS = ("float32", "hf32")


@dataclass(frozen=True)
class Job:
    """What is to be computed: an operator, its sizes, the dtype of x, its options and which tensors are there.

    A size, dtype or option that is not known yet is ``None`` and refuses nothing.
    """

    operator: str
    num_streams: int
    hidden_size: Optional[int] = None
    dtype: Any = None
    num_iters: Optional[int] = None
    recipe: Optional[str] = None
    absent: Tuple[str, ...] = ()  # optional inputs, of either direction, that are left out
    attributes: Tuple[Tuple[str, Any], ...] = ()  # the values of the forward contract's attributes, by name
    precision: str = "float32"  # of the product with phi; "hf32" allows kernels that round its factors
    token_dims: Optional[int] = None  # 1 for x [T, N, D], 2 for x [B, S, N, D]
    tokens: Optional[Tuple[Optional[int], ...]] = None  # their sizes; None where a compiled graph does not know one

    @property
    def dynamic(self) -> bool:
        """Whether the number of tokens is not known when a graph is compiled."""
        return self.tokens is not None and None in self.tokens

    @property
    def operation(self) -> Operation:
        """The operator."""
        return OPERATIONS[self.operator]

    def without_sizes(self) -> Job:
        """The part of a job that kernels are made for; they take any sizes and dtypes that were not refused."""
        return replace(self, hidden_size=None, dtype=None, tokens=(None,) if self.dynamic else None)


@dataclass(frozen=True)
class Refusal:
    """Why a backend cannot do a job. ``about`` is ``"machine"``, or ``"job"`` where other sizes or dtypes would do."""

    reason: str
    about: str = "machine"


@dataclass(frozen=True)
class Kernel:
    """One direction of an operator, made for one job.

    ``call`` takes the tensors that ``inputs`` names, no others and none of them ``None``, and returns a tuple of those
    that ``outputs`` names. It works in compiled graphs and, where ``eager``, called from Python.
    """

    call: Callable[..., Tuple[Any, ...]]
    inputs: Tuple[str, ...]
    outputs: Tuple[str, ...]
    contract: Operator  # with what is there; its shapes are those of the tensors that call takes and returns


class Backend(ABC):
    """One way to compute. To add one, write its class and name it in :func:`backends`."""

    name: str
    eager = True  # whether auto takes it where an operator is called eagerly

    @abstractmethod
    def refusal(self, job: Job, direction: str = FORWARD) -> Optional[Refusal]:
        """Why it cannot do a job, or ``None``."""

    def contract(self, job: Job, direction: str) -> Operator:
        """What its kernel takes and gives, without what the job leaves out."""
        operation = job.operation
        return operation.present(operation.contracts[direction], job.absent)

    def kernel(self, job: Job, direction: str) -> Kernel:
        """The kernel for a job that was not refused."""
        contract, operation = self.contract(job, direction), job.operation
        call = self.call(job, direction, contract)
        inputs, outputs = operation.names_of(contract.inputs), operation.names_of(contract.outputs)
        own = operation.visible_shapes
        seen = (replace(a, shape=own.get(operation.name_of(a), a.shape)) for a in (*contract.inputs, *contract.outputs))
        return Kernel(call, inputs, outputs, contract.with_arguments(*seen))

    @abstractmethod
    def call(self, job: Job, direction: str, contract: Operator) -> Callable[..., Tuple[Any, ...]]:
        """The function or cell behind :meth:`kernel`."""


@dataclass(frozen=True)
class Choice:
    """The backends that compute forward and backward."""

    forward: Backend
    backward: Backend

    @property
    def name(self) -> str:
        """Of the forward's backend."""
        return self.forward.name


@cache
def backends() -> Tuple[Backend, ...]:
    """All backends, best first."""
    from ms_mhc.backends.aclnn import Aclnn
    from ms_mhc.backends.composite import Composite
    from ms_mhc.backends.cpu import Cpu

    return Aclnn(), Cpu(), Composite()


@cache
def names() -> Tuple[str, ...]:
    """What the argument ``backend`` accepts."""
    return (AUTO, *(b.name for b in backends()))


def choose(name: str, job: Job, wanted: str, eagerly: bool = False) -> Choice:
    """The backends for a job. ``name`` is what messages call the operator.

    ``"auto"`` takes the best ones that can do it, forward and backward each for itself, and never fails. A backend
    asked for by name is taken for both, or refused.

    Raises:
        ValueError: the named backend does not accept these sizes or this dtype.
        RuntimeError: this machine lacks what the named backend needs.
    """
    for forward in able(name, job, wanted, FORWARD, eagerly):
        known = _known(job.operation, forward.contract(job, FORWARD))
        for backward in able(name, job, wanted, BACKWARD, eagerly):
            if known.issuperset(job.operation.names_of(backward.contract(job, BACKWARD).inputs)):
                return Choice(forward, backward)
    raise ValueError(f"{name}: backend must be one of {', '.join(names())}, but got {wanted!r}")


def able(name: str, job: Job, wanted: str, direction: str, eagerly: bool = False) -> Iterator[Backend]:
    """The backends that can do one direction of a job, best first; a refusal of the named one is raised."""
    for backend in backends():
        if wanted not in (AUTO, backend.name) or (eagerly and wanted == AUTO and not backend.eager):
            continue
        refusal = backend.refusal(job, direction)
        if refusal is None:
            yield backend
        elif wanted == backend.name:
            error = ValueError if refusal.about == "job" else RuntimeError
            raise error(f"{name}: backend={wanted!r} cannot be used: {refusal.reason}")
        else:
            say_once(job.operator, backend.name, refusal.reason)


def _known(operation: Operation, forward: Operator) -> Set[str]:
    """What a backward can be given: what its forward takes and returns, and gradients."""
    outputs = operation.names_of(forward.outputs)
    return {*operation.names_of(forward.inputs), *outputs, *("grad_" + name for name in (*outputs, RESIDUAL))}


_said: Set[str] = set()


def say_once(operator: str, backend: str, reason: str) -> None:
    """A fall-back is news where the better backend was within reach: on a machine of its kind, once a process.

    Further reasons are logged below the level of warnings; ``python -m ms_mhc info`` tells them all.
    """
    from aclnn_adapter import platform

    text = f"{operator}: the {backend} backend cannot be used, falling back: {reason}"
    if text in _said:
        return
    _said.add(text)
    if backend != "aclnn" or platform.device_target() != "Ascend":
        logger.debug(text)
    elif _warned:
        logger.info(text)
    else:
        _warned.append(text)
        logger.warning("%s. `python -m ms_mhc info` tells what runs where", text)


_warned: List[str] = []
