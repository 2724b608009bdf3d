"""One training step: gradients of a part of the batch, their sum, their norm, and the update.

Four cells, compiled one by one in graph mode, because the host decides between them: how many parts there are, and
after an overflow in float16 whether there is an update at all. (A branch on a tensor would put that into one graph; it
costs the graph its static order on Ascend.)

Gradients come in as single arguments: a tuple of tensors is a constant to graph mode, and compiles anew at every call.
"""

from __future__ import annotations

from typing import List, Tuple

from mindspore import Parameter, Tensor, mint, nn, ops

from model_zoo_example.settings import Settings

Tensors = Tuple[Tensor, ...]


class Gradients(nn.Cell):
    """(tokens, targets, scale) to the loss and the gradients of scale * loss."""

    def __init__(self, loss: nn.Cell, parameters: List[Parameter]) -> None:
        super().__init__()
        self.scaled = _Scaled(loss)
        self.differentiate = ops.value_and_grad(self.scaled, None, parameters, has_aux=True)

    def construct(self, tokens: Tensor, targets: Tensor, scale: Tensor) -> Tuple[Tensor, Tensors]:
        (_, loss), gradients = self.differentiate(tokens, targets, scale)
        return loss, gradients


class _Scaled(nn.Cell):
    def __init__(self, loss: nn.Cell) -> None:
        super().__init__()
        self.loss = loss

    def construct(self, tokens: Tensor, targets: Tensor, scale: Tensor) -> Tuple[Tensor, Tensor]:
        loss = self.loss(tokens, targets)
        return loss * scale, loss


class Sum(nn.Cell):
    """Gradients of two parts to those of both."""

    def construct(self, *both: Tensor) -> Tensors:
        half = len(both) // 2
        total: Tensors = ()
        for i in range(half):
            total = total + (both[i] + both[half + i],)
        return total


class Collect(nn.Cell):
    """Gradients summed over the processes of a data-parallel run, and a few numbers averaged.

    Summed, each process having scaled its loss by its share: float16 then overflows where it does in one process.
    """

    def __init__(self, parameters: List[Parameter], processes: int) -> None:
        super().__init__()
        self.processes = processes
        self.reduce = nn.DistributedGradReducer(parameters, mean=False)
        self.add = ops.AllReduce()

    def construct(self, numbers: Tensor, *gradients: Tensor) -> Tuple[Tensors, Tensor]:
        return self.reduce(gradients), self.add(numbers) / self.processes


class Norm(nn.Cell):
    """Gradients times a factor, and their global norm. It is not finite where a gradient is not."""

    def construct(self, factor: Tensor, *gradients: Tensor) -> Tuple[Tensors, Tensor]:
        scaled: Tensors = ()
        total = factor * 0.0
        for i in range(len(gradients)):
            gradient = gradients[i] * factor
            total = total + mint.sum(mint.square(gradient))
            scaled = scaled + (gradient,)
        return scaled, mint.sqrt(total)


class Update(nn.Cell):
    """Clips the gradients, whose norm is given, and takes the optimizer's step."""

    def __init__(self, optimizer: nn.Optimizer, clip_norm: float) -> None:
        super().__init__()
        self.optimizer = optimizer
        self.clip_norm = clip_norm

    def construct(self, norm: Tensor, *gradients: Tensor) -> Tensor:
        clipped: Tensors = gradients
        if self.clip_norm > 0:
            factor = self.clip_norm / mint.maximum(norm, ops.full_like(norm, self.clip_norm))
            clipped = ()
            for i in range(len(gradients)):
                clipped = clipped + (gradients[i] * factor,)
        return ops.depend(norm, self.optimizer(clipped))


def learning_rates(settings: Settings) -> List[float]:
    """The learning rate of every step: a linear rise, then half a cosine down to ``final_rate`` of the highest."""
    # MindSpore's warm-up starts at zero, which would be a step that does nothing
    rise = nn.warmup_lr(settings.learning_rate, settings.warmup_steps + 1, 1, max(1, settings.warmup_steps))[1:]
    rest = settings.steps - settings.warmup_steps
    if rest == 0:
        return list(rise)
    lowest = settings.learning_rate * settings.final_rate
    return list(rise) + list(nn.cosine_decay_lr(lowest, settings.learning_rate, rest, 1, rest))


def make_optimizer(network: nn.Cell, settings: Settings) -> nn.Optimizer:
    """AdamW over all trainable parameters; only the matrices of the transformer decay, not mHC, norms and positions.

    ``nn.AdamWeightDecay``, which does not correct the bias of the moments, is the one AdamW of MindSpore 2.10 that runs
    on the CPU and on Ascend in both modes.
    ``mint.optim.AdamW`` has no CPU kernel ("The kernel AdamW unregistered"), and ``mint.optim.Adam`` leaves the
    parameters as they are on the CPU in PyNative mode, without a word.
    """
    parameters = network.trainable_params()
    decaying = [p for p in parameters if p.ndim == 2 and p.name.endswith(".weight")]
    names = {p.name for p in decaying}
    groups = [
        {"params": decaying, "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.name not in names], "weight_decay": 0.0},
        {"order_params": parameters},
    ]
    return nn.AdamWeightDecay(groups, learning_rates(settings), settings.beta1, settings.beta2, eps=1e-6)
