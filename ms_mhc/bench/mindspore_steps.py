"""Our operators as steps, compiled as graphs or called eagerly: through the public functions, as users call them."""

from __future__ import annotations

from typing import Any, Dict, List

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from ms_mhc import HyperConnection, mhc_post, mhc_pre, mhc_sinkhorn
from ms_mhc.bench.contenders import Step
from ms_mhc.bench.task import EPS, NUM_ITERS, RECIPE, Array, Inputs, Task, saved_bytes_per_token


class Identity(nn.Cell):
    """The branch of the measured HyperConnection: the connection is measured, not what it is put around."""

    def construct(self, h: Tensor) -> Tensor:
        return h


class _Pre(nn.Cell):
    def __init__(self, backend: str) -> None:
        super().__init__()
        self.backend = backend

    def construct(self, x: Tensor, phi: Tensor, alpha: Tensor, bias: Tensor) -> Any:
        return mhc_pre(x, phi, alpha, bias, norm_eps=EPS, hc_eps=EPS, backend=self.backend)[:3]


class _Sinkhorn(nn.Cell):
    def __init__(self, backend: str) -> None:
        super().__init__()
        self.backend = backend

    def construct(self, h_res: Tensor) -> Tensor:
        return mhc_sinkhorn(h_res, num_iters=NUM_ITERS, eps=EPS, recipe=RECIPE, backend=self.backend)


class _Post(nn.Cell):
    def __init__(self, backend: str) -> None:
        super().__init__()
        self.backend = backend

    def construct(self, x: Tensor, h_res: Tensor, h_out: Tensor, h_post: Tensor) -> Tensor:
        return mhc_post(x, h_res, h_out, h_post, backend=self.backend)


class _Gradient(nn.Cell):
    """Gradients of a cell with respect to its first ``count`` inputs and its parameters; cotangents follow.

    They are inputs, as in a network: a loss at this place would be measured too.
    """

    def __init__(self, cell: nn.Cell, count: int, single: bool) -> None:
        super().__init__()
        self.cell = cell
        self.count = count
        self.single = single
        self.weights = ms.ParameterTuple(cell.trainable_params())
        by_list = len(self.weights) > 0
        self.by_list = by_list
        self.gradient = ops.GradOperation(get_all=True, get_by_list=by_list, sens_param=True)

    def construct(self, *values: Any) -> Any:
        inputs, cotangents = values[: self.count], values[self.count :]
        sens = cotangents[0] if self.single else cotangents
        if self.by_list:
            return self.gradient(self.cell, self.weights)(*inputs, sens)
        return self.gradient(self.cell)(*inputs, sens)


def _connection(task: Task, parameters: Dict[str, Array], backend: str) -> nn.Cell:
    options = {"norm_eps": EPS, "hc_eps": EPS, "num_iters": NUM_ITERS, "sinkhorn_eps": EPS, "recipe": RECIPE}
    cell = HyperConnection(task.shape.streams, task.shape.hidden, Identity(), backend=backend, **options)  # type: ignore[arg-type]
    for name, value in parameters.items():
        getattr(cell.pre, name).set_data(Tensor(value))
    return cell


def _flat(results: Any) -> List[Any]:
    if isinstance(results, (tuple, list)):
        return [tensor for part in results for tensor in _flat(part)]
    return [results]


def _arrays(results: Any) -> List[Array]:
    return [np.asarray(tensor.astype(ms.float32).asnumpy()) for tensor in _flat(results)]


def _called_eagerly(cell: nn.Cell, values: List[Tensor]) -> Any:
    """Returns when the results are there. The others are compiled, and the mode is theirs again."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    try:
        results = cell(*values)
        for tensor in _flat(results):
            tensor.data_ptr()
        return results
    finally:
        ms.set_context(mode=ms.GRAPH_MODE)


def make(task: Task, inputs: Inputs, backend: str, eagerly: bool = False) -> Step:
    """The task through our operators with one backend, compiled or called eagerly."""
    if task.operator == "hyper_connection":
        cell = _connection(task, inputs.parameters, backend)
    else:
        cell = {"mhc_pre": _Pre, "mhc_post": _Post, "mhc_sinkhorn": _Sinkhorn}[task.operator](backend)
    return of_cell(task, inputs, cell, saved_bytes_per_token(task), eagerly)


def of_cell(task: Task, inputs: Inputs, cell: nn.Cell, saved_bytes: Any = None, eagerly: bool = False) -> Step:
    """A step of any cell that takes the task's tensors.

    In graph mode a call returns when its results are there, so a step needs no further waiting.
    """
    dtype = getattr(ms, task.dtype)
    values = [Tensor(v, dtype if name in inputs.streams else ms.float32) for name, v in inputs.tensors.items()]
    if task.passes == "both":
        # the first output of every operator but Sinkhorn has the streams' dtype, and so has its cotangent
        kinds = [dtype if inputs.streams and i == 0 else ms.float32 for i in range(len(inputs.cotangents))]
        cell = _Gradient(cell, len(values), len(inputs.cotangents) == 1)
        values += [Tensor(c, kind) for c, kind in zip(inputs.cotangents, kinds)]
    if eagerly:
        return Step(lambda: _called_eagerly(cell, values), _arrays, saved_bytes)
    cell.compile(*values)  # before any measurement of memory
    return Step(lambda: cell(*values), _arrays, saved_bytes)
