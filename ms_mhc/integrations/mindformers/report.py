"""Says once which kernels compute."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any, Dict, List, Set, Tuple

from ms_mhc.backends import registry
from ms_mhc.backends.registry import Job
from ms_mhc.dispatch import COMPOSITE, Options, has_kernel

logger = logging.getLogger("ms_mhc")

_said: Set[str] = set()
_NAMES = {"aclnn": "aclnn kernels", "cpu": "C++ kernels", COMPOSITE: "MindSpore ops"}


def say_once(arguments: Tuple[Any, ...], attributes: Tuple[Any, ...], options: Options) -> None:
    """What a module of these sizes runs on, as a message of the logger ``ms_mhc``; equal texts once a process."""
    text = "; ".join(lines(arguments, attributes, options))
    if text not in _said:
        _said.add(text)
        logger.warning("MindSpore Transformers' hyper-connections: %s", text)


def lines(arguments: Tuple[Any, ...], attributes: Tuple[Any, ...], options: Options) -> List[str]:
    """One text for each operator: the kernels of its forward and its backward."""
    (shape, dtype), steps = arguments[0], {"num_iters": attributes[3], "recipe": attributes[4]}
    of_x: Dict[str, Any] = {"hidden_size": shape[-1], "dtype": dtype, "precision": options.precision}
    if has_kernel("HyperConnectionModule", "mhc_pre_sinkhorn", arguments, attributes, options):
        values = tuple(zip(("norm_eps", "hc_eps", "sinkhorn_eps", "num_iters", "recipe"), attributes))
        jobs = [Job("mhc_pre_sinkhorn", shape[-2], absent=("gamma",), attributes=values, **of_x, **steps)]
    else:
        jobs = [Job("mhc_pre", shape[-2], absent=("gamma",), **of_x), Job("mhc_sinkhorn", shape[-2], **steps)]
    jobs.append(Job("mhc_post", shape[-2], **of_x))
    return [_line(dataclasses.replace(job, token_dims=2), options.backend) for job in jobs]


def _line(job: Job, backend: str) -> str:
    choice = registry.choose("HyperConnectionModule", job, backend)
    forward, backward = _NAMES[choice.forward.name], _NAMES[choice.backward.name]
    both = forward if forward == backward else f"{forward} forward and {backward} backward"
    return f"{job.operator} on {both}"
