"""Let a trained network write.

python -m model_zoo_example.generate runs/tiny --prompt "The value of "
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, List, Optional

import numpy as np

from model_zoo_example.settings import SettingsError, add_flags, parse

PROMPT = b"The value of "
TEMPERATURE = 0.7


def write(
    network: Any, prompt: bytes, length: int, context: int, temperature: float = TEMPERATURE, seed: int = 1
) -> bytes:
    """The prompt and ``length`` bytes that the network puts behind it, drawn at a temperature; 0 takes the likeliest.

    The network's input has one length throughout, so that it is compiled once.
    """
    from mindspore import Tensor

    rng = np.random.default_rng(seed)
    written = list(prompt or b"\n")
    for _ in range(length):
        seen = written[-context:]
        window = np.zeros((1, context), np.int32)
        window[0, : len(seen)] = seen  # what follows does not matter: attention looks back only
        logits = network(Tensor(window)).asnumpy()[0, len(seen) - 1].astype(np.float64)
        if temperature == 0:
            written.append(int(logits.argmax()))
            continue
        chances = np.exp((logits - logits.max()) / temperature)
        written.append(int(rng.choice(len(chances), p=chances / chances.sum())))
    return bytes(written)


def show(text: bytes) -> str:
    """The bytes as text; what is not UTF-8 shows as a replacement character."""
    return text.decode("utf-8", errors="replace")


def arguments() -> argparse.ArgumentParser:
    """The flags."""
    parser = argparse.ArgumentParser(
        prog="python -m model_zoo_example.generate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("checkpoint", type=Path, help="a checkpoint, or the newest in a folder")
    parser.add_argument("--prompt", default=show(PROMPT), help="what the text begins with (default: %(default)r)")
    parser.add_argument("--length", type=int, default=400, help="bytes to write (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=TEMPERATURE, help="0: the likeliest byte each time")
    parser.add_argument("--draw", type=int, default=1, metavar="SEED", help="seed of the drawing (default: 1)")
    add_flags(parser, ("device", "dtype", "mode", "backend"))
    return parser


def main(argv: Optional[List[str]] = None) -> int:
    """The program. Returns the exit status."""
    from model_zoo_example.checkpoint import CheckpointError

    try:
        args, overrides = parse(arguments(), argv)
        if args.length < 0 or not args.temperature >= 0:
            raise SettingsError("--length and --temperature must be 0 or more")
        from model_zoo_example.restore import restore

        settings, network, _ = restore(args.checkpoint, overrides)
        prompt = args.prompt.encode("utf-8", errors="surrogateescape")
        print(show(write(network, prompt, args.length, settings.context, args.temperature, args.draw)))
    except (ValueError, RuntimeError, CheckpointError) as error:
        print(f"generate: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
