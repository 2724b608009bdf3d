"""Steps in PyTorch: the formulas of the operators, written as a PyTorch user would, eager or compiled.

As everywhere, x may have 16 bits and the arithmetic is fp32. PyTorch is not a dependency; it is imported by name.
"""

from __future__ import annotations

import importlib
import os
from typing import Any, Callable, Dict, List, Tuple

import numpy as np

from ms_mhc.bench.contenders import Contender, Step
from ms_mhc.bench.task import EPS, NUM_ITERS, Array, Inputs, Task

_Function = Callable[..., Tuple[Any, ...]]


def _pre(x: Any, phi: Any, alpha: Any, bias: Any) -> Tuple[Any, ...]:
    t, n, d = x.shape
    streams = x.float()
    flat = streams.reshape(t, n * d)
    inv_rms = 1.0 / ((flat * flat).mean(-1, keepdim=True) + EPS).sqrt()
    mixed = (flat @ phi.T) * inv_rms
    h_pre = (mixed[:, :n] * alpha[0] + bias[:n]).sigmoid() + EPS
    h_post = 2.0 * (mixed[:, n : 2 * n] * alpha[1] + bias[n : 2 * n]).sigmoid()
    h_res = (mixed[:, 2 * n :] * alpha[2] + bias[2 * n :]).reshape(t, n, n)
    h_in = (h_pre.unsqueeze(-1) * streams).sum(1)
    return h_in.to(x.dtype), h_post, h_res


def _sinkhorn(h_res: Any) -> Tuple[Any, ...]:
    y = h_res.softmax(-1) + EPS
    y = y / (y.sum(-2, keepdim=True) + EPS)
    for _ in range(NUM_ITERS - 1):
        y = y / (y.sum(-1, keepdim=True) + EPS)
        y = y / (y.sum(-2, keepdim=True) + EPS)
    return (y,)


def _post(x: Any, h_res: Any, h_out: Any, h_post: Any) -> Tuple[Any, ...]:
    mixed = h_res.transpose(-1, -2) @ x.float()
    return ((mixed + h_post.unsqueeze(-1) * h_out.float().unsqueeze(1)).to(x.dtype),)


def _connection(x: Any, phi: Any, alpha: Any, bias: Any) -> Tuple[Any, ...]:
    h_in, h_post, h_res = _pre(x, phi, alpha, bias)
    return _post(x, _sinkhorn(h_res)[0], h_in, h_post)


_FORMULAS: Dict[str, _Function] = {
    "mhc_pre": _pre,
    "mhc_sinkhorn": _sinkhorn,
    "mhc_post": _post,
    "hyper_connection": _connection,
}


def _saved_per_token(torch: Any, function: _Function, values: List[Any], tokens: int) -> float:
    """Bytes of all distinct tensors that autograd keeps and that are not inputs."""
    own = {value.untyped_storage().data_ptr() for value in values}
    kept: Dict[int, int] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = function(*values)
    del outputs  # alive until here, else a storage's address could be given out twice
    return sum(kept.values()) / tokens


def _arrays(results: Any) -> List[Array]:
    return [np.asarray(tensor.detach().float().numpy()) for tensor in results]


def make(task: Task, inputs: Inputs, compiled: bool) -> Step:
    """A step of eager PyTorch or of ``torch.compile``."""
    torch = importlib.import_module("torch")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    dtype = getattr(torch, task.dtype)
    both = task.passes == "both"
    tensors = {**inputs.tensors, **inputs.parameters}
    values = [torch.from_numpy(v).to(dtype if k in inputs.streams else torch.float32) for k, v in tensors.items()]
    function = _FORMULAS[task.operator]
    if compiled:
        torch.compiler.reset()  # after eight shapes of one function PyTorch would silently stop compiling it
        function = torch.compile(function, dynamic=False, fullgraph=True)

    def forward() -> Any:
        with torch.no_grad():
            return function(*values)

    if not both:
        return Step(forward, _arrays)
    for value in values:
        value.requires_grad_(True)
    kinds = [dtype if inputs.streams and i == 0 else torch.float32 for i in range(len(inputs.cotangents))]
    cotangents = [torch.from_numpy(c).to(kind) for c, kind in zip(inputs.cotangents, kinds)]

    def forward_and_backward() -> Any:
        return torch.autograd.grad(function(*values), values, cotangents)

    saved = _saved_per_token(torch, function, values, task.shape.tokens)
    return Step(forward_and_backward, _arrays, saved)


CONTENDERS = (
    Contender("torch_eager", lambda task, inputs: make(task, inputs, False), package="torch", warm=True),
    Contender("torch_compile", lambda task, inputs: make(task, inputs, True), package="torch", warm=True),
)
