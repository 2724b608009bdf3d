"""Initial values that make a block with mHC the plain residual block it wraps, while the gates can still learn."""

from __future__ import annotations

import math
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor
from mindspore.common.initializer import Normal, initializer

PHI_STD = 1e-4
ALPHA = 0.01
RES_OFF_DIAGONAL = -5.0
SATURATED = 20.0  # sigmoid(20) is 1 in fp32


def phi(rows: int, columns: int) -> Tensor:
    """The projection, [rows, columns]: small random numbers, drawn with MindSpore's seed."""
    return initializer(Normal(sigma=PHI_STD), (rows, columns), ms.float32)


def mean_logits(num_streams: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """[N]: their sigmoid is 1/N, so that a sum over equal streams is their mean."""
    # sigmoid(-log(n - 1)) = 1 / n; at n = 1 there is no such logit, a large one stands in
    value = -math.log(num_streams - 1) if num_streams > 1 else SATURATED
    return np.full(num_streams, value, np.float32)


def bias(num_streams: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The bias of MhcPre, [N*N+2N]: h_pre = 1/N, h_post = 1, h_res close to the identity after Sinkhorn."""
    n = num_streams
    res = RES_OFF_DIAGONAL * (1.0 - np.eye(n))
    parts = (mean_logits(n), np.zeros(n), res.reshape(-1))
    return np.concatenate(parts).astype(np.float32)
