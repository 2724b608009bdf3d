"""Train a transformer with mHC on any text.

    python -m model_zoo_example.train --config configs/tiny.yaml
    python -m model_zoo_example.train --config configs/tiny.yaml --residual plain --steps 300
    python -m model_zoo_example.train --resume runs/tiny
    msrun --worker_num=2 --local_worker_num=2 --master_port=8118 --join=True python -m model_zoo_example.train

The run's folder gets metrics.csv and checkpoints. Ctrl-C (or SIGTERM) ends the run after the step, with a checkpoint;
--resume goes on from a checkpoint or from the newest in a folder, with the settings that are stored in it.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from model_zoo_example import checkpoint as checkpoints
from model_zoo_example.checkpoint import Checkpoint, CheckpointError
from model_zoo_example.data import Corpus, open_corpus
from model_zoo_example.interruption import Interruption
from model_zoo_example.progress import Events, Metrics, Progress, Row
from model_zoo_example.settings import (
    DEFAULT_CONFIG,
    Settings,
    SettingsError,
    add_flags,
    differences,
    find_config,
    from_mapping,
    parse,
    read_config,
)

if TYPE_CHECKING:  # MindSpore takes seconds to import; bad flags are told before
    from model_zoo_example.machine import Place
    from model_zoo_example.trainer import Trainer

COMMAND = "python -m model_zoo_example"


class RunError(RuntimeError):
    """A run that cannot go on; the message is for the user."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to run.

    Attributes:
        settings: of the run.
        name: of the config, which names the folder where no setting does.
        start: the checkpoint to go on from.
    """

    settings: Settings
    name: str
    start: Optional[Checkpoint]


def arguments() -> argparse.ArgumentParser:
    """The flags."""
    parser = argparse.ArgumentParser(
        prog=f"{COMMAND}.train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", help=f"YAML file of settings (default: {DEFAULT_CONFIG})")
    parser.add_argument(
        "--resume", type=Path, metavar="PATH", help="go on from a checkpoint, or the newest in a folder"
    )
    add_flags(parser)
    return parser


def plan(argv: Optional[List[str]]) -> Plan:
    """What the command line asks for.

    Raises:
        SettingsError: a flag or setting that cannot be used, or that contradicts the checkpoint.
        CheckpointError: the checkpoint cannot be read.
    """
    args, overrides = parse(arguments(), argv)
    path = find_config(args.config or DEFAULT_CONFIG)
    if args.resume is None:
        return Plan(from_mapping({**read_config(path), **overrides}, _origin(path, overrides)), path.stem, None)
    start = checkpoints.load(args.resume)
    stored = from_mapping(start.facts["settings"], str(start.path))
    folder = {"output": str(start.path.parent), "stop_at": 0}
    values = {**start.facts["settings"], **folder, **(read_config(path) if args.config else {}), **overrides}
    settings = from_mapping(values, _origin(path if args.config else start.path, overrides))
    other = differences(stored, settings, free=False)
    if other:
        raise SettingsError(
            f"--resume: {start.path} was trained with other settings ({'; '.join(other)}). They decide what is "
            f"computed, so the run would not be one run. Leave them as they are, or train anew without --resume"
        )
    done = int(start.facts["step"])
    if 0 < settings.stop_at <= done:
        raise SettingsError(f"stop_at {settings.stop_at}: {start.path} is at step {done} already")
    return Plan(settings, path.stem, start)


def _origin(path: Path, overrides: Dict[str, Any]) -> str:
    return f"{path} with flags" if overrides else str(path)


def output_folder(work: Plan) -> Path:
    """The run's folder.

    Raises:
        SettingsError: the one asked for holds checkpoints that this run does not go on from.
    """
    if not work.settings.output:
        number, folder = 1, Path("runs") / work.name
        while folder.exists():
            number += 1
            folder = Path("runs") / f"{work.name}-{number}"
        return folder
    folder = Path(work.settings.output)
    if folder.exists() and not folder.is_dir():
        raise SettingsError(f"output: {folder} is not a folder")
    last = checkpoints.newest(folder)
    if last is not None and (work.start is None or not last.samefile(work.start.path)):
        raise SettingsError(
            f"output: {folder} holds checkpoints up to {last.name}; go on from it with --resume {folder}, "
            f"choose another --output, or remove those that shall not count"
        )
    return folder


class Run:
    """Steps, and what is written and shown of them."""

    def __init__(self, work: Plan, trainer: Trainer, interruption: Interruption) -> None:
        self.settings, self.trainer, self.interruption = work.settings, trainer, interruption
        self.place: Place = trainer.place
        self.folder = output_folder(work) if self.place.first else Path()
        self.progress = Progress(
            trainer.step, work.settings.steps, work.settings.print_every, quiet=not self.place.first
        )
        self.metrics: Optional[Metrics] = None
        self.events: Optional[Events] = None
        self.saved = trainer.step if work.start else -1
        if self.place.first:
            self.folder.mkdir(parents=True, exist_ok=True)
            checkpoints.remove_unfinished(self.folder)
            self.metrics = Metrics(self.folder / "metrics.csv", trainer.step)
            self.events = Events(self.folder / "events") if work.settings.events else None
        self._clock, self._counted = time.perf_counter(), trainer.step

    def to_the_end(self) -> bool:
        """Train until the last step, ``stop_at`` or a signal. Whether it was the last step.

        Raises:
            CheckpointError, OSError: something could not be written.
            RunError: loss or gradients are not finite any more.
        """
        settings, trainer = self.settings, self.trainer
        while trainer.step < settings.steps:
            if self.interruption.signal and self.place.processes == 1:
                break
            outcome = trainer.train_step(stopping=self.interruption.signal is not None)
            step = trainer.step
            saving = _due(step, settings.save_every) or step in (settings.steps, settings.stop_at)
            row: Row = {}
            if _due(step, settings.log_every) or saving:
                row = self._row(outcome)
            if _due(step, settings.validate_every) or step == settings.steps:
                row = row or self._row(outcome)
                row["validation_loss"] = trainer.validation_loss()
                self.progress.say(f"step {step:5d}  validation loss {row['validation_loss']:.4f}")
            if row:
                self._tell(row)
            if saving:
                self.save()
            if step == settings.stop_at:
                break
            # several processes have to stop after the same step: one at which all of them read the numbers
            if row and outcome.share_stopping is not None and float(outcome.share_stopping.asnumpy()) > 0:
                break
        if self.saved != trainer.step and trainer.step > 0:
            self.save()
        return trainer.step == settings.steps

    def _row(self, outcome: Any) -> Row:
        settings, trainer = self.settings, self.trainer
        loss, norm = float(outcome.loss.asnumpy()), float(outcome.gradient_norm.asnumpy())
        lost = not math.isfinite(loss) or (not math.isfinite(norm) and trainer.loss_scale <= 1.0)
        if lost:
            last = checkpoints.newest(self.folder) if self.place.first else None
            raise RunError(
                f"step {trainer.step}: the loss is {loss}, the gradient norm {norm}: the training has diverged. "
                f"The last checkpoint is {last or 'none'}; try a lower learning_rate, a longer warm-up"
                f"{', or another dtype' if settings.dtype != 'float32' else ''}"
            )
        now = time.perf_counter()
        tokens = (trainer.step - self._counted) * settings.batch_size * settings.context
        row = {
            "step": trainer.step,
            "loss": loss,
            "learning_rate": trainer.learning_rate(),
            "gradient_norm": norm,
            "loss_scale": trainer.loss_scale,
            "tokens_per_second": tokens / (now - self._clock),
            "seconds": now - self._clock,
        }
        self._clock, self._counted = now, trainer.step
        return row

    def _tell(self, row: Row) -> None:
        self.progress.show(row)
        if self.metrics is not None:
            self.metrics.write(row)
        if self.events is not None:
            self.events.write(row)
        self._clock = time.perf_counter()  # validation and writing are not training

    def save(self) -> None:
        """Write a checkpoint.

        Raises:
            CheckpointError: it cannot be written.
        """
        if self.place.first:
            facts = {
                "step": self.trainer.step,
                "settings": dataclasses.asdict(self.settings),
                "corpus": self.trainer.corpus.fingerprint(),
                "processes": self.place.processes,
            }
            checkpoints.save(self.folder, self.trainer.arrays(), facts, self.settings.keep)
        self.saved = self.trainer.step
        self._clock = time.perf_counter()

    def close(self) -> None:
        """Leave bar and files in order."""
        self.progress.close()
        if self.events is not None:
            self.events.close()


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def prepare(work: Plan) -> Trainer:
    """Device, text and network, and the checkpoint's state in them.

    Raises:
        SettingsError, CorpusError, CheckpointError: something that cannot be used, in words.
        RuntimeError: a backend of mHC asked for by name which this machine lacks.
    """
    corpus = open_corpus(work.settings.data)
    corpus.check(work.settings.context)
    if work.start is not None:
        _check_text(work.start, corpus)
    from model_zoo_example.machine import set_up

    place = set_up(work.settings)
    from model_zoo_example.trainer import Trainer

    trainer = Trainer(work.settings, corpus, place)
    if work.start is not None:
        trainer.restore(work.start)
    return trainer


def _check_text(start: Checkpoint, corpus: Corpus) -> None:
    stored, here = start.facts["corpus"], corpus.fingerprint()
    if stored != here:
        raise SettingsError(
            f"--resume: {start.path} was trained on another text ({stored}; {corpus.name} is {here}). "
            f"Python's help topics differ between its versions"
        )


def describe(work: Plan, trainer: Trainer) -> List[str]:
    """Lines about what is going to happen."""
    settings, corpus = work.settings, trainer.corpus
    count = sum(parameter.size for parameter in trainer.network.trainable_params())
    kinds = {
        "mhc": f"mHC with {settings.num_streams} streams",
        "unconstrained": f"{settings.num_streams} streams without Sinkhorn",
        "plain": "plain residual",
    }
    lines = [f"{kinds[settings.residual]}, {count} parameters, {corpus.train_size} bytes to train on ({corpus.name})"]
    if trainer.place.processes > 1:
        lines.append(f"{trainer.place.processes} processes; kill -TERM {os.getpid()} ends the run with a checkpoint")
    if work.start is not None:
        lines.append(f"going on after step {trainer.step} from {work.start.path}")
        stored = from_mapping(work.start.facts["settings"], str(work.start.path))
        rounding = ("backend", "device", "mode", "recompute")
        changed = [line for line in differences(stored, settings, free=True) if line.split(":")[0] in rounding]
        if work.start.facts["processes"] != trainer.place.processes:
            changed.append(f"processes: {work.start.facts['processes']} -> {trainer.place.processes}")
        if changed:
            lines.append(f"note: {'; '.join(changed)}. The losses will equal those of one run but for rounding")
    return lines


def execute(work: Plan, interruption: Interruption) -> int:
    """Train. Returns the exit status."""
    started = time.perf_counter()
    trainer = prepare(work)
    run = Run(work, trainer, interruption)
    say = run.progress.say
    try:
        for line in describe(work, trainer):
            say(line)
        complete, before = False, math.nan
        if interruption.signal is None:
            before = trainer.validation_loss()
            so_far = "before training" if trainer.step == 0 else "so far"
            say(f"validation loss {so_far}: {before:.4f} nats per byte")
            complete = run.to_the_end()
    finally:
        run.close()
    if not complete:
        if trainer.step == 0:
            say("stopped before the first step; nothing was saved")
        else:
            say(f"stopped after step {trainer.step} of {work.settings.steps}; the checkpoint is in {run.folder}")
            say(f"to go on: {COMMAND}.train --resume {run.folder}")
        trainer.wait_for_the_others()  # msrun kills what still saves when one ends with this status
        return interruption.status
    after = trainer.validation_loss()
    if work.settings.sample and trainer.place.first:
        from model_zoo_example.generate import PROMPT, show, write

        text = write(trainer.network, PROMPT, work.settings.sample, work.settings.context, seed=work.settings.seed)
        say(f"\nThe network writes:\n\n{show(text)}\n")
    say(f"validation loss: {before:.4f} before, {after:.4f} after; {time.perf_counter() - started:.0f} s in all")
    say(f"metrics and checkpoints are in {run.folder}")
    return 0


def main(argv: Optional[List[str]] = None) -> int:
    """The program. Returns the exit status."""
    with Interruption() as interruption:
        try:
            return execute(plan(argv), interruption)
        except KeyboardInterrupt:  # the second one
            print("train: stopped at once", file=sys.stderr)
            return interruption.status
        except (ValueError, RuntimeError, CheckpointError) as error:
            print(f"train: {error}", file=sys.stderr)
            return 1 if isinstance(error, (RunError, CheckpointError)) else 2
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            print(f"train: cannot write: {where}{error.strerror or error}", file=sys.stderr)
            return 1


if __name__ == "__main__":
    sys.exit(main())
