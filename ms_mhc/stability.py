"""How much the mixing of the streams amplifies the signal and the gradient: the mHC paper's gain, made visible.

A layer mixes the streams by ``out[j] = sum_i h_res[i, j] * x[i]`` (:func:`ms_mhc.mhc_post`). The largest absolute row
sum of a map's matrix is the most by which it can amplify the largest entry of what it is given. Two maps matter:

- **forward**: as a matrix over streams it is the *transpose* of h_res, so its gain is the largest absolute *column*
  sum of h_res: output stream j takes ``sum_i |h_res[i, j]|`` at most.
- **backward**: ``grad_x[i] = sum_j h_res[i, j] * grad_out[j]``, so its gain is the largest absolute *row* sum of h_res.

(In the paper's notation, which writes the transpose, these are the row sum and the column sum.) A doubly stochastic
h_res has both gains at 1, and so has every product of such matrices; without the constraint the gains multiply with
depth. Only the mixing is measured: what a layer adds by ``h_post * h_out`` is not part of it.
"""

from __future__ import annotations

import csv
import logging
import math
import os
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np
from mindspore import nn
from mindspore.train import Callback
from numpy.typing import NDArray

from ms_mhc import checks, strict_json
from ms_mhc.probe import as_array, mixing_matrices

Array = NDArray[np.float64]
Row = Dict[str, Union[int, float, str]]

logger = logging.getLogger("ms_mhc")

_SUFFIXES = (".csv", ".jsonl")


class Amplification(NamedTuple):
    """Gains, each ``[L, ...]``: layer first, then the token dimensions of the matrices.

    Attributes:
        forward: by which layer l alone can amplify the signal.
        backward: by which layer l alone can amplify the gradient.
        composite_forward: the signal, from the input of layer 0 to the output of layer l.
        composite_backward: the gradient, from the output of the last layer to the input of layer l.
    """

    forward: Array
    backward: Array
    composite_forward: Array
    composite_backward: Array


def amplification(matrices: Sequence[Any]) -> Amplification:
    """The gains of some mixing matrices and of their products.

    Args:
        matrices: h_res of each layer, in the order in which the signal passes: L arrays or Tensors ``[..., N, N]`` of
            equal shape, or one array ``[L, ..., N, N]``. Row index: the stream that is read; column index: the stream
            that is written. Computed in float64.

    Returns:
        The four gains per layer and token. The entry of ``composite_forward`` for the last layer and that of
        ``composite_backward`` for the first are the gains of the whole depth. NaN or inf in a matrix gives NaN or inf.

    Raises:
        TypeError: no sequence, or a matrix that holds no real numbers.
        ValueError: no matrices, matrices that are not square, or layers of unequal shape.
    """
    try:
        layers = [as_array(matrix) for matrix in matrices]
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"amplification: matrices must be a sequence of Tensors or arrays [..., N, N] of real numbers, but got "
            f"{type(matrices).__name__}: {error}"
        ) from error
    if not layers:
        raise ValueError("amplification: no matrices were given")
    for index, matrix in enumerate(layers):
        if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2]:
            raise ValueError(f"amplification: matrix {index} has shape {matrix.shape}; accepted: [..., N, N]")
        if matrix.shape != layers[0].shape:
            raise ValueError(
                f"amplification: matrix {index} has shape {matrix.shape}, but matrix 0 has {layers[0].shape}; "
                f"a product over layers needs the same tokens and streams in each"
            )
    with np.errstate(invalid="ignore", over="ignore"):
        return Amplification(
            forward=np.stack([_column_gain(h) for h in layers]),
            backward=np.stack([_row_gain(h) for h in layers]),
            composite_forward=np.stack([_column_gain(p) for p in _products(layers)]),
            composite_backward=np.stack([_row_gain(p) for p in _products_to_the_end(layers)]),
        )


def _row_gain(h: Array) -> Array:
    return np.asarray(np.abs(h).sum(axis=-1).max(axis=-1))


def _column_gain(h: Array) -> Array:
    return np.asarray(np.abs(h).sum(axis=-2).max(axis=-1))


def _products(layers: Sequence[Array]) -> Iterator[Array]:
    """``h[0] @ ... @ h[l]``; its transpose is what the signal has been through after layer l."""
    product = layers[0]
    yield product
    for h in layers[1:]:
        product = product @ h
        yield product


def _products_to_the_end(layers: Sequence[Array]) -> List[Array]:
    """``h[l] @ ... @ h[L - 1]``: what the gradient has been through at the input of layer l."""
    products = [layers[-1]]
    for h in layers[-2::-1]:
        products.append(h @ products[-1])
    return products[::-1]


def measure(network: nn.Cell, *probe: Any) -> List[Row]:
    """The gains of a network's layers on a probe, as plain rows.

    Args:
        network, probe: as for :func:`ms_mhc.probe.mixing_matrices`.

    Returns:
        One dict per layer, in the order in which they ran: ``index``, ``layer`` (its name), and the four gains of
        :class:`Amplification`, each as the mean over tokens and, with the suffix ``_max``, as the largest.

    Raises:
        ValueError: as :func:`ms_mhc.probe.mixing_matrices` and :func:`amplification`.
    """
    collected = mixing_matrices(network, *probe)
    gains = amplification([matrix for _, matrix in collected])
    rows: List[Row] = []
    for index, (layer, _) in enumerate(collected):
        row: Row = {"index": index, "layer": layer}
        for name, values in zip(gains._fields, gains):
            row[name] = float(values[index].mean())
            row[f"{name}_max"] = float(values[index].max())
        rows.append(row)
    return rows


