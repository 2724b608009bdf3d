"""A picture of a result. matplotlib is optional and imported by name."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Dict, Optional


def missing() -> Optional[str]:
    """Why no picture can be made here, or ``None``."""
    if find_spec("matplotlib") is None:
        return "--plot needs matplotlib, which is not installed; run: pip install 'ms-mhc[bench]'"
    return None


def _ratios(axes: Any, result: Dict[str, Any]) -> None:
    rows = result["rows"]
    names = [n for n in dict.fromkeys(n for row in rows for n in row["contenders"]) if n != "ours"]
    for number, name in enumerate(names):
        found = [
            (i, row["contenders"][name]["ratio"])
            for i, row in enumerate(rows)
            if "ratio" in row["contenders"].get(name, {})
        ]
        if not found:
            continue
        places = [i + 0.15 * (number - (len(names) - 1) / 2) for i, _ in found]
        medians = [r["median"] for _, r in found]
        errors = [[r["median"] - r["low"] for _, r in found], [r["high"] - r["median"] for _, r in found]]
        axes.errorbar(medians, places, xerr=errors, fmt="o", markersize=4, label=name)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yticks(
        range(len(rows)),
        [f"{r['operator']} {r['passes']} {r['dtype']} {','.join(map(str, r['shape']))}" for r in rows],
        fontsize=7,
    )
    axes.invert_yaxis()
    axes.set_xlabel("time / our time (median, quartiles)")
    axes.grid(axis="x", which="both", alpha=0.3)
    axes.legend(fontsize=7)


def _curves(axes: Any, result: Dict[str, Any]) -> None:
    for curve in result["scaling"]:
        medians = [1e3 * s["median"] for s in curve["seconds"]]
        _, n, d = curve["shape"]
        axes.plot(curve["tokens"], medians, "o-", label=f"{curve['operator']} {curve['dtype']} N={n} D={d}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("T")
    axes.set_ylabel("our forward and backward, ms")
    axes.grid(which="both", alpha=0.3)
    axes.legend(fontsize=7)


def save(result: Dict[str, Any], path: Path) -> None:
    """Ratios above, our time against T below; the file's suffix says the format."""
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    height = 2 + 0.28 * len(result["rows"])
    figure, (above, below) = pyplot.subplots(2, 1, figsize=(9, height + 4), height_ratios=(height, 4))
    _ratios(above, result)
    _curves(below, result)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
