"""The operators as functions: arguments checked, backend chosen, then computed.

They work eagerly and inside a compiled graph alike. Gradients are written down (``bprop``), not derived through the
pieces.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Optional, Tuple, Union

import mindspore as ms
from mindspore import Tensor, mint, nn, ops
from mindspore._c_expression import MixedPrecisionType
from mindspore.ops import constexpr

from ms_mhc import checks
from ms_mhc.backends import registry
from ms_mhc.backends.registry import AUTO, Job


def spec(value: Any) -> Any:
    """What the checks see of an argument. Compiled into graphs, therefore as plain as this."""
    if value is None:
        return None
    if isinstance(value, Tensor):
        return (value.shape, value.dtype)
    return str(type(value))


def first(out: Union[Tensor, Tuple[Tensor, ...]]) -> Tensor:
    """The result of a cell that may return more than its result."""
    return out[0] if isinstance(out, tuple) else out


class _Operator(nn.Cell):
    """A cell in which no mixed precision happens, whatever the cell is marked with that calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.mixed_precision_type = MixedPrecisionType.NOTSET


class _MhcPre(_Operator):
    """Forward and written backward of MhcPre for one backend and one pair of eps."""

    def __init__(self, kernels: registry.Kernels, norm_eps: float, hc_eps: float, with_residual: bool) -> None:
        super().__init__()
        self.forward = kernels.forward
        self.backward = kernels.backward
        self.norm_eps = norm_eps
        self.hc_eps = hc_eps
        self.with_residual = with_residual

    def construct(
        self, x: Tensor, phi: Tensor, alpha: Tensor, bias: Tensor, gamma: Optional[Tensor]
    ) -> Tuple[Tensor, ...]:
        out = self.forward(x, phi, alpha, bias, gamma, self.norm_eps, self.hc_eps)
        if self.with_residual:
            return out + (x,)
        return out

    def bprop(
        self,
        x: Tensor,
        phi: Tensor,
        alpha: Tensor,
        bias: Tensor,
        gamma: Optional[Tensor],
        out: Tuple[Tensor, ...],
        dout: Tuple[Tensor, ...],
    ) -> Tuple[Optional[Tensor], ...]:
        _, h_post, _, inv_rms, h_mix, h_pre = out[:6]
        grad_h_in, grad_h_post, grad_h_res = dout[:3]
        grad_x_post = dout[6] if self.with_residual else None
        return self.backward(
            x,
            phi,
            alpha,
            grad_h_in,
            grad_h_post,
            grad_h_res,
            inv_rms,
            h_mix,
            h_pre,
            h_post,
            gamma,
            grad_x_post,
            self.hc_eps,
        )


class _MhcPreBackward(_Operator):
    """The backward of MhcPre as an operator of its own. Without gamma there is no fifth output, not even ``None``."""

    def __init__(self, kernels: registry.Kernels, hc_eps: float) -> None:
        super().__init__()
        self.backward = kernels.backward
        self.hc_eps = hc_eps

    def construct(
        self,
        x: Tensor,
        phi: Tensor,
        alpha: Tensor,
        grad_h_in: Tensor,
        grad_h_post: Tensor,
        grad_h_res: Tensor,
        inv_rms: Tensor,
        h_mix: Tensor,
        h_pre: Tensor,
        h_post: Tensor,
        gamma: Optional[Tensor],
        grad_x_post: Optional[Tensor],
    ) -> Tuple[Optional[Tensor], ...]:
        grads = self.backward(
            x,
            phi,
            alpha,
            grad_h_in,
            grad_h_post,
            grad_h_res,
            inv_rms,
            h_mix,
            h_pre,
            h_post,
            gamma,
            grad_x_post,
            self.hc_eps,
        )
        return grads[:4] if gamma is None else grads


class _MhcSinkhorn(_Operator):
    """Forward and written backward of Sinkhorn.

    Returns the matrices, or a tuple of them and what the backend saved for its backward.
    """

    def __init__(self, kernels: registry.Kernels, eps: float, num_iters: int, recipe: str) -> None:
        super().__init__()
        self.forward = kernels.forward
        self.backward = kernels.backward
        self.eps = eps
        self.num_iters = num_iters
        self.recipe = recipe

    def construct(self, h_res: Tensor) -> Union[Tensor, Tuple[Tensor, ...]]:
        return self.forward(h_res, self.eps, self.num_iters, self.recipe)

    def bprop(
        self, h_res: Tensor, out: Union[Tensor, Tuple[Tensor, ...]], dout: Union[Tensor, Tuple[Tensor, ...]]
    ) -> Tuple[Tensor]:
        if isinstance(out, tuple):
            return (self.backward(dout[0], h_res, out[1:], self.eps, self.num_iters, self.recipe),)
        return (self.backward(dout, h_res, (), self.eps, self.num_iters, self.recipe),)


