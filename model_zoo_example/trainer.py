"""Network, optimizer and data of a run, and what a step does with them."""

from __future__ import annotations

from typing import Any, Dict, Iterator, NamedTuple, Optional

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, amp
from numpy.typing import NDArray

from model_zoo_example.checkpoint import Checkpoint, check_names
from model_zoo_example.data import Corpus, train_batches, validation_batches
from model_zoo_example.machine import Place
from model_zoo_example.model import Loss, Transformer
from model_zoo_example.settings import Settings
from model_zoo_example.step import Collect, Gradients, Norm, Sum, Update, learning_rates, make_optimizer

SCALE_FACTOR = 2
RANDOM_STATE = "random_state"


class Outcome(NamedTuple):
    """What a step gave. Reading a number waits for the device.

    Attributes:
        loss: of the batch before the update, in nats per byte.
        gradient_norm: before clipping; not finite where float16 overflowed, and then there was no update.
        share_stopping: of the processes, those that were asked to stop.
    """

    loss: Tensor
    gradient_norm: Tensor
    share_stopping: Optional[Tensor]


class Trainer:
    """A run as far as it computes: it writes nothing and prints nothing.

    Args:
        settings: of the run.
        corpus: the text.
        place: of this process.

    Attributes:
        network: the transformer.
        step: the number of steps done.
    """

    def __init__(self, settings: Settings, corpus: Corpus, place: Optional[Place] = None) -> None:
        corpus.check(settings.context)
        ms.set_seed(settings.seed)  # MhcPre draws phi
        self.settings, self.corpus = settings, corpus
        self.place = place if place is not None else Place()
        self.step = 0
        self.network = Transformer(settings)
        self.loss = Loss(self.network)
        parameters = self.network.trainable_params()
        self.optimizer = make_optimizer(self.network, settings)
        self.scaler: Any = None
        if settings.dtype == "float16":
            self.scaler = amp.DynamicLossScaler(settings.loss_scale, SCALE_FACTOR, settings.loss_scale_window)
        self._rates = learning_rates(settings)
        self._gradients = Gradients(self.loss, parameters)
        self._sum, self._norm = Sum(), Norm()
        self._update = Update(self.optimizer, settings.clip_norm)
        processes = self.place.processes
        self._collect = Collect(parameters, processes) if processes > 1 else None
        self._batches: Optional[Iterator[Any]] = None

    def train_step(self, stopping: bool = False) -> Outcome:
        """One step on the next batch. ``stopping`` is told to the other processes."""
        if self._batches is None:
            self._batches = train_batches(self.corpus, self.settings, self.step, self.place.rank, self.place.processes)
        parts = self.settings.accumulation
        scale = self.loss_scale
        share_of_scale = scale / (parts * self.place.processes)
        loss, gradients = self._part(share_of_scale)
        for _ in range(1, parts):
            more_loss, more = self._part(share_of_scale)
            loss, gradients = loss + more_loss, self._sum(*gradients, *more)
        loss, share = loss / parts, None
        if self._collect is not None:
            numbers = ms.ops.stack([loss, Tensor(float(stopping), ms.float32)])
            gradients, numbers = self._collect(numbers, *gradients)
            loss, share = numbers[0], numbers[1]
        gradients, norm = self._norm(Tensor(1.0 / scale, ms.float32), *gradients)
        if self.scaler is None:
            self._update(norm, *gradients)
        else:
            finite = bool(np.isfinite(norm.asnumpy()))
            if finite:
                self._update(norm, *gradients)
            self.scaler.adjust(Tensor(finite))
        self.step += 1
        return Outcome(loss, norm, share)

    def _part(self, scale: float) -> Any:
        assert self._batches is not None
        tokens, targets = next(self._batches)
        return self._gradients(tokens, targets, Tensor(scale, ms.float32))

    @property
    def loss_scale(self) -> float:
        """What the loss is multiplied with before the gradients are taken; 1 except for float16."""
        return 1.0 if self.scaler is None else float(self.scaler.scale_value.asnumpy())

    @property
    def updates(self) -> int:
        """Steps whose update took place; after an overflow in float16 there is none."""
        return int(self.optimizer.global_step.asnumpy().item())

    def learning_rate(self) -> float:
        """That of the step which was done last."""
        return float(self._rates[max(0, self.updates - 1)])

    def validation_loss(self) -> float:
        """Mean loss over the validation text, in nats per byte; the mean over the processes."""
        batches = validation_batches(self.corpus, self.settings, self.place.rank, self.place.processes)
        losses = [float(self.loss(Tensor(tokens), Tensor(targets)).asnumpy()) for tokens, targets in batches]
        mean = float(np.mean(losses))
        if self.place.processes > 1:
            total = ms.ops.AllReduce()(Tensor(mean, ms.float32))
            mean = float(total.asnumpy()) / self.place.processes
        return mean

    def wait_for_the_others(self) -> None:
        """Come back when all processes of the run have called this."""
        if self.place.processes > 1:
            ms.ops.AllReduce()(Tensor(0.0, ms.float32)).asnumpy()

    def parameters(self) -> Dict[str, Parameter]:
        """All that a checkpoint holds and that changes during training, by name."""
        names = {id(parameter): name for name, parameter in self.network.parameters_and_names()}
        named = {f"network.{name}": parameter for name, parameter in self.network.parameters_and_names()}
        optimizer = self.optimizer
        for kind, moments in (("mean", optimizer.moments1), ("mean_square", optimizer.moments2)):
            # MindSpore keeps the moments in the parameters' order, and calls them by names that depend on nesting
            for parameter, moment in zip(optimizer.parameters, moments):
                named[f"optimizer.{kind}.{names[id(parameter)]}"] = moment
        named["optimizer.updates"] = optimizer.global_step
        if self.scaler is not None:
            named["loss_scale.scale"] = self.scaler.scale_value
            named["loss_scale.counter"] = self.scaler.counter
        return named

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint; before the first step.

        Raises:
            CheckpointError: it does not hold the tensors of this run.
        """
        wanted = self.parameters()
        check_names(checkpoint, {**wanted, RANDOM_STATE: ms.get_rng_state()})
        for name, parameter in wanted.items():
            parameter.set_data(Tensor(checkpoint.arrays[name]))
        ms.set_rng_state(Tensor(checkpoint.arrays[RANDOM_STATE]))
        self.step = int(checkpoint.facts["step"])

    def arrays(self) -> Dict[str, NDArray[Any]]:
        """What a checkpoint holds: the values of :meth:`parameters`, and the state of MindSpore's generator.

        Nothing here draws from that generator once training has begun; a network with dropout would.
        """
        arrays = {name: parameter.asnumpy() for name, parameter in self.parameters().items()}
        arrays[RANDOM_STATE] = ms.get_rng_state().asnumpy()
        return arrays
