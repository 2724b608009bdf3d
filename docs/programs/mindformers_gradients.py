"""The gradients of a layer of MindSpore Transformers 2.1.0 with two hyper-connections, in a compiled graph.

Theirs gives the FFN connection's weight the gradient of the attention connection's; with ``apply`` it is right::

    make zoo
    build/mindformers/venv/bin/python docs/programs/mindformers_gradients.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Dict, Tuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from ms_mhc.integrations import mindformers
from tests import mindformers_packages
from tests.mindformers_side_by_side import Bench, theirs_importable

WEIGHTS = ("layer.attn_hc.mapping_proj.weight", "layer.ffn_hc.mapping_proj.weight")
Gradients = Tuple[np.ndarray, np.ndarray]


def gradients(bench: Bench, whose: str) -> Dict[str, Gradients]:
    """Of the two weights: called eagerly and in a graph, from the same layer and the same input."""
    for way in ("pynative", "graph"):
        bench.run("layer", whose, bench.build("layer", bench.config()), way)
    return {
        way: (bench.results[f"layer/{way}/{whose}/{WEIGHTS[0]}"], bench.results[f"layer/{way}/{whose}/{WEIGHTS[1]}"])
        for way in ("pynative", "graph")
    }


def line(whose: str, way: str, found: Gradients, truth: Gradients) -> str:
    """Whether the two gradients are the same bits, and how far each is from the truth."""
    errors = [float(np.abs(got - want).max() / np.abs(want).max()) for got, want in zip(found, truth)]
    equal = "the same bits" if (found[0] == found[1]).all() else "different"
    return f"{whose:8s}{way:10s}{equal:15s}{errors[0]:12.1e}{errors[1]:12.1e}"


def main() -> None:
    """Prints a table; the truth are their own gradients when the layer is called eagerly."""
    problem = mindformers_packages.problem("2.1.0")
    if problem:
        raise SystemExit(problem)
    theirs_importable(mindformers_packages.package("2.1.0"))
    bench = Bench("CPU")
    theirs = gradients(bench, "theirs")
    mindformers.apply(head=False)
    ours = gradients(bench, "ours")
    truth = theirs["pynative"]
    print("Gradients of mapping_proj.weight in one layer: those of the attention and of the FFN connection, and their")
    print("largest difference from theirs called eagerly, relative to the largest gradient")
    print(f"{'':18s}{'they are':15s}{'attention':>12s}{'FFN':>12s}")
    for whose, found in (("theirs", theirs), ("ours", ours)):
        for way, name in (("pynative", "eager"), ("graph", "graph")):
            print(line(whose, name, found[way], truth))


if __name__ == "__main__":
    main()
