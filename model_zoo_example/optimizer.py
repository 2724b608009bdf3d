"""AdamW in a dozen plain operators.

``mindspore.nn.AdamWeightDecay`` would do on the CPU and on Ascend hardware alike. This one is made of operators which
are aclnn calls on Ascend, as the rest of the example is, and takes the learning rate as an input.
"""

from __future__ import annotations

import math
from typing import List, Tuple

from mindspore import Parameter, ParameterTuple, Tensor, mint, nn

BETA1, BETA2, EPS = 0.9, 0.98, 1e-6


class AdamW(nn.Cell):
    """Adam with decoupled weight decay, which the matrices of the transformer get; mHC, norms and positions do not.

    Args:
        parameters: what to train.
        weight_decay: times the learning rate, the part of a matrix that is taken away in a step.

    Inputs:
        gradients: one for each parameter.
        learning_rate, step_size: float32 scalars. step_size is the learning rate with Adam's bias correction, see
            :func:`step_size`.
    """

    def __init__(self, parameters: List[Parameter], weight_decay: float) -> None:
        super().__init__()
        self.trained = ParameterTuple(parameters)
        self.means = self.trained.clone("adam_mean", init="zeros")
        self.squares = self.trained.clone("adam_square", init="zeros")
        self.decays = tuple(weight_decay if p.ndim == 2 and p.name.endswith(".weight") else 0.0 for p in parameters)

    def construct(self, gradients: Tuple[Tensor, ...], learning_rate: Tensor, step_size: Tensor) -> None:
        for i in range(len(self.decays)):
            parameter, gradient = self.trained[i], gradients[i]
            mean = self.means[i] * BETA1 + gradient * (1.0 - BETA1)
            square = self.squares[i] * BETA2 + mint.square(gradient) * (1.0 - BETA2)
            change = mean / (mint.sqrt(square) + EPS) * step_size
            if self.decays[i] > 0.0:
                change = change + parameter * (learning_rate * self.decays[i])
            self.means[i].copy_(mean)
            self.squares[i].copy_(square)
            parameter.copy_(mint.sub(parameter, change))


def step_size(learning_rate: float, step: int) -> float:
    """The learning rate of step 0, 1, ... corrected for the moments' start at zero."""
    return learning_rate * math.sqrt(1.0 - BETA2 ** (step + 1)) / (1.0 - BETA1 ** (step + 1))
