"""The operators in MindSpore ops: everywhere, in every mode. The formulas stand in the operators' own files."""

from __future__ import annotations

from typing import Any, Callable, Optional, Tuple

from mindspore import Tensor

from aclnn_adapter.operators import Operator
from ms_mhc.backends.registry import Backend, Job, Refusal
from ms_mhc.operation import FORWARD
from ms_mhc.operators.precision import Float32Cell


class _Call(Float32Cell):
    """A function of MindSpore ops with the attributes of one job."""

    def __init__(
        self, function: Callable[..., Any], places: Tuple[int, ...], attributes: Tuple[Any, ...], given: Tuple[int, ...]
    ) -> None:
        super().__init__()
        self.function = function
        self.places = places  # of each argument among the tensors; -1: it is absent
        self.attributes = attributes
        self.given = given  # the outputs that are there

    def construct(self, *tensors: Tensor) -> Tuple[Tensor, ...]:
        arguments: Tuple[Any, ...] = ()
        for place in self.places:
            arguments = arguments + ((tensors[place],) if place >= 0 else (None,))
        out = self.function(*arguments, *self.attributes)
        results: Tuple[Any, ...] = ()
        for place in self.given:
            results = results + (out[place],)
        return results


class Composite(Backend):
    """MindSpore ops. They can do every job."""

    name = "composite"

    def refusal(self, job: Job, direction: str = FORWARD) -> Optional[Refusal]:
        return None

    def contract(self, job: Job, direction: str) -> Operator:
        return job.operation.present(self._whole(job, direction), job.absent)

    def call(self, job: Job, direction: str, contract: Operator) -> Callable[..., Tuple[Any, ...]]:
        whole, values = self._whole(job, direction), dict(job.attributes)
        inputs, outputs = [a.name for a in contract.inputs], [a.name for a in contract.outputs]
        return _Call(
            job.operation.composite[direction],
            tuple(inputs.index(a.name) if a.name in inputs else -1 for a in whole.inputs),
            tuple(values[a.snake_name] for a in whole.attrs),
            tuple(i for i, a in enumerate(whole.outputs) if a.name in outputs),
        )

    @staticmethod
    def _whole(job: Job, direction: str) -> Operator:
        return (job.operation.composite_contracts or job.operation.contracts)[direction]
