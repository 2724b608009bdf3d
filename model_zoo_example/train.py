"""Train a small transformer with mHC on the text of Python's help topics, then let it write.

Examples:
    python model_zoo_example/train.py                      # mHC, graph mode, CPU
    python model_zoo_example/train.py --residual plain     # the ordinary transformer, for comparison
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from config import CHOICES, TrainingConfig, load
from data import Corpus, python_topics
from model import Loss, ModelConfig, Transformer
from optimizer import AdamW, step_size

DEFAULT_CONFIG = Path(__file__).resolve().parent / "configs" / "tiny.json"
PROMPT = "The value of "
TEMPERATURE = 0.7
REPORT_EVERY = 25  # steps between two progress lines


class TrainStep(nn.Cell):
    """One training step: loss, gradients and update, compiled as one graph in graph mode."""

    def __init__(self, loss: Loss, config: TrainingConfig) -> None:
        super().__init__()
        parameters = loss.trainable_params()
        self.loss_and_gradients = ops.value_and_grad(loss, None, parameters)
        self.optimizer = AdamW(parameters, config.weight_decay)

    def construct(self, tokens: Tensor, targets: Tensor, learning_rate: Tensor, step_size: Tensor) -> Tensor:
        loss, gradients = self.loss_and_gradients(tokens, targets)
        self.optimizer(gradients, learning_rate, step_size)
        return loss


def learning_rate(step: int, config: TrainingConfig) -> float:
    """A linear rise over warmup_steps, then half a cosine down to a tenth."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    done = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    return config.learning_rate * (0.55 + 0.45 * math.cos(math.pi * done))


def train(step: TrainStep, corpus: Corpus, context: int, config: TrainingConfig, first: int) -> List[float]:
    """Run the steps from ``first`` on, print how it goes, and return every step's loss."""
    losses: List[float] = []
    reported, since = first, time.perf_counter()
    for number in range(first, config.steps):
        tokens, targets = corpus.batch(number, config.batch_size, context, config.seed)
        rate = learning_rate(number, config)
        loss = step(tokens, targets, Tensor(rate, ms.float32), Tensor(step_size(rate, number), ms.float32))
        losses.append(float(loss.asnumpy()))
        now = time.perf_counter()
        if number == first:  # it includes compiling, so the speed is counted from the next one
            say(f"step {number + 1:5d}  loss {losses[-1]:.4f}  first step: {now - since:.1f} s with compiling")
        elif (number + 1) % REPORT_EVERY == 0 or number + 1 == config.steps:
            tokens_per_second = (number - reported) * config.batch_size * context / (now - since)
            say(f"step {number + 1:5d}  loss {losses[-1]:.4f}  {tokens_per_second:.0f} tokens/s")
        else:
            continue
        reported, since = number, now
    return losses


def evaluate(loss: Loss, corpus: Corpus, context: int, config: TrainingConfig) -> float:
    """Mean loss over the validation batches."""
    batches = corpus.validation_batches(config.validation_batches, config.batch_size, context)
    return float(np.mean([float(loss(tokens, targets).asnumpy()) for tokens, targets in batches]))


def sample(network: Transformer, corpus: Corpus, context: int, config: TrainingConfig) -> str:
    """Let the model write after PROMPT. Its input has one length throughout, so that it is compiled once."""
    rng = np.random.default_rng(config.seed)
    written = list(corpus.encode(PROMPT))
    for _ in range(config.sample_length):
        seen = written[-context:]
        window = np.zeros((1, context), np.int32)
        window[0, : len(seen)] = seen  # what follows does not matter: attention looks back only
        logits = network(Tensor(window)).asnumpy()[0, len(seen) - 1].astype(np.float64) / TEMPERATURE
        chances = np.exp(logits - logits.max())
        written.append(rng.choice(len(chances), p=chances / chances.sum()))
    return corpus.decode(np.array(written))


def state(network: Transformer, optimizer: AdamW) -> Dict[str, Parameter]:
    """All that a checkpoint holds of them, by name."""
    named = list(network.parameters_and_names())
    moments = {"adam_mean": optimizer.means, "adam_square": optimizer.squares}
    stored = dict(named)
    for prefix, values in moments.items():
        stored.update((f"{prefix}.{name}", value) for (name, _), value in zip(named, values))
    return stored


def save(path: Path, parameters: Dict[str, Parameter], steps_done: int, vocabulary: str) -> None:
    """Write one file with the parameters, the number of steps done and the vocabulary."""
    entries = [{"name": name, "data": parameter} for name, parameter in parameters.items()]
    ms.save_checkpoint(entries, str(path), append_dict={"steps_done": steps_done, "vocabulary": vocabulary})


def resume(path: Path, parameters: Dict[str, Parameter], vocabulary: str) -> int:
    """Read what :func:`save` wrote and return the number of steps done.

    Raises:
        ValueError: the file is missing or broken, or belongs to another network or another text.
    """
    if not path.is_file():
        raise ValueError(f"--resume: there is no file {path}")
    try:
        stored = ms.load_checkpoint(str(path))
    except (OSError, ValueError) as error:
        raise ValueError(f"--resume: {path} is not a checkpoint") from error
    steps_done, stored_vocabulary = stored.pop("steps_done", None), stored.pop("vocabulary", None)
    if steps_done is None or stored_vocabulary != vocabulary:
        raise ValueError(f"--resume: {path} was written for another text (another version of Python?)")
    for name in sorted(parameters.keys() | stored.keys()):
        if name not in parameters or name not in stored or parameters[name].shape != stored[name].shape:
            raise ValueError(f"--resume: {path} holds another network than these flags describe: {name} differs")
    for name, parameter in parameters.items():
        parameter.set_data(stored[name])
    return int(steps_done)


