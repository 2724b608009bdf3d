"""``python -m ms_mhc bench``: the options, the run, and what is done with its result."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, NoReturn, Optional, Sequence

from ms_mhc import strict_json
from ms_mhc.bench import environment, memory, plot, report
from ms_mhc.bench.contenders import OURS, contenders
from ms_mhc.bench.run import Plan, run
from ms_mhc.bench.task import DTYPES, OPERATORS, Shape

SHAPES = (Shape(1024, 4, 512), Shape(4096, 4, 1024), Shape(2048, 8, 512))
QUICK_SHAPES = (Shape(256, 4, 64),)
TOKENS = (256, 1024, 4096, 16384, 65536)


def shape(text: str) -> Shape:
    """``T,N,D``."""
    try:
        tokens, streams, hidden = map(int, text.split(","))
    except ValueError:
        tokens = streams = hidden = 0
    if min(tokens, streams, hidden) < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a shape; give tokens, streams and hidden size, each at least 1, such as 1024,4,512"
        )
    return Shape(tokens, streams, hidden)


def count(text: str) -> int:
    """A whole number of at least 1."""
    if not (text.isascii() and text.isdigit() and len(text) < 19 and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def file_to_write(text: str) -> Path:
    """A file that can be written: its folder is there and takes files, and nothing else is in its place."""
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"the folder of {text!r} does not exist")
    if path.exists() and not path.is_file():
        raise argparse.ArgumentTypeError(f"{text!r} is there and is not a file")
    try:
        with tempfile.TemporaryFile(dir=path.resolve().parent):
            return path
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written: {error.strerror}") from error


def _there(text: str) -> Path:
    path = Path(text)
    if not path.exists():
        raise argparse.ArgumentTypeError(f"{text!r} does not exist; give a file of contenders or a folder of them")
    return path


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "--shape", type=shape, action="append", metavar="T,N,D", help="repeatable; default: three shapes"
    )
    parser.add_argument("--only", choices=OPERATORS, action="append", help="repeatable; default: all of them")
    parser.add_argument("--dtype", choices=DTYPES, action="append", help="repeatable; default: both")
    parser.add_argument(
        "--threads", type=count, default=_cores(), metavar="K", help="for everyone; default: %(default)s"
    )
    parser.add_argument("--rounds", type=count, metavar="R", help="default: 21, with --quick 5")
    parser.add_argument(
        "--calls",
        type=count,
        default=1,
        metavar="C",
        help="in a row in each round, as in a loop; default: %(default)s",
    )
    parser.add_argument(
        "--against", type=_there, action="append", metavar="PATH", help="a file of contenders, or a folder; repeatable"
    )
    parser.add_argument("--json", type=file_to_write, metavar="FILE", help="write the result there, after every row")
    parser.add_argument("--plot", type=file_to_write, metavar="FILE", help="draw it there, with our time against T")
    parser.add_argument("--scaling", action="store_true", help="our time against T without a picture")
    parser.add_argument("--no-memory", action="store_true", help="skip peak memory, which takes a process per number")
    parser.add_argument("--quick", action="store_true", help="one small shape, few rounds, no memory")


def _plan(arguments: Any) -> Plan:
    quick = arguments.quick
    tokens = TOKENS[: 3 if quick else None] if arguments.plot or arguments.scaling else ()
    return Plan(
        shapes=tuple(arguments.shape or (QUICK_SHAPES if quick else SHAPES)),
        operators=tuple(arguments.only or OPERATORS),
        dtypes=tuple(arguments.dtype or DTYPES),
        rounds=arguments.rounds or (5 if quick else 21),
        calls=arguments.calls,
        threads=arguments.threads,
        memory=not (quick or arguments.no_memory),
        tokens=tokens,
        copy_megabytes=8 if quick else 64,
        product_size=256 if quick else 1024,
        against=tuple(arguments.against or ()),
    )


def _stop(message: Optional[str]) -> None:
    if message:
        sys.exit(f"ms_mhc bench: {message}")


class Interrupted(KeyboardInterrupt):
    """A signal that ends the run; what was measured until then is reported."""


def _interrupt(number: int, frame: Any) -> NoReturn:
    raise Interrupted(number)


def main(arguments: Any, words: Sequence[str]) -> int:
    """``words`` are the command's own, for the fresh start that thread settings need.

    Returns 0; 1 where our own operators failed in a row; 128 and the signal's number where a signal ended the run.
    """
    plan = _plan(arguments)
    if arguments.plot:
        _stop(plot.missing())
    if plan.memory and memory.missing():
        _stop(f"peak memory cannot be measured: {memory.missing()}; add --no-memory")
    environment.enter(words, plan.threads)
    environment.use(plan.threads)
    try:
        packages = [c.package for c in contenders(plan.against) if c.package]
    except ValueError as error:
        _stop(str(error))
    print("thread pools do not spin between turns (OMP_WAIT_POLICY=passive)", file=sys.stderr)
    result: Dict[str, Any] = {
        "machine": environment.describe(plan.threads, packages),
        "command": " ".join(["python -m ms_mhc bench", *words]),
        "rounds": plan.rounds,
        "memory": plan.memory,
        "planned": len(plan.tasks()),
        "complete": False,
        "rows": [],
        "scaling": [],
    }

    def keep(new: Dict[str, Any]) -> None:
        if "contenders" in new:
            print(report.line(new), flush=True)
        if arguments.json:
            strict_json.write(result, arguments.json)

    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    status = 0
    try:
        run(plan, result, lambda line: print(line, file=sys.stderr, flush=True), keep)
        result["complete"] = True
    except Interrupted as interrupted:
        status = 128 + int(interrupted.args[0])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    print("\n" + "\n".join(report.lines(result)), flush=True)
    if arguments.json:
        strict_json.write(result, arguments.json)
    if arguments.plot and result["rows"]:
        plot.save(result, arguments.plot)
    return status or int(any("ratio" not in row["contenders"][OURS] for row in result["rows"]))
