"""The composite backend's ops with the gradient that MindSpore derives from them."""

from __future__ import annotations

from typing import Any, Dict

from mindspore import Parameter, Tensor, nn

from ms_mhc.bench.contenders import Contender, Step
from ms_mhc.bench.mindspore_steps import of_cell
from ms_mhc.bench.task import EPS, NUM_ITERS, RECIPE, Array, Inputs, Task
from ms_mhc.operation import FORWARD, OPERATIONS

_pre, _sinkhorn, _post = (OPERATIONS[name].composite[FORWARD] for name in ("mhc_pre", "mhc_sinkhorn", "mhc_post"))


class Pre(nn.Cell):
    """MhcPre without its bprop."""

    def construct(self, x: Tensor, phi: Tensor, alpha: Tensor, bias: Tensor) -> Any:
        return _pre(x, phi, alpha, bias, None, EPS, EPS)[:3]


class Sinkhorn(nn.Cell):
    """Sinkhorn without its bprop."""

    def construct(self, h_res: Tensor) -> Tensor:
        return _sinkhorn(h_res, EPS, NUM_ITERS, RECIPE)[0]


class Post(nn.Cell):
    """MhcPost without its bprop."""

    def construct(self, x: Tensor, h_res: Tensor, h_out: Tensor, h_post: Tensor) -> Tensor:
        return _post(x, h_res, h_out, h_post)[0]


class Connection(nn.Cell):
    """HyperConnection without any bprop of ours, around a branch that does nothing."""

    def __init__(self, parameters: Dict[str, Array]) -> None:
        super().__init__()
        self.phi = Parameter(Tensor(parameters["phi"]), name="phi")
        self.alpha = Parameter(Tensor(parameters["alpha"]), name="alpha")
        self.bias = Parameter(Tensor(parameters["bias"]), name="bias")

    def construct(self, x: Tensor) -> Tensor:
        h_in, h_post, h_res = _pre(x, self.phi, self.alpha, self.bias, None, EPS, EPS)[:3]
        h_res = _sinkhorn(h_res, EPS, NUM_ITERS, RECIPE)[0]
        return _post(x, h_res, h_in, h_post)[0]


def make(task: Task, inputs: Inputs) -> Step:
    """A step of one of the cells."""
    if task.operator == "hyper_connection":
        return of_cell(task, inputs, Connection(inputs.parameters))
    return of_cell(task, inputs, {"mhc_pre": Pre, "mhc_post": Post, "mhc_sinkhorn": Sinkhorn}[task.operator]())


CONTENDERS = (Contender("autodiff", make),)
