"""``python -m ms_mhc info``, ``selftest`` and ``bench``."""

from __future__ import annotations

import argparse
import sys
from typing import Optional, Sequence

from ms_mhc import info, selftest
from ms_mhc.backends import registry
from ms_mhc.bench import command as bench

DEVICES = ("CPU", "GPU", "Ascend")
DTYPES = ("bfloat16", "float16", "float32")


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run one command and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m ms_mhc", description="mHC for MindSpore")
    commands = parser.add_subparsers(dest="command", required=True)

    command = commands.add_parser("info", help="versions, device, and the backend that each operator takes here")
    command.add_argument("--device", choices=DEVICES, help="default: MindSpore's own choice")
    command.add_argument("--num-streams", type=int, default=4)
    command.add_argument("--hidden-size", type=int, default=1024)
    command.add_argument("--dtype", choices=DTYPES, default="bfloat16")

    command = commands.add_parser("selftest", help="numbers against the reference, kernels per step, time")
    command.add_argument("--device", choices=DEVICES, help="default: MindSpore's own choice")
    command.add_argument("--mode", choices=selftest.WAYS, action="append", help="default: all of them")
    command.add_argument("--backend", default="auto", choices=registry.names())
    command.add_argument("--quick", action="store_true", help="fewer and smaller cases")
    command.add_argument("--report", type=bench.file_to_write, metavar="FILE", help="write JSON to attach to an issue")

    bench.add_arguments(commands.add_parser("bench", help="time and memory against other ways to compute"))

    words = sys.argv[1:] if argv is None else list(argv)
    arguments = parser.parse_args(words)
    if arguments.command == "bench":
        return bench.main(arguments, words[1:])
    if arguments.command == "selftest":
        modes = arguments.mode or selftest.WAYS
        return selftest.main(arguments.device, modes, arguments.backend, arguments.quick, arguments.report)
    if arguments.device:
        import mindspore as ms

        ms.set_context(device_target=arguments.device)
    print("\n".join(info.lines(arguments.num_streams, arguments.hidden_size, arguments.dtype)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
