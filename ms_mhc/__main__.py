"""``python -m ms_mhc info``, ``selftest`` and ``bench``."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
from typing import List, Optional, Sequence

from ms_mhc import info, selftest
from ms_mhc.backends import registry
from ms_mhc.bench import command as bench

DEVICES = ("CPU", "GPU", "Ascend")
DTYPES = ("bfloat16", "float16", "float32")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(prog="python -m ms_mhc", description="mHC for MindSpore")
    commands = result.add_subparsers(dest="command", required=True)

    command = commands.add_parser("info", help="versions, device, and the backend that each operator takes here")
    command.add_argument("--device", choices=DEVICES, help="default: MindSpore's own choice")
    command.add_argument("--num-streams", type=bench.count, default=4, metavar="N", help="default: %(default)s")
    command.add_argument("--hidden-size", type=bench.count, default=1024, metavar="D", help="default: %(default)s")
    command.add_argument("--dtype", choices=DTYPES, default="bfloat16")

    command = commands.add_parser("selftest", help="numbers against the reference, kernels per step, time")
    command.add_argument("--device", choices=DEVICES, help="default: MindSpore's own choice")
    command.add_argument("--mode", choices=selftest.WAYS, action="append", help="default: all of them")
    command.add_argument("--backend", default="auto", choices=registry.names())
    command.add_argument("--quick", action="store_true", help="fewer and smaller cases")
    command.add_argument("--report", type=bench.file_to_write, metavar="FILE", help="write JSON to attach to an issue")

    bench.add_arguments(commands.add_parser("bench", help="time and memory against other ways to compute"))
    return result


def run(arguments: argparse.Namespace, words: List[str]) -> int:
    """One command, from its arguments; ``words`` are the command line."""
    if arguments.command == "bench":
        return bench.main(arguments, words[1:])
    if arguments.command == "selftest":
        modes = arguments.mode or selftest.WAYS
        return selftest.main(arguments.device, modes, arguments.backend, arguments.quick, arguments.report)
    info.use(arguments.device)
    print("\n".join(info.lines(arguments.num_streams, arguments.hidden_size, arguments.dtype)), flush=True)
    return 0


_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run one command and return its exit status."""
    words = sys.argv[1:] if argv is None else list(argv)
    arguments = parser().parse_args(words)
    try:
        return run(arguments, words)
    except info.DeviceError as error:
        return _end(arguments, str(error), 2)
    except KeyboardInterrupt:
        return _end(arguments, "interrupted", 128 + signal.SIGINT)
    except BrokenPipeError:  # as in info | head -1
        return _end(arguments, "", 128 + signal.SIGPIPE)
    except OSError as error:
        if error.errno not in _DISK:
            raise
        return _end(arguments, f"cannot write{f' {error.filename}' if error.filename else ''}: {error.strerror}", 1)


def _end(arguments: argparse.Namespace, message: str, status: int) -> int:
    if message:
        print(f"ms_mhc {arguments.command}: {message}", file=sys.stderr)
    if status not in (2, 128 + signal.SIGINT):  # what is left for the standard output would fail once more, at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


if __name__ == "__main__":
    sys.exit(main())
