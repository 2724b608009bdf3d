"""The vendor's kernels on Ascend.

In a compiled graph the kernel runs. Called eagerly in PyNative mode, ``auto`` computes with MindSpore ops unless the
caller wants kernels there too, and ``backend="aclnn"`` calls the kernel (:class:`aclnn_adapter.custom.AclnnKernel`).
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple, Union

import mindspore as ms
from mindspore import Tensor, mint

from aclnn_adapter import platform
from aclnn_adapter.custom import X_DTYPES, AclnnKernel
from aclnn_adapter.operators import Dim, Limits, Operator
from ms_mhc.backends.registry import Backend, Job, Refusal
from ms_mhc.operation import FORWARD
from ms_mhc.operators.precision import Float32Cell

# MindSpore cannot hand a kernel the null pointer that stands for an absent tensor. What has the same meaning:
ONES, ZEROS = -1, -2
NEUTRAL = {"gamma": ONES, "grad_x_post": ZEROS}

STREAMS, HIDDEN = 0, 1  # N and D in a shape, by their place behind the token dimensions of x


class _Call(Float32Cell):
    """A kernel with the attributes of one job, with neutral tensors in the place of absent ones.

    The kernels of MhcPreSinkhorn take x [B, S, N, D] only and have shapes of their own for some results. For x
    [T, N, D], ``batched`` names the tensors that get a first dimension of one.
    """

    def __init__(
        self,
        kernel: AclnnKernel,
        measure: int,
        places: Tuple[int, ...],
        attributes: Tuple[Any, ...],
        given: Tuple[int, ...],
        batched: Tuple[bool, ...],
        shapes: Tuple[Optional[Tuple[int, ...]], ...],
    ) -> None:
        super().__init__()
        self.kernel = kernel
        self.measure = measure  # the place of x among the tensors
        self.places = places  # of each argument among the tensors, or ONES or ZEROS
        self.attributes = attributes
        self.given = given  # the outputs that the job asks for
        self.batched = batched
        self.any_batched = any(batched)
        self.shapes = shapes  # of those outputs behind the token dimensions, where the kernel's may be another
        self.single = len(kernel.operator.outputs) == 1
        self.with_ones, self.with_zeros = ONES in places, ZEROS in places

    def construct(self, *tensors: Tensor) -> Tuple[Tensor, ...]:
        x = tensors[self.measure]
        if self.any_batched:
            tensors = self.with_batch(tensors)
        # behind the tensors stand, from the end, ones and zeros
        ones = mint.ones(x.shape[-2:], dtype=ms.float32) if self.with_ones else None
        zeros = mint.zeros_like(x) if self.with_zeros else None
        row = tensors + (zeros, ones)
        arguments: Tuple[Any, ...] = ()
        for place in self.places:
            arguments = arguments + (row[place],)
        out = self.kernel(*arguments, *self.attributes)
        if self.single:
            return (out,)
        results: Tuple[Any, ...] = ()
        for place, shape in zip(self.given, self.shapes):
            results = results + (out[place] if shape is None else out[place].reshape(self.sizes(x, shape)),)
        return results

    def with_batch(self, tensors: Tuple[Tensor, ...]) -> Tuple[Tensor, ...]:
        """Those that are batched with a first dimension of one."""
        row: Tuple[Any, ...] = ()
        for tensor, batched in zip(tensors, self.batched):
            row = row + (tensor.expand_dims(0) if batched else tensor,)
        return row

    def sizes(self, x: Tensor, shape: Tuple[int, ...]) -> Tuple[int, ...]:
        """The token dimensions of x, then N and D as the shape asks for."""
        sizes = x.shape[:-2]
        for size in shape:
            sizes = sizes + (x.shape[-2 + size],)
        return sizes


class Aclnn(Backend):
    """The vendor's kernels, where this machine's CANN has them."""

    name = "aclnn"
    eager = False

    def refusal(self, job: Job, direction: str = FORWARD) -> Optional[Refusal]:
        found = self._find(job, direction)
        return found if isinstance(found, Refusal) else None

    def contract(self, job: Job, direction: str) -> Operator:
        return job.operation.present(self._operator(job, direction), job.absent)

    def call(self, job: Job, direction: str, contract: Operator) -> Callable[..., Tuple[Any, ...]]:
        operator, operation = self._operator(job, direction), job.operation
        inputs, outputs = [a.name for a in contract.inputs], [a.name for a in contract.outputs]
        values: Dict[str, Any] = {
            **dict(job.attributes),
            "hc_mult": job.num_streams,
            "need_backward": True,
            "op_impl_mode": operator.impl_mode(platform.soc_version(), job.precision) or 0,
        }
        one_batch = job.token_dims == 1 and any(1 not in token_dims for token_dims in self._token_dims(job, direction))
        own = operation.visible_shapes
        return _Call(
            AclnnKernel(operator, job.dynamic, **({"I": job.num_iters} if job.num_iters is not None else {})),
            next((i for i, a in enumerate(contract.inputs) if a.shape == ("T", "N", "D")), 0),
            tuple(inputs.index(a.name) if a.name in inputs else NEUTRAL[operation.name_of(a)] for a in operator.inputs),
            tuple(values[a.snake_name] for a in operator.attrs),
            tuple(i for i, a in enumerate(operator.outputs) if a.name in outputs),
            tuple(one_batch and "T" in own.get(operation.name_of(a), ()) for a in contract.inputs),
            tuple(_shape(a.shape, own.get(operation.name_of(a)), one_batch) for a in contract.outputs),
        )

    def _token_dims(self, job: Job, direction: str) -> Iterator[Tuple[int, ...]]:
        """What the kernel takes; of a backward also what its forward took, whose saved tensors it reads as they are."""
        for one in {direction, FORWARD}:
            found = self._find(job, one)
            if isinstance(found, Operator):
                yield found.limits[platform.soc_version()].token_dims

    def _operator(self, job: Job, direction: str) -> Operator:
        found = self._find(job, direction)
        assert isinstance(found, Operator), found
        return found

    def _find(self, job: Job, direction: str) -> Union[Operator, Refusal]:
        """The best kernel for a job, or why there is none."""
        reasons: List[Refusal] = []
        soc = platform.soc_version()
        candidates = job.operation.kernels[direction]
        for operator in sorted(candidates, key=lambda o: o.impl_mode(soc, job.precision) is None):
            refusal = _refusal(job, operator)
            if refusal is None:
                return operator
            reasons.append(refusal)
        if not reasons:
            return Refusal(f"CANN has no kernel for {job.operator}")
        # a kernel that is there but cannot do this job says more than one that is not there
        return next((r for r in reasons if r.about == "job"), reasons[0])


def _shape(of_kernel: Tuple[Dim, ...], own: Optional[Tuple[Dim, ...]], one_batch: bool) -> Optional[Tuple[int, ...]]:
    """What an output is reshaped to behind its token dimensions; what only the kernel's backward reads stays."""
    if own is None or own[0] != "T" or (of_kernel == own and not one_batch):
        return None
    return tuple({"N": STREAMS, "D": HIDDEN}[str(dim)] for dim in own[1:])