def say(line: str) -> None:
    """Print at once, also into a pipe."""
    print(line, flush=True)


def arguments(argv: Optional[List[str]]) -> argparse.Namespace:
    """The flags. One that is not given leaves the setting of the config file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=DEFAULT_CONFIG, help="settings file (default: %(default)s)")
    parser.add_argument("--mode", choices=("graph", "pynative"), default="graph", help="default: graph")
    parser.add_argument("--device", choices=("CPU", "Ascend"), default="CPU", help="default: CPU")
    unset = argparse.SUPPRESS
    parser.add_argument("--residual", choices=CHOICES["residual"], default=unset, help="mHC or plain additions")
    parser.add_argument("--num-streams", type=int, default=unset, metavar="N", help="residual streams of mHC")
    parser.add_argument("--backend", default=unset, help="what computes mHC: auto, composite, aclnn, ...")
    parser.add_argument("--dtype", choices=CHOICES["dtype"], default=unset, help="of the activations")
    parser.add_argument("--steps", type=int, default=unset, help="training steps; 0 only evaluates and samples")
    parser.add_argument("--batch-size", type=int, default=unset, help="windows of text per step")
    parser.add_argument("--learning-rate", type=float, default=unset, help="the highest one")
    parser.add_argument("--seed", type=int, default=unset, help="of weights, batches and the sampled text")
    parser.add_argument("--losses", type=Path, metavar="FILE", help="write the training losses there, a JSON list")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="save the result there (*.ckpt)")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="go on from such a file, up to --steps in total")
    return parser.parse_args(argv)


def set_up(args: argparse.Namespace, dtype: str, seed: int) -> None:
    """Choose device and mode, after a look at what would otherwise fail late.

    Raises:
        ValueError: a flag that cannot be served here.
    """
    for flag, path in (("--losses", args.losses), ("--checkpoint", args.checkpoint)):
        if path is not None and (path.is_dir() or not path.resolve().parent.is_dir()):
            raise ValueError(f"{flag}: {path} is not a file name in an existing folder")
    if args.checkpoint is not None and args.checkpoint.suffix != ".ckpt":
        raise ValueError(f"--checkpoint: the name must end in .ckpt, but got {args.checkpoint}")
    if args.device == "CPU" and dtype == "bfloat16":
        raise ValueError("dtype bfloat16 needs --device Ascend: MindSpore's CPU backend cannot multiply such matrices")
    ms.set_context(mode=ms.GRAPH_MODE if args.mode == "graph" else ms.PYNATIVE_MODE)
    try:
        ms.set_device(args.device)
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"--device {args.device}: MindSpore cannot use it here: {reason}") from error
    if args.device == "Ascend":
        ms.set_context(jit_config={"jit_level": "O0"})
    ms.set_seed(seed)


@dataclass
class Job:
    """What is to be trained, and from which step on."""

    model: ModelConfig
    config: TrainingConfig
    corpus: Corpus
    network: Transformer
    loss: Loss
    step: TrainStep
    first: int


def prepare(args: argparse.Namespace) -> Job:
    """Everything up to the first computation.

    Raises:
        ValueError: a flag, a setting or a file that cannot be used.
        RuntimeError: a backend of mHC asked for by name which this machine lacks.
    """
    model, config = load(args.config, vars(args))
    set_up(args, model.dtype, config.seed)
    corpus = python_topics()
    network = Transformer(len(corpus.vocabulary), model, config.seed)
    loss = Loss(network)
    step = TrainStep(loss, config)
    first = resume(args.resume, state(network, step.optimizer), corpus.vocabulary) if args.resume else 0
    return Job(model, config, corpus, network, loss, step, first)


def run(args: argparse.Namespace, job: Job) -> None:
    """Evaluate, train, evaluate, write."""
    started = time.perf_counter()
    model, config, corpus = job.model, job.config, job.corpus
    count = sum(parameter.size for parameter in job.network.trainable_params())
    residual = f"mHC with {model.num_streams} streams" if model.residual == "mhc" else "plain residual"
    text = f"{len(corpus.train)} characters to train on, {len(corpus.vocabulary)} different"
    say(f"{residual}, {count} parameters, {text}")

    before = evaluate(job.loss, corpus, model.context, config)
    say(f"validation loss before training: {before:.4f} nats per character")
    losses = train(job.step, corpus, model.context, config, job.first)
    if args.losses is not None:
        args.losses.write_text(json.dumps(losses) + "\n", encoding="utf-8")
    if args.checkpoint is not None:
        steps_done = max(job.first, config.steps)
        save(args.checkpoint, state(job.network, job.step.optimizer), steps_done, corpus.vocabulary)
    after = evaluate(job.loss, corpus, model.context, config)
    say(f"\nThe model writes:\n\n{sample(job.network, corpus, model.context, config)}\n")
    say(f"validation loss: {before:.4f} before, {after:.4f} after; {time.perf_counter() - started:.0f} s in all")


def main(argv: Optional[List[str]] = None) -> int:
    """The program. Returns the exit status."""
    args = arguments(argv)
    try:
        job = prepare(args)
    except (ValueError, RuntimeError) as error:
        print(f"train.py: {error}", file=sys.stderr)
        return 2
    run(args, job)
    return 0


if __name__ == "__main__":
    sys.exit(main())
