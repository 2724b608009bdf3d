"""Looking into a network: what mixes its streams, and what they hold in the middle.

Both functions run the network once, eagerly, with hooks on its ``MhcPost`` cells. The context mode, ``ms.jit`` and
dropout are put aside meanwhile and put back afterwards, also after an error; nothing is compiled anew.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from numpy.typing import NDArray

from ms_mhc import HyperConnection, MhcPost, merge_streams

Array = NDArray[np.float64]


def as_array(value: Any) -> Array:
    """A tensor or array in float64."""
    if isinstance(value, Tensor):
        value = value.astype(ms.float32).asnumpy()
    if np.iscomplexobj(value):
        raise TypeError("a matrix of complex numbers mixes no streams; real ones are accepted")
    return np.asarray(value, dtype=np.float64)


def mixing_matrices(network: nn.Cell, *probe: Any) -> List[Tuple[str, Array]]:
    """The matrices by which a network mixes its streams when it is given the probe.

    One forward pass, eagerly, whatever the context mode and the ``ms.jit`` in the network; dropout is off meanwhile.
    Mode, training flags and hooks are put back afterwards, also after an error, and nothing is compiled anew. What is
    collected is what each ``MhcPost`` cell was given, so the matrices are the ones applied, projected or not.

    Args:
        network: any cell with ``HyperConnection`` or ``MhcPost`` cells in it, at any depth.
        probe: the network's inputs.

    Returns:
        Name and h_res ``[..., N, N]`` of each layer, in the order in which they ran. The name is the
        ``HyperConnection``'s, or that of an ``MhcPost`` which stands alone. An h_res of ``None`` is the identity.

    Raises:
        ValueError: the network has no such cell, or none of them ran.
    """
    names = _posts(network)
    collected: List[Tuple[str, Array]] = []

    def collect(post: nn.Cell, inputs: Tuple[Any, ...]) -> None:
        x, h_res = inputs[0], inputs[1]
        *tokens, n, _ = x.shape
        matrix = np.broadcast_to(np.eye(n), (*tokens, n, n)) if h_res is None else as_array(h_res)
        collected.append((names[id(post)][0], matrix))

    _run_with_hooks(network, probe, [(post, "register_forward_pre_hook", collect) for _, post in names.values()])
    if not collected:
        raise ValueError(f"mixing_matrices: none of {', '.join(name for name, _ in names.values())} ran on the probe")
    return collected


def residual_stream(network: nn.Cell, layer: str, *inputs: Any) -> Tensor:
    """The merged residual stream behind one layer of a network, as interpretability tools read it.

    Args:
        network: any cell with ``HyperConnection`` or ``MhcPost`` cells in it, at any depth.
        layer: the name of a ``HyperConnection`` in the network, as ``cells_and_names()`` calls it, or of an ``MhcPost``
            that stands alone.
        inputs: the network's inputs.

    Returns:
        The mean over the streams that leave the layer, [..., D], in the dtype of x. A layer that runs several times
        gives its last run.

    Raises:
        ValueError: there is no such layer, or it did not run.
    """
    posts = dict(_posts(network).values())
    if not isinstance(layer, str):
        raise TypeError(f"residual_stream: layer must be the name of a layer, but got {layer!r}")
    if layer not in posts:
        raise ValueError(f"residual_stream: there is no layer {layer!r}; the network has {', '.join(posts)}")
    seen: List[Tensor] = []

    def keep(post: nn.Cell, given: Tuple[Any, ...], streams: Tensor) -> None:
        seen.append(streams)

    _run_with_hooks(network, inputs, [(posts[layer], "register_forward_hook", keep)])
    if not seen:
        raise ValueError(f"residual_stream: the layer {layer!r} did not run on these inputs")
    return merge_streams(seen[-1])


def _run_with_hooks(
    network: nn.Cell, inputs: Sequence[Any], hooks: Sequence[Tuple[nn.Cell, str, Callable[..., None]]]
) -> None:
    with _eagerly(network), ExitStack() as registered:
        for cell, register, hook in hooks:
            registered.callback(getattr(cell, register)(hook).remove)
        network(*inputs)


def _posts(network: nn.Cell) -> Dict[int, Tuple[str, nn.Cell]]:
    """By identity, each MhcPost cell and its layer's name."""
    if not isinstance(network, nn.Cell):
        raise TypeError(f"network must be a mindspore.nn.Cell, but got {type(network).__name__}")
    cells = list(network.cells_and_names())
    names = {id(cell): (name, cell) for name, cell in cells if isinstance(cell, MhcPost)}
    for name, cell in cells:
        if isinstance(cell, HyperConnection):
            names[id(cell.post)] = (name, cell.post)
    if not names:
        raise ValueError(f"{type(network).__name__} has no HyperConnection and no MhcPost in it")
    return names


@contextmanager
def _eagerly(network: nn.Cell) -> Iterator[None]:
    """PyNative mode, ``ms.jit`` off, dropout off; hooks work only so. Compiled graphs stay as they are."""
    mode, jit = ms.get_context("mode"), os.environ.get("MS_JIT")
    training = [(cell, cell.training) for _, cell in network.cells_and_names()]
    try:
        ms.set_context(mode=ms.PYNATIVE_MODE)
        os.environ["MS_JIT"] = "0"  # read by MindSpore at each call
        for cell, _ in training:
            cell.training = False
        yield
    finally:
        for cell, flag in training:
            cell.training = flag
        if jit is None:
            os.environ.pop("MS_JIT", None)  # an error before it was set must not be hidden by another one here
        else:
            os.environ["MS_JIT"] = jit
        ms.set_context(mode=mode)
