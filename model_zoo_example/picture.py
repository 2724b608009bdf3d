"""The picture of ``compare``: a row per depth; validation loss, gradient norm, forward and backward gain."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Sequence

import numpy as np

STYLE = {
    "plain": ("plain residual", "#7f7f7f"),
    "unconstrained": ("unconstrained hyper-connections", "#d1495b"),
    "mhc": ("mHC", "#2e6f95"),
}
Result = Dict[str, Any]


def draw(results: Sequence[Result], file: Path) -> None:
    """Draw the results of ``compare`` into a file whose suffix decides the format.

    Raises:
        ValueError: matplotlib is not installed.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
        from matplotlib import ticker
    except ImportError as error:
        raise ValueError("--plot needs matplotlib: pip install 'ms-mhc[example]'") from error

    depths = sorted({result["layers"] for result in results})
    figure, rows = plt.subplots(len(depths), 4, figsize=(15, 3.4 * len(depths)), squeeze=False, layout="constrained")
    for depth, axes in zip(depths, rows):
        for result in results:
            if result["layers"] == depth:
                _draw_run(result, axes)
        titles = ("validation loss", "gradient norm", "forward gain, layers 0 to l", "backward gain, layers l to last")
        for axis, title in zip(axes, titles):
            axis.set_title(title if axis is not axes[0] else f"{depth} blocks: {title}", fontsize=10)
            axis.grid(alpha=0.3, linewidth=0.5)
        axes[0].set(xlabel="step", ylabel="nats per byte", yscale="log")
        axes[0].yaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
        axes[0].yaxis.set_minor_formatter(ticker.FormatStrFormatter("%g"))
        axes[1].set(xlabel="step", yscale="log")
        for axis in axes[2:]:
            axis.axhline(1.0, color=STYLE["plain"][1], linewidth=1)
            axis.set(xlabel="layer l", yscale="log")
            low, high = axis.get_ylim()
            axis.set_ylim(min(low, 0.5), max(high, 10.0))
    handles: List[Any] = []
    for kind in STYLE:
        lines = [line for line in rows[0][0].get_lines() if line.get_label() == kind]
        if lines:
            lines[0].set_label(STYLE[kind][0])
            handles.append(lines[0])
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    figure.savefig(file, dpi=110)
    plt.close(figure)


def _draw_run(result: Result, axes: Any) -> None:
    colour = STYLE[result["residual"]][1]
    line = {"color": colour, "linewidth": 1.3, "alpha": 0.8}
    axes[0].plot(result["steps"], result["validation"], label=result["residual"], **line)
    axes[1].plot(np.arange(1, len(result["norms"]) + 1), result["norms"], **{**line, "linewidth": 0.8})
    for axis, name in ((axes[2], "composite_forward"), (axes[3], "composite_backward")):
        if result["gains"]:
            axis.plot([row[name] for row in result["gains"]], **line)
