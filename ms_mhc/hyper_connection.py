"""A residual connection of N streams around any cell."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Tuple

from mindspore import Tensor, nn, ops
from mindspore.ops import constexpr

from ms_mhc import checks, parallel
from ms_mhc.backends import registry
from ms_mhc.backends.registry import Job
from ms_mhc.dispatch import Options, present, specs
from ms_mhc.operators.post import MhcPost
from ms_mhc.operators.pre import MhcPre
from ms_mhc.operators.pre_sinkhorn import pre_sinkhorn
from ms_mhc.operators.precision import GateCell
from ms_mhc.operators.sinkhorn import MhcSinkhorn


class _Rest(GateCell):
    """What a branch returns beside h_out. MindSpore 2.10 aborts on a graph with a kernel that returns ``None``."""

    def __call__(self, rest: Tuple[Any, ...]) -> Tuple[Any, ...]:
        return rest

    def construct(self, rest: Tuple[Any, ...]) -> Tuple[Any, ...]:
        return rest[: _length(missing(rest))]


def missing(values: Tuple[Any, ...]) -> Tuple[bool, ...]:
    """Which values are ``None``."""
    found: Tuple[bool, ...] = ()
    for value in values:
        found = found + (value is None,)
    return found


@constexpr(check=False)
def _length(absent: Tuple[bool, ...]) -> int:
    if any(absent):
        raise ValueError(
            "HyperConnection: branch returned None beside its output, which a compiled graph cannot return; return a "
            "tensor in its place, or leave it out"
        )
    return len(absent)


def output(out: Any) -> Any:
    """The output among what a branch returned, or what stands in its place."""
    if isinstance(out, tuple):
        if len(out) == 0:
            return None
        return out[0]
    return out


@constexpr(check=False)
def other_dtype(given: Tuple[Any, ...]) -> bool:
    """Whether the output of a branch, the first, has another dtype than x, the second."""
    x = checks.tensor("HyperConnection", "x", given[1])
    return bool(checks.branch("HyperConnection", given[0], x).dtype != x.dtype)


class HyperConnection(GateCell):
    """A residual connection of N streams around any cell.

    ``h_in, h_post, h_res, x = MhcPre(x)``, ``h_out = branch(h_in, *args, **kwargs)``, then
    ``x_next = MhcPost(x, MhcSinkhorn(h_res), h_out, h_post)``. With the initial values and equal streams this is the
    plain residual block ``h + branch(h)`` in every stream.

    Args:
        num_streams: N, >= 1.
        hidden_size: D, >= 1.
        branch: any cell that takes h_in [..., D] first and returns a tensor of that shape, or a tuple whose first
            element is that tensor. A pre-norm belongs into the branch.
        use_gamma, norm_eps, hc_eps, precision: as in :class:`MhcPre`.
        num_iters, sinkhorn_eps, recipe: as in :class:`MhcSinkhorn`.
        backend: ``"auto"``, or a backend by name, for all three operators.
        layout: how x is split over devices under semi_auto_parallel (or auto_parallel with sharding_propagation): a
            ``mindspore.parallel.Layout`` of x, such as ``Layout((2, 2), ("dp", "sp"))("dp", "sp", "None", "None")`` for
            batch and sequence. Only token dimensions may be split; parameters are replicated, their gradients summed.
            Without a parallel mode it has no effect. The branch is yours: give its operators their strategies.

    Inputs:
        x: the streams, [B, S, N, D] or [T, N, D]. Further arguments go to the branch as they are, those by name too.

    Outputs:
        x_next in shape and dtype of x; where the branch returns a tuple, a tuple of x_next and the rest of it.
    """

    def __init__(
        self,
        num_streams: int,
        hidden_size: int,
        branch: nn.Cell,
        *,
        use_gamma: bool = False,
        norm_eps: float = 1e-6,
        hc_eps: float = 1e-6,
        num_iters: int = 20,
        sinkhorn_eps: float = 1e-6,
        recipe: str = "deepseek_v4",
        precision: str = "float32",
        backend: str = "auto",
        layout: Any = None,
    ) -> None:
        super().__init__()
        if not isinstance(branch, nn.Cell):
            raise TypeError(f"HyperConnection: branch must be a mindspore.nn.Cell, but got {type(branch).__name__}")
        numbers = {"norm_eps": norm_eps, "hc_eps": hc_eps, "sinkhorn_eps": sinkhorn_eps, "num_iters": num_iters}
        checks.attributes("HyperConnection", {**numbers, "recipe": recipe})
        checks.flag("HyperConnection", "use_gamma", use_gamma)
        checks.one_of("HyperConnection", "precision", precision, registry.PRECISIONS)
        parallel.check("HyperConnection", layout)
        num_streams, hidden_size = checks.sizes("HyperConnection", num_streams, hidden_size)
        self.pre = MhcPre(
            num_streams,
            hidden_size,
            use_gamma=use_gamma,
            norm_eps=norm_eps,
            hc_eps=hc_eps,
            return_residual=True,
            precision=precision,
            layout=layout,
        )
        _check_backend(Job("mhc_pre", num_streams, hidden_size, precision=precision), backend)
        self.pre.backend = backend
        self.sinkhorn = MhcSinkhorn(num_iters, sinkhorn_eps, recipe, backend, layout)
        self.branch = branch
        self.rest = _Rest()
        self.post = MhcPost(backend, layout)

    def construct(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        # what pre and then sinkhorn compute, in one piece where the backend has one
        pre, steps = self.pre, self.sinkhorn
        tensors = (self.streams(x), pre.phi, pre.alpha, pre.bias, pre.gamma)
        attributes = (pre.norm_eps, pre.hc_eps, steps.eps, steps.num_iters, steps.recipe)
        sizes = (pre.num_streams, pre.hidden_size)
        options = Options(pre.backend, pre.precision, True, sizes, pre.layout, self._has_config_recompute)
        read = pre_sinkhorn("HyperConnection", specs(tensors), attributes, options)(present(tensors))
        # no negative index: graphs that are distributed lose the shape of its result
        h_in, h_post, h_res, x = read[0], read[1], read[2], read[len(read) - 1]
        # a call without the star is one that amp's O1 can follow into the branch
        out = self.call_branch(h_in, args, kwargs) if args or kwargs else self.branch(h_in)
        h_out = output(out)
        if other_dtype(specs((h_out, x))):
            h_out = ops.cast(h_out, x.dtype)
        x_next = self.post(x, h_res, h_out, h_post)
        if not isinstance(out, tuple):
            return x_next
        return (x_next,) + self.rest(out[1:])

    def call_branch(self, h_in: Tensor, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        """The branch with further arguments."""
        return self.branch(h_in, *args, **kwargs)


def _check_backend(job: Job, wanted: str) -> None:
    """A backend asked for by name must have MhcPre, in one piece with Sinkhorn or by itself."""
    checks.one_of("HyperConnection", "backend", wanted, registry.names())
    if wanted != registry.AUTO:
        try:
            registry.choose("HyperConnection", dataclasses.replace(job, operator="mhc_pre_sinkhorn"), wanted)
        except (ValueError, RuntimeError):
            registry.choose("HyperConnection", job, wanted)
