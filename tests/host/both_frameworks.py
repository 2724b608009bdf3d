"""Equal inputs through ms_mhc on MindSpore's Ascend backend and through torch_npu, in one process on the host CANN.

``python both_frameworks.py FIRST RESULTS COMBINATION...`` imports the framework FIRST ("mindspore" or "torch") before
the other, and writes to RESULTS every output and gradient, beside those of plain PyTorch in float64. A combination is
"dtype,tokens,gamma", such as "bfloat16,2x3,1".
"""

from __future__ import annotations

import os
import sys
from typing import Any, Callable, Dict, Sequence, Tuple

import numpy as np

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # this program says when torch_npu is imported
if sys.argv[1] == "torch":
    import torch
    import torch_npu

    print("torch", (torch.ones(2).to("npu:0") + 1).cpu().tolist())
import mindspore as ms

ms.set_context(device_target="Ascend", mode=ms.PYNATIVE_MODE)
print("mindspore", (ms.Tensor([1.0, 1.0]) + 1).asnumpy().tolist())
import torch  # noqa: E402
import torch_npu  # noqa: E402, F401

from ms_mhc import mhc_post, mhc_pre, mhc_sinkhorn  # noqa: E402

N, D, NORM_EPS, HC_EPS, EPS, ITERATIONS = 4, 64, 3e-3, 1e-2, 1e-4, 5
F = N * N + 2 * N
Arrays = Dict[str, np.ndarray]
SIXTEEN = ("x", "h_out", "grad_h_in", "grad_out")  # in bfloat16 or float16; everything else is float32


def inputs(tokens: Tuple[int, ...], gamma: bool) -> Dict[str, Arrays]:
    """The inputs of each operator and the gradients of its outputs, in the order of its results."""
    rng = np.random.default_rng(1)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    x, h_res = normal(*tokens, N, D), normal(*tokens, N, N)
    pre = {"x": x, "phi": normal(F, N * D) * np.float32((N * D) ** -0.5), "alpha": normal(3), "bias": normal(F)}
    if gamma:
        pre["gamma"] = normal(N, D)
    return {
        "pre": {**pre, "grad_h_in": normal(*tokens, D), "grad_h_post": normal(*tokens, N), "grad_h_res": h_res},
        "sinkhorn": {"h_res": h_res, "grad_h_res": normal(*tokens, N, N)},
        "post": {
            "x": x,
            "h_res": h_res,
            "h_out": normal(*tokens, D),
            "h_post": normal(*tokens, N),
            "grad_out": normal(*tokens, N, D),
        },
    }


RESULTS = {
    "pre": ("h_in", "h_post", "h_res", "inv_rms", "h_mix", "h_pre"),
    "sinkhorn": ("h_res",),
    "post": ("out",),
}


def split(arrays: Dict[str, Any]) -> Tuple[Dict[str, Any], Tuple[Any, ...]]:
    """Inputs by name, and the gradients of the outputs."""
    given = {name: value for name, value in arrays.items() if not name.startswith("grad_")}
    return given, tuple(value for name, value in arrays.items() if name.startswith("grad_"))


def with_torch(
    operator: str,
    arrays: Arrays,
    convert: Callable[[str, np.ndarray], torch.Tensor],
    call: Callable[..., Sequence[Any]],
) -> Dict[str, torch.Tensor]:
    """Outputs and gradients by PyTorch's autograd."""
    given, grads = split({name: convert(name, value) for name, value in arrays.items()})
    leaves = [value.requires_grad_() for value in given.values()]
    out = call(**given)
    found = torch.autograd.grad(out[: len(grads)], leaves, grads)
    results = dict(zip(RESULTS[operator], out))
    results.update((f"grad_{name}", grad) for name, grad in zip(given, found))
    return {name: value.detach().cpu() for name, value in results.items()}


def with_mindspore(operator: str, arrays: Arrays, dtype: Any) -> Dict[str, ms.Tensor]:
    """Outputs and gradients by ms_mhc's kernels."""
    tensors = {n: ms.Tensor(a).astype(dtype) if n in SIXTEEN else ms.Tensor(a) for n, a in arrays.items()}
    given, grads = split(tensors)
    call = MINDSPORE[operator]
    out = call(*given.values())
    out = out if isinstance(out, tuple) else (out,)
    grads += tuple(ms.ops.zeros_like(o) for o in out[len(grads) :])
    gradient = ms.ops.GradOperation(get_all=True, sens_param=True)(call)
    found = gradient(*given.values(), grads if len(grads) > 1 else grads[0])
    results = dict(zip(RESULTS[operator], out))
    results.update((f"grad_{name}", grad) for name, grad in zip(given, found))
    return results


