"""From a public function to what computes it: check, choose, join.

In a compiled graph this runs once, while it is compiled; called eagerly, every time.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any, NamedTuple, Optional, Tuple

from mindspore import Tensor, nn, ops
from mindspore.ops import constexpr

from aclnn_adapter import platform
from aclnn_adapter.platform import called_eagerly
from ms_mhc import checks, parallel
from ms_mhc.backends import registry
from ms_mhc.backends.registry import AUTO, Backend, Choice, Job, Kernel
from ms_mhc.joint import Distributed, Joined, Tensors
from ms_mhc.operation import BACKWARD, FORWARD, OPERATIONS, RESIDUAL
from ms_mhc.operators.precision import Float32Cell, entering, ready, run_eagerly

RESIDUAL_GRADIENT = "grad_" + RESIDUAL
COMPOSITE = "composite"
CELLS_KEPT = 128  # an operator with options of its own is made anew when so many others were used since


class Options(NamedTuple):
    """What is the same for all operators."""

    backend: str = AUTO
    precision: str = "float32"
    share: bool = False  # hand x on as one more output
    sizes: Optional[Tuple[int, int]] = None  # N and D, where the caller fixes them
    layout: Any = None  # of x, in a graph that is distributed over devices
    recompute: bool = False  # compute it again in the backward, in such a graph; elsewhere MindSpore sees to it
    eager_kernels: bool = False  # auto takes the vendor's kernels where an operator is called eagerly, too


def spec(value: Any) -> Any:
    """What the checks see of an argument. Compiled into graphs, therefore as plain as this."""
    if value is None:
        return None
    if isinstance(value, Tensor):
        return (value.shape, value.dtype)
    if isinstance(value, (tuple, list, dict)):  # a graph knows no type() of them
        return "a tuple, list or dict"
    return str(type(value))


def specs(values: Tuple[Any, ...]) -> Tuple[Any, ...]:
    """What the checks see of the arguments."""
    described: Tuple[Any, ...] = ()
    for value in values:
        described = described + (spec(value),)
    return described


def present(values: Tuple[Optional[Tensor], ...]) -> Tuple[Tensor, ...]:
    """Those that are there."""
    tensors: Tuple[Any, ...] = ()
    for value in values:
        if value is not None:
            tensors = tensors + (value,)
    return tensors


class _Constants(Float32Cell):
    """Tensors that carry no gradient. Called eagerly where none is recorded, that is true of all."""

    def __call__(self, values: Tensors) -> Tensors:
        return self.construct(values) if platform.recording() or not called_eagerly() else values

    def construct(self, values: Tensors) -> Tensors:
        found: Tuple[Any, ...] = ()
        for value in values:
            found = found + (ops.stop_gradient(value),)
        return found


constants = _Constants()


class Alone(nn.Cell):
    """A backward as an operator of its own. It has no written gradient."""

    def __init__(self, operator: str, backward: Kernel, eager: Kernel) -> None:
        super().__init__()
        self.operator = operator
        self.names = backward.inputs
        self.backward = backward.call
        self._eager = eager

    def __call__(self, inputs: Tensors) -> Tensors:
        if called_eagerly():
            return run_eagerly(self._eager.call, *ready(self.operator, self._eager.inputs, inputs))
        return super().__call__(entering(self.operator, self.names, inputs))

    def construct(self, inputs: Tensors) -> Tensors:
        return self.backward(*inputs)


def cell_for(caller: str, name: str, arguments: Tuple[Any, ...], attributes: Tuple[Any, ...], options: Any) -> nn.Cell:
    """The cell that computes an operator and its gradient. It takes the tensors that are there, in one tuple.

    Args:
        caller: what messages call the operator.
        name: of the operation.
        arguments: :func:`specs` of the tensors, in the order of the forward's contract.
        attributes: in the order of the forward's contract.
        options: the fields of :class:`Options`.
    """
    chosen = Options(*options)
    layout = parallel.for_mode(caller, chosen.layout)
    if layout is not None:
        job, here, _ = _chosen(caller, name, arguments, attributes, chosen)
        parallel.for_mode(caller, layout, len(arguments[0][0]))
        return _distributed(here, job, chosen)
    try:
        return _cell(caller, name, arguments, attributes, tuple(map(type, attributes)), chosen, _here())
    except TypeError as error:
        if "unhashable" not in str(error):
            raise
        return _chosen(caller, name, arguments, attributes, chosen)[2]  # which says what is wrong with the argument


def _distributed(here: Choice, job: Job, options: Options) -> Distributed:
    whole = job.without_sizes()
    forward, backward = here.forward.kernel(whole, FORWARD), here.backward.kernel(whole, BACKWARD)
    primitive = getattr(forward.call, "kernel", None)
    if options.recompute and primitive is not None:
        primitive.add_prim_attr("recompute", True)  # a Morph's function is outside the scope that recompute() marks
    known = {} if job.num_iters is None else {"I": job.num_iters}
    joined_here = Joined(job.operation, forward, backward, options.share)
    return Distributed(joined_here, forward, known, options.layout)


def _here() -> Tuple[Any, ...]:
    """What a choice depends on beside the arguments and what stays as it is in a process."""
    listed = os.environ.get("MS_CUSTOM_AOT_WHITE_LIST")
    return platform.device_target(), called_eagerly(), listed, parallel.mode()


@lru_cache(maxsize=4 * CELLS_KEPT)
def _cell(
    caller: str,
    name: str,
    arguments: Tuple[Any, ...],
    attributes: Tuple[Any, ...],
    types: Tuple[type, ...],  # True is no 1, though both are equal
    options: Options,
    here: Tuple[Any, ...],
) -> nn.Cell:
    """Eager calls come here every time: what was checked and chosen once need not be again."""
    return _chosen(caller, name, arguments, attributes, options)[2]


def _chosen(
    caller: str, name: str, arguments: Tuple[Any, ...], attributes: Tuple[Any, ...], options: Options
) -> Tuple[Job, Choice, Joined]:
    job = _job(caller, name, FORWARD, arguments, attributes, options)
    here = registry.choose(caller, job, options.backend)
    eagerly = here if options.eager_kernels else registry.choose(caller, job, options.backend, eagerly=True)
    return job, here, _made_joined(here, eagerly, job.without_sizes(), options.share, compiled_for(job))


joined = constexpr(check=False)(cell_for)


def has_kernel(caller: str, name: str, arguments: Tuple[Any, ...], attributes: Tuple[Any, ...], options: Any) -> bool:
    """Whether a backend other than MindSpore ops, or these where they were asked for, has an operator in one piece."""
    chosen = Options(*options)
    job = _job(caller, name, FORWARD, arguments, attributes, chosen)
    return chosen.backend == COMPOSITE or any(
        b.refusal(job, FORWARD) is None and b.refusal(job, BACKWARD) is None
        for b in registry.backends()
        if b.name != COMPOSITE and chosen.backend in (AUTO, b.name)
    )


@constexpr(check=False)
def alone(caller: str, name: str, arguments: Tuple[Any, ...], attributes: Tuple[Any, ...], options: Any) -> nn.Cell:
    """The cell that computes an operator's backward, for a caller that brings all its inputs."""
    chosen = Options(*options)
    job = _job(caller, name, BACKWARD, arguments, attributes, chosen)
    parallel.for_mode(caller, None)
    here, eagerly = (next(registry.able(caller, job, chosen.backend, BACKWARD, eager)) for eager in (False, True))
    return _made_alone(here, eagerly, job.without_sizes(), compiled_for(job))


