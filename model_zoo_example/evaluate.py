"""The validation loss of a checkpoint.

python -m model_zoo_example.evaluate runs/tiny
python -m model_zoo_example.evaluate runs/tiny --data other.txt
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import List, Optional

from model_zoo_example.checkpoint import CheckpointError
from model_zoo_example.settings import add_flags, parse


def arguments() -> argparse.ArgumentParser:
    """The flags."""
    parser = argparse.ArgumentParser(
        prog="python -m model_zoo_example.evaluate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("checkpoint", type=Path, help="a checkpoint, or the newest in a folder")
    add_flags(parser, ("data", "device", "dtype", "mode", "backend", "batch_size", "validation_batches"))
    return parser


def main(argv: Optional[List[str]] = None) -> int:
    """The program. Returns the exit status."""
    try:
        args, overrides = parse(arguments(), argv)
        import numpy as np
        from mindspore import Tensor

        from model_zoo_example.data import open_corpus, validation_batches
        from model_zoo_example.model import Loss
        from model_zoo_example.restore import restore

        settings, network, stored = restore(args.checkpoint, overrides)
        corpus = open_corpus(settings.data)
        corpus.check(settings.context)
        loss = Loss(network)
        losses = [
            float(loss(Tensor(tokens), Tensor(targets)).asnumpy())
            for tokens, targets in validation_batches(corpus, settings)
        ]
    except (ValueError, RuntimeError, CheckpointError) as error:
        print(f"evaluate: {error}", file=sys.stderr)
        return 2
    mean = float(np.mean(losses))
    print(
        f"step {stored.facts['step']}, {corpus.name}: {mean:.4f} nats per byte, {mean / math.log(2):.4f} bits per byte"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