MINDSPORE: Dict[str, Callable[..., Any]] = {
    "pre": lambda *a: mhc_pre(*a, norm_eps=NORM_EPS, hc_eps=HC_EPS, backend="aclnn"),
    "sinkhorn": lambda h_res: mhc_sinkhorn(h_res, num_iters=ITERATIONS, eps=EPS, backend="aclnn"),
    "post": lambda *a: mhc_post(*a, backend="aclnn"),
}
TORCH_NPU: Dict[str, Callable[..., Sequence[Any]]] = {
    "pre": lambda x, phi, alpha, bias, gamma=None: torch.ops.npu.npu_mhc_pre(
        x, phi, alpha, bias, gamma=gamma, norm_eps=NORM_EPS, hc_eps=HC_EPS, out_flag=1
    ),
    "sinkhorn": lambda h_res: torch.ops.npu.npu_mhc_sinkhorn(h_res, eps=EPS, num_iters=ITERATIONS, out_flag=1),
    "post": lambda x, h_res, h_out, h_post: [torch.ops.npu.npu_mhc_post(x, h_res, h_out, h_post)],
}


def pre(x: Any, phi: Any, alpha: Any, bias: Any, gamma: Any = 1.0) -> Sequence[Any]:
    """MhcPre as its formulas are in the README."""
    h_mix = torch.einsum("...nd,fnd->...f", x * gamma, phi.reshape(F, N, D))
    inv_rms = (x.square().mean((-2, -1)) + NORM_EPS).rsqrt()
    w_pre, w_post, w_res = (h_mix * inv_rms[..., None]).split([N, N, N * N], -1)
    h_pre = torch.sigmoid(alpha[0] * w_pre + bias[:N]) + HC_EPS
    h_post = 2 * torch.sigmoid(alpha[1] * w_post + bias[N : 2 * N])
    h_res = (alpha[2] * w_res + bias[2 * N :]).unflatten(-1, (N, N))
    return torch.einsum("...n,...nd->...d", h_pre, x), h_post, h_res, inv_rms, h_mix, h_pre


def sinkhorn(h_res: Any) -> Sequence[Any]:
    """Rows by a softmax, then columns; after that rows and columns in turn."""
    m = h_res.softmax(-1) + EPS
    m = m / (m.sum(-2, keepdim=True) + EPS)
    for _ in range(ITERATIONS - 1):
        m = m / (m.sum(-1, keepdim=True) + EPS)
        m = m / (m.sum(-2, keepdim=True) + EPS)
    return [m]


def post(x: Any, h_res: Any, h_out: Any, h_post: Any) -> Sequence[Any]:
    """The first index of h_res is the stream that is read."""
    return [torch.einsum("...ij,...id->...jd", h_res, x) + h_post[..., None] * h_out[..., None, :]]


FORMULAS: Dict[str, Callable[..., Sequence[Any]]] = {"pre": pre, "sinkhorn": sinkhorn, "post": post}


def main(results: str, combinations: Sequence[str]) -> None:
    """All operators in all combinations, as float64 and by name: combination/operator/side/result."""
    found: Arrays = {}
    for combination in combinations:
        dtype, lead, gamma = combination.split(",")
        low = getattr(torch, dtype)

        def low_or_float(name: str, array: np.ndarray, low: Any = low) -> torch.Tensor:
            return torch.from_numpy(array).to(low if name in SIXTEEN else torch.float32)

        for operator, arrays in inputs(tuple(map(int, lead.split("x"))), gamma == "1").items():
            sides = {
                "torch_npu": with_torch(operator, arrays, lambda *a: low_or_float(*a).to("npu:0"), TORCH_NPU[operator]),
                "float64": with_torch(operator, arrays, lambda *a: low_or_float(*a).double(), FORMULAS[operator]),
                "mindspore": with_mindspore(operator, arrays, getattr(ms, dtype)),
            }
            for side, values in sides.items():
                for name, value in values.items():
                    wide = value.astype(ms.float32).asnumpy() if side == "mindspore" else value.double().numpy()
                    found[f"{combination}/{operator}/{side}/{name}"] = wide.astype(np.float64)
    np.savez(results, **found)


if __name__ == "__main__":
    main(sys.argv[2], sys.argv[3:])
