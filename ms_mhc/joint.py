"""The one place where a forward and its backward are joined.

MindSpore has a way for each manner of running: a cell with a ``bprop`` in a compiled graph, a ``Morph`` in a graph that
is distributed over devices, a ``_Function`` called eagerly. An operator states its two functions once; which tensor
goes where follows from their names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional, Tuple

from mindspore import Tensor, mint, nn
from mindspore._c_expression import MixedPrecisionType
from mindspore.common._grad_function import _Function

from aclnn_adapter.platform import called_eagerly, recording
from ms_mhc.backends.registry import Kernel
from ms_mhc.operation import RESIDUAL, Operation
from ms_mhc.operators.precision import entering, ready, run_eagerly
from ms_mhc.parallel import Placed

Tensors = Tuple[Tensor, ...]


@dataclass(frozen=True)
class Wiring:
    """Which tensor goes where between a forward and its backward.

    Everything that the backward may take stands in one row: the forward's inputs, its outputs, their gradients.

    Attributes:
        taken: for each input of the backward its place in that row.
        gradients: for each input of the forward the place of its gradient among the backward's outputs; -1: none.
        share: whether x is handed on as one more output.
        share_left: whether the gradient that comes back through it is not among the backward's inputs.
    """

    taken: Tuple[int, ...]
    gradients: Tuple[int, ...]
    share: bool
    share_left: bool

    @staticmethod
    def of(forward: Kernel, backward: Kernel, share: bool) -> Wiring:
        """Derived from the names."""
        outputs = forward.outputs + ((RESIDUAL,) if share else ())
        row = forward.inputs + outputs + tuple("grad_" + name for name in outputs)
        wanted = ["grad_" + name for name in forward.inputs]
        return Wiring(
            tuple(row.index(name) for name in backward.inputs),
            tuple(backward.outputs.index(name) if name in backward.outputs else -1 for name in wanted),
            share,
            share and "grad_" + RESIDUAL not in backward.inputs,
        )


class Joined(nn.Cell):
    """A forward and its backward in a compiled graph.

    The tensors come in one tuple, because MindSpore 2.10 aborts on ``*inputs`` in the ``construct`` of a cell with a
    ``bprop``. Called from Python in PyNative mode, ``eager`` computes instead: there a cell with a ``bprop`` loses
    gradients of a tuple, and cannot be used under ``Tensor.backward`` at all.
    """

    def __init__(
        self, operation: Operation, forward: Kernel, backward: Kernel, share: bool, eager: Optional[Joined] = None
    ) -> None:
        super().__init__()
        self.operator = operation.name
        self.results = operation.results
        self.mixed_precision_type = MixedPrecisionType.NOTSET
        self.wiring = Wiring.of(forward, backward, share)
        self.names = forward.inputs
        self.forward = forward.call
        self.backward = backward.call
        self.taken = self.wiring.taken
        self.gradients = self.wiring.gradients
        self.share = share
        self.share_left = self.wiring.share_left
        self.eager = eager  # None: the same

    def __call__(self, inputs: Tensors) -> Tensors:
        if called_eagerly():
            cell, tensors = self.eager or self, ready(self.operator, self.names, inputs)
            if not recording():  # MindSpore's apply waits for the results, also where no gradient will be asked for
                return run_eagerly(cell.construct, tensors)
            out = run_eagerly(_Eager.apply, cell, *tensors)
            return out if isinstance(out, tuple) else (out,)
        return super().__call__(entering(self.operator, self.names, inputs))

    def construct(self, inputs: Tensors) -> Tensors:
        out = self.forward(*inputs)
        if self.share:
            return out + (inputs[0],)
        return out

    def bprop(self, inputs: Tensors, out: Tensors, dout: Tensors) -> Tuple[Tensors]:
        row = inputs + out + dout
        arguments: Tuple[Any, ...] = ()
        for place in self.taken:
            arguments = arguments + (row[place],)
        found = self.backward(*arguments)
        grads: Tuple[Any, ...] = ()
        for place, value in zip(self.gradients, inputs):
            grads = grads + ((found[place],) if place >= 0 else (mint.zeros_like(value),))
        if self.share_left:
            grads = (grads[0] + dout[-1],) + grads[1:]
        return (grads,)


class Distributed(Placed):
    """The same in a graph that MindSpore distributes.

    There a cell with a ``bprop`` gets no AllReduce for the gradients of its replicated parameters, a ``Morph`` with a
    ``bprop_fn`` gets one for each. A Morph takes functions with as many arguments as there are tensors: this is the one
    place with a list of them.
    """

    def __init__(self, joined: Joined, forward: Kernel, known: Dict[str, int], layout: Any) -> None:
        functions: Dict[int, Tuple[Callable[..., Any], Callable[..., Any]]] = {
            1: (self.forward_1, self.backward_1),
            3: (self.forward_3, self.backward_3),
            4: (self.forward_4, self.backward_4),
            5: (self.forward_5, self.backward_5),
        }
        function, gradients = functions[len(forward.inputs)]
        super().__init__(forward.contract, layout, function, gradients, joined.share, known)
        self.joined = joined

    def forward(self, inputs: Tensors) -> Any:
        """On the parts of the tensors that are on this device."""
        out = self.joined.construct(inputs)
        return out[0] if self.single else out

    def backward(self, inputs: Tensors, out: Any, dout: Any) -> Tensors:
        """On the parts of the tensors that are on this device; MindSpore sums the gradients of what is replicated."""
        if self.single:
            return self.joined.bprop(inputs, (out,), (dout,))[0]
        return self.joined.bprop(inputs, out, dout)[0]

    def forward_1(self, a: Tensor) -> Any:
        return self.forward((a,))

    def backward_1(self, a: Tensor, out: Any, dout: Any) -> Any:
        return self.backward((a,), out, dout)

    def forward_3(self, a: Tensor, b: Tensor, c: Tensor) -> Any:
        return self.forward((a, b, c))

    def backward_3(self, a: Tensor, b: Tensor, c: Tensor, out: Any, dout: Any) -> Any:
        return self.backward((a, b, c), out, dout)

    def forward_4(self, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Any:
        return self.forward((a, b, c, d))

    def backward_4(self, a: Tensor, b: Tensor, c: Tensor, d: Tensor, out: Any, dout: Any) -> Any:
        return self.backward((a, b, c, d), out, dout)

    def forward_5(self, a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor) -> Any:
        return self.forward((a, b, c, d, e))

    def backward_5(self, a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, out: Any, dout: Any) -> Any:
        return self.backward((a, b, c, d, e), out, dout)


class _Eager(_Function):
    """The same, called from Python."""

    @staticmethod
    def forward(ctx: Any, joined: Joined, *inputs: Tensor) -> Tensors:
        out = joined.construct(inputs)
        row = inputs + out
        ctx.joined = joined
        ctx.outputs = [(value.shape, value.dtype) for value in out]
        ctx.save_for_backward(*(row[place] for place in joined.taken if place < len(row)))
        ctx.set_materialize_grads(False)  # most outputs are statistics, for which no gradient comes
        return out

    @staticmethod
    def backward(ctx: Any, *dout: Optional[Tensor]) -> Tuple[Optional[Tensor], ...]:
        joined = ctx.joined
        statistics = range(joined.results, len(dout) - joined.share)
        if any(dout[place] is not None for place in statistics):
            raise RuntimeError(
                f"{joined.operator}: a gradient arrived at what is only saved for the backward. Second derivatives "
                f"through this operator are not computed"
            )
        first = len(joined.gradients) + len(dout)
        saved = iter(ctx.saved_tensors)

        def of_output(index: int) -> Tensor:
            if dout[index] is not None:
                return dout[index]
            shape, dtype = ctx.outputs[index]
            return mint.zeros(shape, dtype=dtype)

        found = joined.backward(*(next(saved) if p < first else of_output(p - first) for p in joined.taken))
        grads = [found[place] if place >= 0 else None for place in joined.gradients]
        if joined.share_left and dout[-1] is not None:
            grads[0] = grads[0] + dout[-1]
        return (None, *grads)
