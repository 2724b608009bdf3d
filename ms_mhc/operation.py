"""What an operator is: its contract, its two functions, and the vendor's kernels that compute them.

Every operator's file makes one :class:`Operation`. Everything else is derived from it: checks, the choice of a backend,
the C function that is called, and how forward and backward are joined.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Mapping, Sequence, Tuple

from aclnn_adapter.operators import Argument, Dim, Operator

FORWARD, BACKWARD = "forward", "backward"
RESIDUAL = "x_post"  # x handed on: its gradient is what aclnnMhcPreBackward calls gradXPost


@dataclass(frozen=True, eq=False)
class Operation:
    """One operator of this package.

    Attributes:
        name: the name of its public function.
        contracts: what the C++ kernels and the MindSpore ops take and give, by direction, as entries of the aclnn
            contract are written. The inputs of ``"backward"`` are inputs of ``"forward"``, its outputs, or
            ``grad_<output>``; the outputs are ``grad_<input>``.
        composite: forward and backward in MindSpore ops. They take the inputs in the contract's order, ``None`` for an
            optional one that is absent, then the attributes, and return a tuple of the outputs.
        kernels: the vendor's entries that compute it, by direction, best first.
        results: how many outputs are results; those behind them are what the backward needs.
        composite_contracts: of the MindSpore ops, where they save more for their backward than the C++ kernels do.
        names: names of the contracts' arguments that are called otherwise here.
    """

    name: str
    contracts: Mapping[str, Operator]
    composite: Mapping[str, Callable[..., Any]]
    kernels: Mapping[str, Tuple[Operator, ...]]
    results: int
    composite_contracts: Mapping[str, Operator] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        OPERATIONS[self.name] = self

    def name_of(self, argument: Argument) -> str:
        """What an argument of a contract is called here."""
        return self.names.get(argument.snake_name, argument.snake_name)

    def names_of(self, arguments: Sequence[Argument]) -> Tuple[str, ...]:
        """What arguments of a contract are called here."""
        return tuple(map(self.name_of, arguments))

    @property
    def visible_shapes(self) -> Dict[str, Tuple[Dim, ...]]:
        """What callers see: inputs, results and gradients, without what a forward only keeps for its backward."""
        forward, backward = self.contracts[FORWARD], self.contracts[BACKWARD]
        gradients = [a for a in backward.inputs if self.name_of(a).startswith("grad_")]
        seen = (*forward.inputs, *forward.outputs[: self.results], *gradients, *backward.outputs)
        return {self.name_of(a): a.shape for a in seen}

    def present(self, contract: Operator, absent: Sequence[str]) -> Operator:
        """The contract without the optional inputs of these names and without their gradients."""
        gone = {*absent, *("grad_" + name for name in absent)}
        inputs = [a.name for a in contract.inputs if not (a.optional and self.name_of(a) in gone)]
        return contract.select(inputs, [a.name for a in contract.outputs if self.name_of(a) in gone])


OPERATIONS: Dict[str, Operation] = {}
