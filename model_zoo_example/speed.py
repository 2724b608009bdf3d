"""How fast the example trains here: mHC by each backend, the plain network, graph and PyNative mode.

    python -m model_zoo_example.speed

Every round takes each contender once, in an order that changes from round to round. A ratio is taken between two times
of one round, so that what disturbs the machine disturbs both; shown are the medians and quartiles of these ratios. The
sentences about speed in the documentation are the last lines of this program.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

from model_zoo_example.settings import DEFAULT_CONFIG, add_flags, count, find_config, from_mapping, parse, read_config

BASE = "mHC, backend auto"


class Contender(NamedTuple):
    """What is timed: a name for the table, and the settings that differ from the config's."""

    name: str
    changes: Dict[str, Any]


CONTENDERS = (
    Contender(BASE, {"residual": "mhc", "backend": "auto"}),
    Contender("mHC, backend composite", {"residual": "mhc", "backend": "composite"}),
    Contender("unconstrained, backend auto", {"residual": "unconstrained", "backend": "auto"}),
    Contender("plain residual", {"residual": "plain"}),
    Contender("mHC, backend auto, PyNative mode", {"residual": "mhc", "backend": "auto", "mode": "pynative"}),
)


def measure(base: Any, rounds: int, steps: int) -> Dict[str, List[float]]:
    """Seconds per step of each contender, one number per round."""
    import mindspore as ms

    from model_zoo_example.data import open_corpus
    from model_zoo_example.machine import set_up
    from model_zoo_example.trainer import Trainer

    corpus = open_corpus(base.data)
    set_up(base)

    def prepare(contender: Contender) -> Callable[[], float]:
        settings = dataclasses.replace(base, **contender.changes)
        trainer = Trainer(settings, corpus)
        mode = ms.GRAPH_MODE if settings.mode == "graph" else ms.PYNATIVE_MODE

        def run() -> float:
            ms.set_context(mode=mode)
            started = time.perf_counter()
            for _ in range(steps):
                trainer.train_step()
            assert trainer.updates  # reading it waits for the last update
            return (time.perf_counter() - started) / steps

        for _ in range(2):  # compile
            run()
        return run

    runs = {contender.name: prepare(contender) for contender in CONTENDERS}
    names = list(runs)
    seconds: Dict[str, List[float]] = {name: [] for name in names}
    for number in range(rounds):
        for place in range(len(names)):
            name = names[(place + number) % len(names)]
            seconds[name].append(runs[name]())
    ms.set_context(mode=ms.GRAPH_MODE)
    return seconds


def report(seconds: Dict[str, List[float]], tokens: int) -> List[str]:
    """The table and the sentences."""
    import numpy as np

    lines = [
        "| contender | tokens per second, median | time, times that of mHC with backend auto: median (quartiles) |",
        "|---|---|---|",
    ]
    ratio = {}
    for name, times in seconds.items():
        ratios = np.array(times) / np.array(seconds[BASE])
        low, ratio[name], high = np.percentile(ratios, (25, 50, 75))
        rate = tokens / float(np.median(times))
        lines.append(f"| {name} | {rate:.0f} | {ratio[name]:.2f} ({low:.2f} to {high:.2f}) |")
    mhc, composite, _, plain, pynative = (contender.name for contender in CONTENDERS)
    lines += [
        "",
        f"The plain network takes {ratio[plain]:.2f} of the time that mHC takes with backend auto, "
        f"and {ratio[plain] / ratio[composite]:.2f} of what mHC takes with MindSpore operators (composite).",
        f"No mHC kernel could make a step more than {1 / ratio[plain]:.2f} times as fast as it is.",
        f"mHC in PyNative mode takes {ratio[pynative]:.1f} times as long as in graph mode.",
    ]
    assert ratio[mhc] == 1.0
    return lines


def arguments() -> argparse.ArgumentParser:
    """The flags."""
    parser = argparse.ArgumentParser(
        prog="python -m model_zoo_example.speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--config", default=DEFAULT_CONFIG, help="settings file (default: %(default)s)")
    parser.add_argument("--rounds", type=count, default=15, help="default: 15")
    parser.add_argument("--steps-per-round", type=count, default=4, help="of each contender in a round (default: 4)")
    add_flags(parser)
    return parser


def main(argv: Optional[Sequence[str]] = None) -> int:
    """The program. Returns the exit status."""
    try:
        args, overrides = parse(arguments(), argv)
        base = from_mapping({**read_config(find_config(args.config)), **overrides}, args.config)
        seconds = measure(base, args.rounds, args.steps_per_round)
    except (ValueError, RuntimeError) as error:
        print(f"speed: {error}", file=sys.stderr)
        return 2
    print("\n".join(report(seconds, base.batch_size * base.context)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