def _refusal(job: Job, operator: Operator) -> Optional[Refusal]:
    reason = platform.refusal(operator) or _graph_engine()
    if reason:
        return Refusal(reason)
    limits = operator.limits[platform.soc_version()]
    if not set(limits.precisions) & {"float32", job.precision}:
        return Refusal(f'{operator.name} multiplies by phi in HF32 here; precision="hf32" would allow it', "job")
    reason = limits.refusal(job.num_streams, job.hidden_size, job.num_iters)
    if reason:
        return Refusal(f"{reason}, which {operator.name} needs; {_advice(job, limits)}", "job")
    if job.dtype is not None and _name(job.dtype) not in X_DTYPES:
        return Refusal(f"x has dtype {_name(job.dtype)}; the kernels take {' and '.join(X_DTYPES)}", "job")
    if job.recipe not in (None, "deepseek_v4"):
        return Refusal(f"the kernel computes the recipe 'deepseek_v4', not {job.recipe!r}", "job")
    inputs = job.operation.names_of(operator.inputs)
    for name in inputs:
        if name in job.absent and name not in NEUTRAL:
            return Refusal(f"MindSpore cannot hand the kernel the null pointer that stands for no {name}", "job")
    values = dict(job.attributes)
    attributes = {a.snake_name for a in operator.attrs}
    if values.get("sinkhorn_eps") not in (None, values.get("hc_eps")) and "sinkhorn_eps" not in attributes:
        return Refusal(
            f"{operator.name} uses hc_eps {values['hc_eps']} for Sinkhorn too, not sinkhorn_eps "
            f"{values['sinkhorn_eps']}; make them equal",
            "job",
        )
    own = job.operation.contracts
    if "gamma" in job.operation.names_of(own[FORWARD].inputs) and "gamma" not in {*inputs, *job.absent}:
        return Refusal(f"{operator.name} takes no gamma", "job")
    return None


def _graph_engine() -> Optional[str]:
    """MindSpore hands whole graphs to CANN's graph engine at O2, which looks for registered operators, not kernels."""
    config = ms.context.get_jit_config() or {}
    if config.get("jit_level") == "O2" or config.get("backend") == "GE":
        return "at jit_level O2 graphs go to CANN's graph engine, which this path does not serve; use O0 or O1"
    return None


def _name(dtype: Any) -> str:
    return str(dtype).rsplit(".", 1)[-1].lower()


def _advice(job: Job, limits: Limits) -> str:
    advice = 'use backend="composite"'
    multiple = limits.hidden_size_multiple
    if job.hidden_size is not None and job.hidden_size % multiple:
        advice += f" or pad to {-(-job.hidden_size // multiple) * multiple}"
    return advice
