"""Train the plain residual, unconstrained hyper-connections and mHC at equal size, data and steps, and draw a picture.

    python -m model_zoo_example.compare --depths 3,12 --seeds 1,2 --json experiment.json --plot experiment.png
    python -m model_zoo_example.compare --from experiment.json --plot experiment.png

For every run: the validation loss and the gradient norm along the way, and at the end by how much each layer's mixing,
and that of all layers together, can amplify the signal and the gradient (``ms_mhc.stability``). The results of finished
runs are written as they come; a second call with the same file does only what is missing.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from model_zoo_example.progress import write_whole
from model_zoo_example.settings import (
    SettingsError,
    add_flags,
    count,
    differences,
    file_to_write,
    find_config,
    from_mapping,
    parse,
    read_config,
)

KINDS = ("plain", "unconstrained", "mhc")
PROBE_WINDOWS = 4
GAINS = ("forward", "backward", "composite_forward", "composite_backward")
Result = Dict[str, Any]


def run(settings: Any, corpus: Any, points: int) -> Result:
    """One training. Validation and gradient norm are recorded ``points`` times.

    A run whose loss or gradient is no longer finite stops there, and says at which step.
    """
    import numpy as np
    from mindspore import Tensor

    from model_zoo_example.trainer import Trainer
    from ms_mhc.stability import measure

    started, busy = time.perf_counter(), time.process_time()
    trainer = Trainer(settings, corpus)
    starts = corpus.validation_starts(PROBE_WINDOWS, settings.context)
    probe = Tensor(corpus.windows(starts, settings.context)[0])
    every = max(1, settings.steps // points)
    steps, validation, losses, norms = [0], [trainer.validation_loss()], [], []
    diverged = None
    for number in range(1, settings.steps + 1):
        outcome = trainer.train_step()
        losses.append(float(outcome.loss.asnumpy()))
        norms.append(float(outcome.gradient_norm.asnumpy()))
        if not np.isfinite(losses[-1] + norms[-1]):
            diverged = number
            break
        if number % every == 0:
            steps.append(number)
            validation.append(trainer.validation_loss())
    gains = [] if settings.residual == "plain" or diverged else measure(trainer.network, probe)
    return {
        "residual": settings.residual,
        "layers": settings.num_layers,
        "seed": settings.seed,
        "parameters": sum(parameter.size for parameter in trainer.network.trainable_params()),
        "steps": steps,
        "validation": validation,
        "losses": losses,
        "norms": norms,
        "diverged": diverged,
        "gains": gains,
        "seconds": time.perf_counter() - started,
        "processor_seconds": time.process_time() - busy,
    }


def summary(results: Sequence[Result]) -> List[str]:
    """A table, one line per depth and kind: the mean over the seeds, with the range where there are several.

    The late gradient norm is the median of the last tenth of the steps.
    """
    import numpy as np

    lines = [
        "| blocks | residual | seeds | validation loss | gradient norm: late | largest "
        "| largest gain of a layer, forward / backward | gain of all layers, forward / backward |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for layers in sorted({r["layers"] for r in results}):
        for kind in KINDS:
            same = [r for r in results if (r["layers"], r["residual"]) == (layers, kind)]
            if not same:
                continue
            late = [r["norms"][-max(1, len(r["norms"]) // 10) :] for r in same]
            lines.append(
                f"| {layers} | {kind} | {len(same)} | {_range([r['validation'][-1] for r in same], '.3f')} "
                f"| {_range([float(np.median(norms)) for norms in late], '.2f')} "
                f"| {_range([max(r['norms']) for r in same], '.1f')} "
                f"| {_gain(same, 'forward', max)} / {_gain(same, 'backward', max)} "
                f"| {_gain(same, 'composite_forward', lambda g: g[-1])} "
                f"/ {_gain(same, 'composite_backward', lambda g: g[0])} |"
            )
    return lines


def _gain(results: Sequence[Result], name: str, pick: Any) -> str:
    """Without a mean: gains differ by orders of magnitude."""
    values = sorted(pick([row[name] for row in r["gains"]]) for r in results if r["gains"])
    ends = dict.fromkeys(f"{value:.3g}" for value in (*values[:1], *values[-1:]))
    return " to ".join(ends) or "1"


def _range(values: Sequence[float], form: str) -> str:
    if len(values) == 1:
        return format(values[0], form)
    return f"{sum(values) / len(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def _numbers(text: str) -> List[int]:
    try:
        return [count(part) for part in text.split(",")]
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers: {error}") from error


def _kinds(text: str) -> List[str]:
    kinds = text.split(",")
    for kind in kinds:
        if kind not in KINDS:
            raise argparse.ArgumentTypeError(f"{kind!r} is none of {', '.join(KINDS)}")
    return kinds


def arguments() -> argparse.ArgumentParser:
    """The flags."""
    parser = argparse.ArgumentParser(
        prog="python -m model_zoo_example.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--config", default="configs/compare.yaml", help="settings file (default: %(default)s)")
    parser.add_argument("--depths", type=_numbers, default=[3, 12], help="numbers of blocks (default: 3,12)")
    parser.add_argument("--seeds", type=_numbers, default=[1, 2], help="default: 1,2")
    parser.add_argument("--kinds", type=_kinds, default=list(KINDS), help=f"default: {','.join(KINDS)}")
    parser.add_argument("--points", type=count, default=10, help="validations along the way (default: 10)")
    parser.add_argument("--json", type=file_to_write, metavar="FILE", help="keep the results of the runs there")
    parser.add_argument(
        "--from", dest="source", type=Path, metavar="FILE", help="train nothing, read the results there"
    )
    parser.add_argument("--plot", type=file_to_write, metavar="FILE", help="draw the picture (needs matplotlib)")
    add_flags(parser)
    return parser


def collect(args: argparse.Namespace, overrides: Dict[str, Any]) -> List[Result]:
    """The results of all runs, from the file where they are there already."""
    from model_zoo_example.data import open_corpus
    from model_zoo_example.machine import set_up

    base = from_mapping({**read_config(find_config(args.config)), **overrides}, args.config)
    set_up(base)
    corpus = open_corpus(base.data)
    kept: Dict[str, Any] = {"settings": dataclasses.asdict(base), "results": []}
    if args.json is not None and args.json.exists():
        kept = _read(args.json, "--json")
        other = differences(from_mapping(kept["settings"], str(args.json)), base, free=False)
        if other:
            raise SettingsError(f"--json: {args.json} holds runs with other settings: {'; '.join(other)}")
    results: List[Result] = kept["results"]
    done = {(r["layers"], r["seed"], r["residual"]) for r in results}
    for layers in args.depths:
        for seed in args.seeds:
            for kind in args.kinds:
                if (layers, seed, kind) in done:
                    continue
                settings = dataclasses.replace(base, num_layers=layers, seed=seed, residual=kind)
                result = run(settings, corpus, args.points)
                results.append(result)
                ended = f"loss not finite at step {result['diverged']}" if result["diverged"] else "done"
                print(
                    f"{layers} blocks, seed {seed}, {kind}: validation {result['validation'][-1]:.4f}, "
                    f"{ended}, {result['seconds']:.0f} s",
                    flush=True,
                )
                if args.json is not None:
                    write_whole(args.json, json.dumps(kept) + "\n")  # it holds hours of training
    return results


def _read(path: Path, flag: str) -> Dict[str, Any]:
    """The settings and results in a file of this program.

    Raises:
        SettingsError: it cannot be read, or is no such file.
    """
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{flag}: cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise SettingsError(f"{flag}: {path} is no JSON: {error}") from error
    if not (
        isinstance(kept, dict) and isinstance(kept.get("results"), list) and isinstance(kept.get("settings"), dict)
    ):
        raise SettingsError(f"{flag}: {path} holds no results of this program")
    return kept


def main(argv: Optional[List[str]] = None) -> int:
    """The program. Returns the exit status."""
    try:
        args, overrides = parse(arguments(), argv)
        results = _read(args.source, "--from")["results"] if args.source is not None else collect(args, overrides)
    except ValueError as error:
        print(f"compare: {error}", file=sys.stderr)
        return 2
    print("\n".join(summary(results)))
    if args.plot is not None:
        from model_zoo_example.picture import draw

        draw(results, args.plot)
        print(f"picture: {args.plot}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