class _MhcPost(_Operator):
    """Forward and written backward of MhcPost."""

    def __init__(self, kernels: registry.Kernels) -> None:
        super().__init__()
        self.forward = kernels.forward
        self.backward = kernels.backward

    def construct(self, x: Tensor, h_res: Optional[Tensor], h_out: Tensor, h_post: Tensor) -> Tensor:
        return self.forward(x, h_res, h_out, h_post)

    def bprop(
        self, x: Tensor, h_res: Optional[Tensor], h_out: Tensor, h_post: Tensor, out: Tensor, dout: Tensor
    ) -> Tuple[Optional[Tensor], ...]:
        return self.backward(dout, x, h_res, h_out, h_post)


class _MhcHead(_Operator):
    """The learned collapse. Once per network and cheap, so MindSpore derives its gradient."""

    def __init__(self, norm_eps: float, hc_eps: float) -> None:
        super().__init__()
        self.norm_eps = norm_eps
        self.hc_eps = hc_eps

    def construct(self, x: Tensor, phi: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        n, d = x.shape[-2], x.shape[-1]
        streams = ops.cast(x, ms.float32).reshape(-1, n, d)
        flat = streams.reshape(-1, n * d)
        inv_rms = 1.0 / ops.sqrt(mint.sum(flat * flat, -1, True) / (n * d) + self.norm_eps)
        gates = ops.sigmoid(ops.matmul(flat, phi.T) * inv_rms * scale + bias) + self.hc_eps
        out = ops.bmm(gates.reshape(-1, 1, n), streams)
        return ops.cast(out.reshape(x.shape[:-2] + (d,)), x.dtype)


@cache
def _cell(cell: Any, backend: str, by_name: bool, job: Job, *options: Any) -> nn.Cell:
    chosen = next(b for b in registry.backends() if b.name == backend)
    return cell(chosen.kernels(job, by_name), *options)


def _select(name: str, job: Job, wanted: str, cell: Any, *options: Any) -> nn.Cell:
    """The cell that does the job; one per backend and options, so that repeated calls share it."""
    checks.one_of(name, "backend", wanted, registry.names())
    backend = registry.choose(name, job, wanted).name
    return _cell(cell, backend, wanted != AUTO, job.without_sizes(), *options)


@constexpr(check=False)
def mhc_pre_cell(
    name: str,
    sizes: Optional[Tuple[int, int]],
    x: Any,
    phi: Any,
    alpha: Any,
    bias: Any,
    gamma: Any,
    norm_eps: Any,
    hc_eps: Any,
    backend: Any,
    with_residual: bool,
) -> nn.Cell:
    """Checks and choice, for :func:`mhc_pre` and the cell ``MhcPre``. In a graph this runs once, at compile time.

    ``sizes`` are N and D where the caller fixes them. With ``with_residual`` the chosen cell returns x as a seventh
    output. What comes after uses that output instead of x; its gradient then arrives in the cell's ``bprop``, and the
    backward adds it while it writes grad_x (gradXPostOptional of aclnnMhcPreBackward).
    """
    tensors = {"x": x, "phi": phi, "alpha": alpha, "bias": bias}
    specs = {argument: checks.tensor(name, argument, value) for argument, value in tensors.items()}
    gamma_spec = None if gamma is None else checks.tensor(name, "gamma", gamma)
    n, d = checks.mhc_pre(name, sizes, **specs, gamma=gamma_spec, norm_eps=norm_eps, hc_eps=hc_eps)
    job = Job("mhc_pre", n, d, specs["x"].dtype, dynamic=None in specs["x"].shape)
    return _select(name, job, backend, _MhcPre, float(norm_eps), float(hc_eps), with_residual)


_BACKWARD_INPUTS = (
    "x",
    "phi",
    "alpha",
    "grad_h_in",
    "grad_h_post",
    "grad_h_res",
    "inv_rms",
    "h_mix",
    "h_pre",
    "h_post",
)


@constexpr(check=False)
def _mhc_pre_backward_cell(hc_eps: Any, backend: Any, gamma: Any, grad_x_post: Any, *inputs: Any) -> nn.Cell:
    name = "mhc_pre_backward"
    specs = {argument: checks.tensor(name, argument, value) for argument, value in zip(_BACKWARD_INPUTS, inputs)}
    gamma_spec = None if gamma is None else checks.tensor(name, "gamma", gamma)
    share_spec = None if grad_x_post is None else checks.tensor(name, "grad_x_post", grad_x_post)
    n, d = checks.mhc_pre_backward(name, **specs, gamma=gamma_spec, grad_x_post=share_spec, hc_eps=hc_eps)
    job = Job("mhc_pre", n, d, specs["x"].dtype, dynamic=None in specs["x"].shape)
    return _select(name, job, backend, _MhcPreBackward, float(hc_eps))


def mhc_pre(
    x: Tensor,
    phi: Tensor,
    alpha: Tensor,
    bias: Tensor,
    gamma: Optional[Tensor] = None,
    *,
    norm_eps: float = 1e-6,
    hc_eps: float = 1e-6,
    backend: str = "auto",
) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Read the layer's input and the mixing weights off N residual streams (aclnnMhcPre).

    With xf the N*D values of one token::

        inv_rms = 1 / sqrt(mean(xf**2) + norm_eps)
        h_mix   = (x * gamma) @ phi.T
        h_pre   = sigmoid(alpha[0] * h_mix[pre] * inv_rms + bias[pre]) + hc_eps
        h_post  = 2 * sigmoid(alpha[1] * h_mix[post] * inv_rms + bias[post])
        h_res   = alpha[2] * h_mix[res] * inv_rms + bias[res]
        h_in    = sum_i h_pre[i] * x[i]

    F is N*N+2N; its entries are N of pre, N of post and N*N of res, row-major.

    Args:
        x: the residual streams, [B, S, N, D] or [T, N, D], bfloat16, float16 or float32. May be a view.
        phi: projection, [F, N*D], float32.
        alpha: scales of pre, post and res, [3], float32.
        bias: [F], float32.
        gamma: scale of x in the product with phi, [N, D], float32. ``None`` means ones.
        norm_eps: added to the mean square, >= 0.
        hc_eps: added to h_pre, >= 0.
        backend: ``"auto"``, or a backend by name.

    Returns:
        ``(h_in, h_post, h_res, inv_rms, h_mix, h_pre)``: h_in [..., D] in the dtype of x; h_post [..., N], h_res
        [..., N, N] (logits, before Sinkhorn), inv_rms [...], h_mix [..., F] and h_pre [..., N] in float32. The first
        three carry gradients; the last three are what the backward needs and carry none.

    Raises:
        TypeError: an argument of the wrong type or dtype.
        ValueError: shapes that do not fit together, an empty tensor, a negative eps, an unknown backend.
        RuntimeError: a backend asked for by name that this machine lacks.
    """
    cell = mhc_pre_cell(
        "mhc_pre", None, spec(x), spec(phi), spec(alpha), spec(bias), spec(gamma), norm_eps, hc_eps, backend, False
    )
    return cell(x, phi, alpha, bias, gamma)


def mhc_pre_backward(
    x: Tensor,
    phi: Tensor,
    alpha: Tensor,
    grad_h_in: Tensor,
    grad_h_post: Tensor,
    grad_h_res: Tensor,
    inv_rms: Tensor,
    h_mix: Tensor,
    h_pre: Tensor,
    h_post: Tensor,
    gamma: Optional[Tensor] = None,
    grad_x_post: Optional[Tensor] = None,
    *,
    hc_eps: float = 1e-6,
    backend: str = "auto",
) -> Tuple[Tensor, Tensor, Tensor, Tensor, Optional[Tensor]]:
    """The gradients of :func:`mhc_pre` (aclnnMhcPreBackward).

    The formulas are those of the aclnn document with its errata: the inv_rms term of grad_x multiplies x, not
    ``x * gamma``, and the gradient of alpha's third entry multiplies ``h_mix * inv_rms``.

    Args:
        x, phi, alpha, gamma: as given to :func:`mhc_pre`.
        grad_h_in: [..., D], in the dtype of x.
        grad_h_post: [..., N], float32.
        grad_h_res: [..., N, N], float32.
        inv_rms, h_mix, h_pre, h_post: as :func:`mhc_pre` returned them.
        grad_x_post: the gradient that reached x by other ways, in shape and dtype of x. ``None`` means zeros. It is
            added before the one rounding to the dtype of x.
        hc_eps: as given to :func:`mhc_pre`.
        backend: ``"auto"``, or a backend by name.

    Returns:
        ``(grad_x, grad_phi, grad_alpha, grad_bias, grad_gamma)``: grad_x in the dtype of x, the others in float32;
        grad_gamma is ``None`` when gamma is. (A graph of your own must not return that ``None``: MindSpore 2.10 aborts
        on a compiled graph that contains a custom kernel and returns ``None``.)

    Raises:
        TypeError, ValueError, RuntimeError: as :func:`mhc_pre`.
    """
    cell = _mhc_pre_backward_cell(
        hc_eps,
        backend,
        spec(gamma),
        spec(grad_x_post),
        spec(x),
        spec(phi),
        spec(alpha),
        spec(grad_h_in),
        spec(grad_h_post),
        spec(grad_h_res),
        spec(inv_rms),
        spec(h_mix),
        spec(h_pre),
        spec(h_post),
    )
    grads = cell(x, phi, alpha, grad_h_in, grad_h_post, grad_h_res, inv_rms, h_mix, h_pre, h_post, gamma, grad_x_post)
    # joined here, outside the cell: MindSpore aborts on a graph with a custom kernel that returns None
    return grads + (None,) if gamma is None else grads


@constexpr(check=False)
def sinkhorn_cell(name: str, h_res: Any, num_iters: Any, eps: Any, recipe: Any, backend: Any) -> nn.Cell:
    """Checks and choice, for :func:`mhc_sinkhorn` and the cell ``MhcSinkhorn``."""
    described = checks.tensor(name, "h_res", h_res)
    n = checks.mhc_sinkhorn(name, described, num_iters, eps, recipe)
    job = Job("mhc_sinkhorn", n, num_iters=int(num_iters), recipe=recipe, dynamic=None in described.shape)
    return _select(name, job, backend, _MhcSinkhorn, float(eps), int(num_iters), recipe)


@constexpr(check=False)
def post_cell(name: str, x: Any, h_res: Any, h_out: Any, h_post: Any, backend: Any) -> nn.Cell:
    """Checks and choice, for :func:`mhc_post` and the cell ``MhcPost``."""
    described = checks.tensor(name, "x", x)
    h_res_spec = None if h_res is None else checks.tensor(name, "h_res", h_res)
    n, d = checks.mhc_post(
        name, described, h_res_spec, checks.tensor(name, "h_out", h_out), checks.tensor(name, "h_post", h_post)
    )
    job = Job("mhc_post", n, d, described.dtype, identity=h_res is None, dynamic=None in described.shape)
    return _select(name, job, backend, _MhcPost)


def mhc_sinkhorn(
    h_res: Tensor,
    *,
    num_iters: int = 20,
    eps: float = 1e-6,
    recipe: str = "deepseek_v4",
    backend: str = "auto",
) -> Tensor:
    """Logits to nearly doubly stochastic matrices, by Sinkhorn's alternating normalisation (aclnnMhcSinkhorn).

    ``"deepseek_v4"``, what the kernels do::

        y = softmax(h_res, -1) + eps;  y = y / (colsum(y) + eps)
        num_iters - 1 times:           y = y / (rowsum(y) + eps);  y = y / (colsum(y) + eps)

    ``"paper"``, of the mHC paper::

        y = exp(h_res - rowmax(h_res))
        num_iters times:               y = y / (rowsum(y) + eps);  y = y / (colsum(y) + eps)

    A softmax is a row step, so the two take the same steps and differ in where eps enters. The gradient is the
    derivative of what was computed, converged or not.

    Args:
        h_res: logits, [B, S, N, N] or [T, N, N], float32.
        num_iters: >= 1; the kernels take 1 to 100.
        eps: added to every sum before it divides, >= 0.
        recipe: ``"deepseek_v4"`` or ``"paper"``.
        backend: ``"auto"``, or a backend by name.

    Returns:
        The matrices, in the shape of h_res, float32. Row index i is the stream that is read, column index j the stream
        that is written, see :func:`mhc_post`.

    Raises:
        TypeError: an argument of the wrong type or dtype.
        ValueError: matrices that are not square, an empty tensor, num_iters below 1, an unknown recipe or backend.
        RuntimeError: a backend asked for by name that this machine lacks.
    """
    return first(sinkhorn_cell("mhc_sinkhorn", spec(h_res), num_iters, eps, recipe, backend)(h_res))


def mhc_post(x: Tensor, h_res: Optional[Tensor], h_out: Tensor, h_post: Tensor, *, backend: str = "auto") -> Tensor:
    """Mix the streams and write the layer's output back (aclnnMhcPost)::

        out[j] = h_post[j] * h_out + sum_i h_res[i, j] * x[i]

    Mind the orientation: the first index of h_res is the stream that is read, the second the stream that is written. As
    a matrix product over streams this is the transpose of h_res times x. (CANN, DeepSeek V4 and Hugging Face use this
    convention; the mHC paper writes the other one.)

    Args:
        x: the residual streams, [B, S, N, D] or [T, N, D], bfloat16, float16 or float32.
        h_res: mixing matrices, [..., N, N], float32. ``None`` means the identity.
        h_out: the layer's output, [..., D], in the dtype of x.
        h_post: what each stream takes of it, [..., N], float32.
        backend: ``"auto"``, or a backend by name.

    Returns:
        The next streams, in shape and dtype of x.

    Raises:
        TypeError, ValueError, RuntimeError: as :func:`mhc_pre`.
    """
    return post_cell("mhc_post", spec(x), spec(h_res), spec(h_out), spec(h_post), backend)(x, h_res, h_out, h_post)


def expand_streams(h: Tensor, num_streams: int) -> Tensor:
    """Start the residual streams: every stream a copy of h.

    Args:
        h: [..., D], float32, bfloat16 or float16.
        num_streams: N, >= 1.

    Returns:
        [..., N, D], in the dtype of h.
    """
    repeats = _expand_repeats(spec(h), num_streams)
    return ops.cast(ops.tile(ops.cast(h, ms.float32).expand_dims(-2), repeats), h.dtype)


@constexpr(check=False)
def _expand_repeats(h: Any, num_streams: Any) -> Tuple[int, ...]:
    shape = checks.expand_streams("expand_streams", checks.tensor("expand_streams", "h", h), num_streams)
    return (1,) * (len(shape) - 1) + (int(num_streams), 1)


def merge_streams(x: Tensor) -> Tensor:
    """End the residual streams: their mean.

    Args:
        x: [..., N, D], float32, bfloat16 or float16.

    Returns:
        [..., D], in the dtype of x. The mean is taken in float32.
    """
    n = _num_streams(spec(x))
    return ops.cast(mint.sum(ops.cast(x, ms.float32), -2) / n, x.dtype)


@constexpr(check=False)
def _num_streams(x: Any) -> int:
    return checks.merge_streams("merge_streams", checks.tensor("merge_streams", "x", x))


def mhc_head(
    x: Tensor, phi: Tensor, scale: Tensor, bias: Tensor, *, norm_eps: float = 1e-6, hc_eps: float = 1e-6
) -> Tensor:
    """Collapse N streams into one by learned gates, as DeepSeek V4 ends a network.

    With xf the N*D values of one token::

        inv_rms = 1 / sqrt(mean(xf**2) + norm_eps)
        gates   = sigmoid(scale * (xf @ phi.T) * inv_rms + bias) + hc_eps
        out     = sum_i gates[i] * x[i]

    Args:
        x: [B, S, N, D] or [T, N, D], bfloat16, float16 or float32.
        phi: [N, N*D], float32.
        scale: [1], float32.
        bias: [N], float32.
        norm_eps: added to the mean square, >= 0.
        hc_eps: added to every gate, >= 0.

    Returns:
        [..., D], in the dtype of x.

    Raises:
        TypeError, ValueError: as :func:`mhc_pre`.
    """
    cell = _head_cell(spec(x), spec(phi), spec(scale), spec(bias), norm_eps, hc_eps)
    return cell(x, phi, scale, bias)


@constexpr(check=False)
def _head_cell(x: Any, phi: Any, scale: Any, bias: Any, norm_eps: Any, hc_eps: Any) -> nn.Cell:
    name = "mhc_head"
    tensors = {"x": x, "phi": phi, "scale": scale, "bias": bias}
    specs = {argument: checks.tensor(name, argument, value) for argument, value in tensors.items()}
    checks.mhc_head(name, **specs, norm_eps=norm_eps, hc_eps=hc_eps)
    return _head(float(norm_eps), float(hc_eps))


@cache
def _head(norm_eps: float, hc_eps: float) -> nn.Cell:
    return _MhcHead(norm_eps, hc_eps)
