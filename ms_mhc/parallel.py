"""Where tensors are split in graphs that MindSpore distributes (semi_auto_parallel, auto_parallel).

A layout is stated once, for x; those of all other tensors follow from the contract: whatever has token dimensions is
split like those of x, N and D never are, and parameters are replicated.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, Optional, Sequence, Tuple

import mindspore as ms
from mindspore import Tensor, nn
from mindspore.ops.operations.debug_ops import Morph

from aclnn_adapter.custom import infer_functions
from aclnn_adapter.operators import Dim, Operator

MODES = ("semi_auto_parallel", "auto_parallel")
WHOLE = "None"  # what mindspore.parallel.Layout calls a dimension that is not split


def mode() -> Optional[str]:
    """The parallel mode, where it distributes the graph itself."""
    found = str(ms.get_auto_parallel_context("parallel_mode"))
    return found if found in MODES else None


def axes_of(layout: Any) -> Tuple[Any, ...]:
    """For each dimension the name of the device axis that splits it, several names in a tuple, or ``"None"``."""
    described = layout.to_dict()
    names = described["alias_name"]

    def name(index: Any) -> Any:
        if isinstance(index, tuple):
            return tuple(map(name, index))
        return WHOLE if index == -1 else names[len(names) - 1 - index]

    return tuple(map(name, described["tensor_map"]))


def check(operator: str, layout: Any) -> None:
    """A layout of x, [B, S, N, D] or [T, N, D], that leaves N and D whole.

    Raises:
        TypeError: it is no layout.
        ValueError: it has another rank, or splits N or D.
    """
    if layout is None:
        return
    if not hasattr(layout, "to_dict") or "tensor_map" not in (layout.to_dict() or {}):
        raise TypeError(
            f"{operator}: layout must be a mindspore.parallel Layout of x, such as "
            f'Layout((2, 2), ("dp", "sp"))("dp", "sp", "None", "None"), but got {type(layout).__name__}'
        )
    axes = axes_of(layout)
    if len(axes) not in (3, 4):
        raise ValueError(
            f"{operator}: layout has {len(axes)} dimensions, {axes}; accepted: 4 for x [B, S, N, D], 3 for x [T, N, D]"
        )
    if axes[-2:] != (WHOLE, WHOLE):
        raise ValueError(
            f"{operator}: layout splits N or D of x, {axes}; only token dimensions may be split, the last two must be "
            f'"None"'
        )


def for_mode(operator: str, layout: Any, rank: Optional[int] = None) -> Any:
    """The layout where the parallel mode needs one, else ``None``. ``rank`` is that of x.

    Raises:
        ValueError: it is missing or of another rank, or the mode cannot place our operators.
    """
    found = mode()
    if found is None:
        return None
    if layout is None:
        raise ValueError(
            f"{operator}: parallel_mode is {found!r}, and how x is split was not said; give layout=Layout(...)(...) of "
            f"x (mindspore.parallel.Layout), which the cells, expand_streams and merge_streams take. Without it "
            f"gradients of replicated parameters would not be summed over the devices"
        )
    search = ms.get_auto_parallel_context("search_mode")
    if found == "auto_parallel" and search != "sharding_propagation":
        raise ValueError(
            f"{operator}: MindSpore's search_mode {search!r} of auto_parallel cannot place an operator with several "
            f"outputs; use search_mode='sharding_propagation' or parallel_mode='semi_auto_parallel'"
        )
    axes = axes_of(layout)
    if rank is not None and len(axes) != rank:
        raise ValueError(f"{operator}: layout has {len(axes)} dimensions, {axes}, but x has {rank}")
    return layout


def laid_out(layout: Any, shapes: Sequence[Tuple[Dim, ...]]) -> Tuple[Any, ...]:
    """The layouts of tensors with these symbolic shapes, where x is laid out as given."""
    from mindspore.parallel.shard import Layout

    described, axes = layout.to_dict(), axes_of(layout)
    mesh = Layout(described["device_matrix"], described["alias_name"], described["rank_list"])
    tokens = axes[:-2]
    splitting = tuple(n for name in tokens if name != WHOLE for n in (name if isinstance(name, tuple) else (name,)))

    def names_of(dim: Dim) -> Tuple[Any, ...]:
        if dim == "T":
            return tokens
        # a product with T is a dimension that only the kernel's backward reads: every device has its own part
        return (splitting or WHOLE,) if "T" in str(dim).split("*") else (WHOLE,)

    def names(shape: Tuple[Dim, ...]) -> Tuple[Any, ...]:
        return tuple(name for dim in shape for name in names_of(dim))

    return tuple(mesh(*names(shape)) for shape in shapes)


class Placed(nn.Cell):
    """A function of the tensors on this device, in a graph that MindSpore distributes. They come in one tuple.

    MindSpore sums the gradients of what is replicated; it does not look into the function for places to split.

    Args:
        contract: names the tensors and their symbolic shapes.
        layout: of x.
        function: takes one positional argument for each tensor.
        backward: likewise, then the outputs and their gradients. ``None``: MindSpore derives it.
        share: whether the first tensor is handed on as one more output.
        known: sizes that no input shows.
    """

    def __init__(
        self,
        contract: Operator,
        layout: Any,
        function: Callable[..., Any],
        backward: Optional[Callable[..., Any]] = None,
        share: bool = False,
        known: Optional[Mapping[str, int]] = None,
    ) -> None:
        super().__init__()
        self.share = share
        self.single = len(contract.outputs) == 1 and not share
        self.infer_shapes, self.infer_dtypes = infer_functions(contract, **(known or {}))
        self.morph = Morph(function, self.shapes, self.dtypes, backward)
        self.morph.add_prim_attr("self_define_shard", True)
        for name in ("side_effect_mem", "side_effect_io", "side_effect_backprop"):
            self.morph.del_prim_attr(name)  # it has none, and with them pipeline stages do not compile
        inputs = laid_out(layout, [a.shape for a in contract.inputs])
        outputs = laid_out(layout, [a.shape for a in contract.outputs])
        self.morph.shard(inputs, outputs + inputs[:1] if share else outputs)

    def shapes(self, *inputs: Any) -> Any:
        """Of all outputs, for the whole tensors."""
        found = self.infer_shapes(*inputs)
        outputs = tuple(map(tuple, found)) if isinstance(found, tuple) else (tuple(found),)
        outputs = outputs + (tuple(inputs[0]),) if self.share else outputs
        return outputs[0] if self.single else outputs

    def dtypes(self, *inputs: Any) -> Any:
        """Of all outputs."""
        found = self.infer_dtypes(*inputs)
        outputs = found if isinstance(found, tuple) else (found,)
        outputs = outputs + (inputs[0],) if self.share else outputs
        return outputs[0] if self.single else outputs

    def construct(self, inputs: Tuple[Tensor, ...]) -> Tuple[Tensor, ...]:
        out = self.morph(*inputs)
        return (out,) if self.single else out