def _job(
    caller: str, name: str, direction: str, arguments: Tuple[Any, ...], attributes: Tuple[Any, ...], options: Options
) -> Job:
    """The arguments, checked, as a job."""
    operation = OPERATIONS[name]
    contract = operation.contracts[direction]
    arguments = arguments + (None,) * (len(contract.inputs) - len(arguments))
    checks.one_of(caller, "backend", options.backend, registry.names())
    checks.one_of(caller, "precision", options.precision, registry.PRECISIONS)
    sizes = checks.tensors(caller, contract, operation.names_of(contract.inputs), arguments, options.sizes)
    values = dict(zip((a.snake_name for a in contract.attrs), attributes))
    checks.attributes(caller, values)
    names = operation.names_of(operation.contracts[BACKWARD].inputs) if direction == FORWARD else ()
    absent = [n for n, given in zip(operation.names_of(contract.inputs), arguments) if given is None]
    if direction == FORWARD and not options.share and RESIDUAL_GRADIENT in names:
        absent.append(RESIDUAL_GRADIENT)
    return Job(
        name,
        sizes.num_streams,
        sizes.hidden_size,
        sizes.dtype,
        num_iters=values.get("num_iters"),
        recipe=values.get("recipe"),
        absent=tuple(absent),
        attributes=tuple(values.items()),
        precision=options.precision,
        token_dims=len(sizes.tokens),
        tokens=sizes.tokens,
    )


def compiled_for(job: Job) -> Any:
    """Called from Python in graph mode, a cell keeps a graph for every shape: there one cell serves one shape."""
    return None if called_eagerly() else (job.tokens, job.hidden_size, job.dtype)


@lru_cache(maxsize=CELLS_KEPT)
def _made_joined(here: Choice, eagerly: Choice, job: Job, share: bool, _: Any) -> Joined:
    def make(choice: Choice, eager: Optional[Joined]) -> Joined:
        forward, backward = choice.forward.kernel(job, FORWARD), choice.backward.kernel(job, BACKWARD)
        return Joined(job.operation, forward, backward, share, eager)

    return make(here, None if eagerly == here else make(eagerly, None))


@lru_cache(maxsize=CELLS_KEPT)
def _made_alone(here: Backend, eagerly: Backend, job: Job, _: Any) -> Alone:
    name = f"{job.operator}_{BACKWARD}"
    return Alone(name, here.kernel(job, BACKWARD), eagerly.kernel(job, BACKWARD))
