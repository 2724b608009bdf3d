"""``python -m ms_mhc info``."""

from __future__ import annotations

import argparse
import sys
from typing import Optional, Sequence

from ms_mhc import info

DTYPES = ("bfloat16", "float16", "float32")


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run one command and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m ms_mhc", description="mHC for MindSpore")
    commands = parser.add_subparsers(dest="command", required=True)

    command = commands.add_parser("info", help="versions, device, and the backend that each operator takes here")
    command.add_argument("--device", choices=("CPU", "GPU", "Ascend"), help="default: MindSpore's own choice")
    command.add_argument("--num-streams", type=int, default=4)
    command.add_argument("--hidden-size", type=int, default=1024)
    command.add_argument("--dtype", choices=DTYPES, default="bfloat16")

    arguments = parser.parse_args(argv)
    if arguments.device:
        import mindspore as ms

        ms.set_context(device_target=arguments.device)
    print("\n".join(info.lines(arguments.num_streams, arguments.hidden_size, arguments.dtype)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
