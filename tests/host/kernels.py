"""The mHC kernels as ``ops.Custom``, for programs that run on the host CANN."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from aclnn_adapter.cpp_infer import shape_function
from aclnn_adapter.custom import infer_functions, registration
from aclnn_adapter.operators import MHC_PRE, MHC_PRE_BACKWARD, Operator


def kernel(operator: Operator, explicit: bool = True) -> ops.Custom:
    """One operator with its registration written out, or as MindSpore finds it in CANN's files."""
    shapes, dtypes = infer_functions(operator)
    info = {"reg_info": registration(operator)} if explicit else {}
    return ops.Custom(operator.name, shapes, dtypes, func_type="aot", **info)


def dynamic_kernel(operator: Operator) -> ops.Custom:
    """One operator for graphs with dynamic shapes: its shapes are inferred in C++."""
    source = Path(f"{operator.name}_infer.cc").absolute()
    source.write_text(shape_function(operator))
    dtypes = infer_functions(operator)[1]
    function = f"{source}:{operator.name}"
    return ops.Custom(function, None, dtypes, func_type="aot", reg_info=registration(operator))


class Core(nn.Cell):
    """MhcPre with the residual output, whose gradient comes back through the kernel."""

    def __init__(self, norm_eps: float, hc_eps: float, make: Callable[[Operator], ops.Custom]) -> None:
        super().__init__()
        self.forward_kernel, self.backward_kernel = make(MHC_PRE), make(MHC_PRE_BACKWARD)
        self.norm_eps, self.hc_eps = norm_eps, hc_eps

    def construct(self, x: Tensor, phi: Tensor, alpha: Tensor, bias: Tensor, gamma: Tensor) -> Tuple[Tensor, ...]:
        return self.forward_kernel(x, phi, alpha, bias, gamma, self.norm_eps, self.hc_eps) + (x,)

    def bprop(self, x: Tensor, phi: Tensor, alpha: Tensor, bias: Tensor, gamma: Tensor, out: Any, dout: Any) -> Any:
        return self.backward_kernel(
            x, phi, alpha, dout[0], dout[1], dout[2], out[3], out[4], out[5], out[1], gamma, dout[6], self.hc_eps
        )


class Net(nn.Cell):
    """One Core with parameters."""

    def __init__(
        self, n: int = 4, d: int = 128, norm_eps: float = 1e-6, hc_eps: float = 1e-6, seed: int = 0,
        make: Callable[[Operator], ops.Custom] = kernel,
    ) -> None:  # fmt: skip
        super().__init__()
        rng, f = np.random.default_rng(seed), n * n + 2 * n
        random = lambda *shape: Parameter(Tensor(rng.standard_normal(shape).astype(np.float32)))  # noqa: E731
        self.core = Core(norm_eps, hc_eps, make)
        self.phi, self.alpha, self.bias, self.gamma = random(f, n * d), random(3), random(f), random(n, d)
        self.phi.set_data(self.phi / np.sqrt(n * d))
        self.norm_eps, self.hc_eps = norm_eps, hc_eps

    def construct(self, x: Tensor) -> Tuple[Tensor, ...]:
        out = self.core(x, self.phi, self.alpha, self.bias, self.gamma)
        return out[0], out[1], out[2], out[6]


def inputs(tokens: int, n: int = 4, d: int = 128, seed: int = 1) -> Tuple[Tensor, Tuple[Tensor, ...]]:
    """x and the gradients of the four outputs."""
    rng = np.random.default_rng(seed)
    random = lambda kind, *shape: Tensor(rng.standard_normal(shape).astype(np.float32)).astype(kind)  # noqa: E731
    b, f = ms.bfloat16, ms.float32
    grads = (random(b, tokens, d), random(f, tokens, n), random(f, tokens, n, n), random(b, tokens, n, d))
    return random(b, tokens, n, d), ms.mutable(grads)  # a plain tuple is a constant, compiled anew for every value


def numbers(tensor: Tensor) -> np.ndarray:
    return tensor.float().asnumpy().astype(np.float64)


def wanted_gradients(net: Net, x: Tensor, grads: Tuple[Tensor, ...]) -> Dict[str, np.ndarray]:
    """Gradients of x and of the parameters by the reference, by name."""
    from ms_mhc import reference

    forward = reference.mhc_pre(
        numbers(x), *(numbers(p) for p in (net.phi, net.alpha, net.bias, net.gamma)),
        norm_eps=net.norm_eps, hc_eps=net.hc_eps,
    )  # fmt: skip
    wanted = reference.mhc_pre_backward(
        numbers(x), numbers(net.phi), numbers(net.alpha), *(numbers(g) for g in grads[:3]), forward.inv_rms,
        forward.h_mix, forward.h_pre, forward.h_post, numbers(net.gamma), numbers(grads[3]), hc_eps=net.hc_eps,
    )  # fmt: skip
    return {name: np.asarray(value) for name, value in wanted._asdict().items()}


def check_gradients(net: Net, x: Tensor, grads: Tuple[Tensor, ...], results: Tuple[Any, Any]) -> None:
    """Gradients of x and of the parameters against the reference, element by element."""
    from ms_mhc.accuracy import error_ratio

    names: List[str] = ["grad_phi", "grad_alpha", "grad_bias", "grad_gamma"]
    got: Dict[str, Any] = {"grad_x": results[0][0], **dict(zip(names, results[1]))}
    wanted = wanted_gradients(net, x, grads)
    for name, value in got.items():
        worst = error_ratio(value, wanted[name]).max()
        assert worst <= 1, f"{name}: {worst:.3g} times the error that is allowed"


def gradient_function(net: Net) -> Any:
    return ops.GradOperation(get_all=True, get_by_list=True, sens_param=True)(net, net.trainable_params())
