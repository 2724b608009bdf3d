"""Write a trained network as MindIR, for MindSpore Lite and other programs.

    python -m model_zoo_example.export runs/tiny --file tiny.mindir

mHC goes into the file as MindSpore operators unless --backend names another way: a kernel of this machine would make
the file useless on the next one. The file is loaded again, and must give what the network gives.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import List, Optional

from model_zoo_example.checkpoint import CheckpointError
from model_zoo_example.settings import SettingsError, add_flags, parse

TOLERANCE = 1e-4  # times the largest logit


def arguments() -> argparse.ArgumentParser:
    """The flags."""
    parser = argparse.ArgumentParser(
        prog="python -m model_zoo_example.export",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("checkpoint", type=Path, help="a checkpoint, or the newest in a folder")
    parser.add_argument("--file", type=Path, required=True, help="to write; its name ends in .mindir")
    parser.add_argument("--batch", type=int, default=1, help="windows that the file's network takes (default: 1)")
    add_flags(parser, ("device", "dtype", "backend"))
    return parser


def export(checkpoint: Path, file: Path, batch: int, overrides: dict[str, object]) -> float:
    """Write the file. Returns by how much its logits differ from the network's, relative to the largest.

    Raises:
        SettingsError, CheckpointError: a flag or file that cannot be used.
        RuntimeError: MindSpore could not write it, or what it wrote computes something else.
    """
    import mindspore as ms
    import numpy as np
    from mindspore import Tensor, nn

    from model_zoo_example.restore import restore

    if file.suffix != ".mindir" or not file.resolve().parent.is_dir():
        raise SettingsError(f"--file: {file} is not a name that ends in .mindir, in an existing folder")
    if batch < 1:
        raise SettingsError(f"--batch must be 1 or more, but got {batch}")
    settings, network, _ = restore(checkpoint, {"backend": "composite", "mode": "graph", **overrides})
    tokens = Tensor(np.arange(batch * settings.context, dtype=np.int32).reshape(batch, -1) % 256)
    expected = network(tokens).asnumpy()
    ms.export(network, tokens, file_name=str(file), file_format="MINDIR")
    found = nn.GraphCell(ms.load(str(file)))(tokens).asnumpy()
    difference = float(np.abs(found - expected).max() / np.abs(expected).max())
    if not difference <= TOLERANCE:
        raise RuntimeError(
            f"{file} gives other logits than the network: they differ by {difference:.2g} of the largest"
        )
    return difference


def main(argv: Optional[List[str]] = None) -> int:
    """The program. Returns the exit status."""
    try:
        args, overrides = parse(arguments(), argv)
        difference = export(args.checkpoint, args.file, args.batch, overrides)
    except (ValueError, RuntimeError, OSError, CheckpointError) as error:
        print(f"export: {error}", file=sys.stderr)
        return 2
    print(f"{args.file}: int32 [{args.batch}, context] to float32 logits; loaded again, differs by {difference:.1g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
