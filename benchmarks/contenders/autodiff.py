"""The composite backend's ops with the gradient that MindSpore derives from them."""

from __future__ import annotations

from typing import Any, Dict

from mindspore import Parameter, Tensor, nn

from ms_mhc.backends import composite
from ms_mhc.bench.contenders import Contender, Step
from ms_mhc.bench.mindspore_steps import of_cell
from ms_mhc.bench.task import EPS, NUM_ITERS, RECIPE, Array, Inputs, Task


class Pre(nn.Cell):
    """MhcPre without its bprop."""

    def construct(self, x: Tensor, phi: Tensor, alpha: Tensor, bias: Tensor) -> Any:
        return composite.mhc_pre_forward(x, phi, alpha, bias, None, EPS, EPS)[:3]


class Sinkhorn(nn.Cell):
    """Sinkhorn without its bprop."""

    def construct(self, h_res: Tensor) -> Tensor:
        return composite.mhc_sinkhorn_forward(h_res, EPS, NUM_ITERS, RECIPE)


class Post(nn.Cell):
    """MhcPost without its bprop."""

    def construct(self, x: Tensor, h_res: Tensor, h_out: Tensor, h_post: Tensor) -> Tensor:
        return composite.mhc_post_forward(x, h_res, h_out, h_post)


class Connection(nn.Cell):
    """HyperConnection without any bprop of ours, around a branch that does nothing."""

    def __init__(self, parameters: Dict[str, Array]) -> None:
        super().__init__()
        self.phi = Parameter(Tensor(parameters["phi"]), name="phi")
        self.alpha = Parameter(Tensor(parameters["alpha"]), name="alpha")
        self.bias = Parameter(Tensor(parameters["bias"]), name="bias")

    def construct(self, x: Tensor) -> Tensor:
        h_in, h_post, h_res = composite.mhc_pre_forward(x, self.phi, self.alpha, self.bias, None, EPS, EPS)[:3]
        h_res = composite.mhc_sinkhorn_forward(h_res, EPS, NUM_ITERS, RECIPE)
        return composite.mhc_post_forward(x, h_res, h_in, h_post)


def make(task: Task, inputs: Inputs) -> Step:
    """A step of one of the cells."""
    if task.operator == "hyper_connection":
        return of_cell(task, inputs, Connection(inputs.parameters))
    return of_cell(task, inputs, {"mhc_pre": Pre, "mhc_post": Post, "mhc_sinkhorn": Sinkhorn}[task.operator]())


CONTENDERS = (Contender("autodiff", make),)