class StabilityMonitor(Callback):
    """Records the gains of every layer each few steps, during ``Model.train`` or in a loop of one's own.

    With ``Model.train``: ``model.train(epochs, data, callbacks=[StabilityMonitor(probe)])``. In a loop:
    ``monitor.record(network, step)``. A record costs one forward pass of the probe, so a batch of a few hundred tokens
    is enough. It changes nothing in the training, and draws no random numbers.

    Where a matrix holds NaN or infinity, a warning says at which step and in which layer it is first. The gains of that
    layer are then not finite, and neither are the composite ones that pass through it; JSON, which has no such numbers,
    gets ``"NaN"``, ``"Infinity"`` or ``"-Infinity"``.

    In a distributed run each process measures its own copy of the network. Networks whose parameters are sliced over
    devices by graph mode's automatic parallelism cannot run eagerly and are not supported.

    Args:
        probe: the network's input, or a tuple of its inputs. The network is the one given to ``Model`` (the loss is not
            part of it), or the one given here.
        every: steps between two records, >= 1. With data sinking, steps end only when a sink does.
        file: also append the rows to this file, ``.csv`` or ``.jsonl``. Its folder is created.
        network: measure this cell instead of the one that ``Model`` trains, say the backbone in a cell with its loss.

    Attributes:
        rows: all rows so far: those of :func:`measure` with the key ``step`` in front.

    Raises:
        TypeError: a network that is no cell, ``every`` that is no int, ``file`` that is no path.
        ValueError: ``every`` below 1, a file of another kind or with other columns; while training, as :func:`measure`.
    """

    def __init__(
        self,
        probe: Any,
        *,
        every: int = 100,
        file: Union[str, os.PathLike[str], None] = None,
        network: Optional[nn.Cell] = None,
    ) -> None:
        super().__init__()
        checks.positive_int("StabilityMonitor", "every", every)
        if network is not None and not isinstance(network, nn.Cell):
            raise TypeError(f"StabilityMonitor: network must be a mindspore.nn.Cell, but got {type(network).__name__}")
        self.probe: Tuple[Any, ...] = tuple(probe) if isinstance(probe, (tuple, list)) else (probe,)
        self.every = every
        if file is not None and not isinstance(file, (str, os.PathLike)):
            raise TypeError(f"StabilityMonitor: file must be a path or None, but got {type(file).__name__}")
        self.file = None if file is None else Path(file).absolute()
        if self.file is not None and self.file.suffix not in _SUFFIXES:
            raise ValueError(f"StabilityMonitor: file must end with {' or '.join(_SUFFIXES)}, but got {str(file)!r}")
        if self.file is not None:
            _check_file(self.file)
        self.network = network
        self.rows: List[Row] = []
        self._last = 0

    def record(self, network: nn.Cell, step: int) -> List[Row]:
        """Measure now. Returns the new rows, which are also kept and, with a file, written."""
        new: List[Row] = [{"step": step, **row} for row in measure(network, *self.probe)]
        self.rows += new
        broken = next((row for row in new if not math.isfinite(float(row["forward_max"]))), None)
        if broken is not None:
            logger.warning(
                "StabilityMonitor: at step %s the mixing matrices of layer %s are not finite", step, broken["layer"]
            )
        if self.file is not None:
            try:
                _append(self.file, new)
            except OSError as error:  # a training is worth more than its record
                logger.warning("StabilityMonitor: %s cannot be written: %s; see rows", self.file, error.strerror)
        return new

    def on_train_begin(self, run_context: Any) -> None:
        self._last = run_context.original_args().cur_step_num

    def on_train_step_end(self, run_context: Any) -> None:
        arguments = run_context.original_args()
        step = int(arguments.cur_step_num)
        if step // self.every > self._last // self.every:
            self.record(self.network if self.network is not None else arguments.network, step)
        self._last = step


_GAINS = [name + end for name in Amplification._fields for end in ("", "_max")]
_COLUMNS = ["step", "index", "layer", *_GAINS]


def _check_file(path: Path) -> None:
    """Before the training: whether rows can be appended to a file.

    Raises:
        ValueError: it is a folder, or holds other columns.
    """
    if path.is_dir():
        raise ValueError(f"StabilityMonitor: file must be a file, but {str(path)!r} is a folder")
    if path.suffix == ".csv" and path.is_file():
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            there = next(csv.reader(file), _COLUMNS)
        if there != _COLUMNS:
            raise ValueError(
                f"StabilityMonitor: file {str(path)!r} has other columns: {', '.join(there)}; expected a new file, or "
                f"{', '.join(_COLUMNS)}"
            )


def _append(path: Path, rows: Sequence[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="", encoding="utf-8") as file:
        if path.suffix == ".jsonl":
            file.writelines(strict_json.dumps(row) + "\n" for row in rows)
            return
        writer = csv.DictWriter(file, fieldnames=_COLUMNS)
        if file.tell() == 0:
            writer.writeheader()
        writer.writerows(rows)
