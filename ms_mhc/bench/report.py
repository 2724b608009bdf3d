"""The result as Markdown tables, which a terminal shows well enough and documents take as they are."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

Result = Dict[str, Any]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> List[str]:
    widths = [max(len(line[i]) for line in (head, *rows)) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths)) + " |"

    return [line(head), "|" + "|".join("-" * (width + 2) for width in widths) + "|", *map(line, rows)]


def _task(row: Result) -> List[str]:
    passes = "forward + backward" if row["passes"] == "both" else "forward"
    return [row["operator"], passes, row["dtype"], ",".join(map(str, row["shape"]))]


def _spread(spread: Result, scale: float = 1.0) -> str:
    low, median, high = (spread[name] * scale for name in ("low", "median", "high"))
    return f"{median:.2f} ({low:.2f} to {high:.2f})"


def _ratio(entry: Result) -> str:
    if "refused" in entry:
        return "refused"
    return _spread(entry["ratio"]) if "ratio" in entry else "-"


def _milliseconds(entry: Result) -> str:
    return _spread(entry["seconds"], 1e3) if "seconds" in entry else _ratio(entry)


def _rates(entry: Result) -> List[str]:
    if "ratio" not in entry:
        return ["-", "-"]
    kinds = (("bytes_per_second", "share_of_copy"), ("operations_per_second", "share_of_product"))
    return [f"{entry[rate] / 1e9:.1f} ({100 * entry[share]:.0f} %)" for rate, share in kinds]


def _megabytes(entry: Result) -> str:
    extra = entry.get("peak_extra_bytes")
    return "-" if extra is None else f"{extra / 2**20:.1f}"


def _number(value: Optional[float]) -> str:
    return "-" if value is None else f"{value:.0f}"


def line(row: Result) -> str:
    """One row by itself, for a run that is still going on."""
    times = ", ".join(f"{name} {_milliseconds(entry)}" for name, entry in row["contenders"].items())
    return f"{' '.join(_task(row))} ({row['backend']}), ms: {times}"


def _said(rows: Sequence[Result], key: str) -> List[str]:
    """What contenders' entries say under a key, each once, with the rows that it was said of."""
    found: Dict[str, List[str]] = {}
    for row in rows:
        for name, entry in row["contenders"].items():
            if key in entry:
                found.setdefault(f"{name}: {entry[key]}", []).append(" ".join(_task(row)))
    return [f"- {said} ({'; '.join(tasks)})" for said, tasks in found.items()]


def lines(result: Result) -> List[str]:
    """The whole report, or as much of it as there is."""
    rows: List[Result] = result["rows"]
    names = list(dict.fromkeys(name for row in rows for name in row["contenders"]))
    others = [name for name in names if name != "ours"]
    task = ["operator", "passes", "dtype", "T,N,D"]
    versions = ", ".join(f"{name} {version}" for name, version in result["machine"]["versions"].items())
    report = [
        result["command"],
        f"{result['machine']['processor']}, {result['machine']['threads']} threads; {versions}",
        f"load when started {result['machine']['load_at_start']:.1f}; {result['rounds']} interleaved rounds; "
        "median (quartiles)",
        *([] if result["complete"] else [f"INTERRUPTED after {len(rows)} of {result['planned']} rows"]),
        "",
        "Time of the others divided by ours, in the same round. Above 1: ours is faster.",
        "",
    ]
    cells = [
        [
            *_task(row),
            row["backend"],
            _milliseconds(row["contenders"]["ours"]),
            *(_ratio(row["contenders"][name]) for name in others),
        ]
        for row in rows
    ]
    report += _table([*task, "backend", "ours, ms", *others], cells)

    report += ["", "Against the machine: a copy and an fp32 matrix product, measured in the same rounds.", ""]
    measured = [name for name in ("ours", "kernel") if name in names]
    head = [f"{name}, {unit}" for name in measured for unit in ("GB/s (of copy)", "Gop/s (of product)")]
    cells = [[*_task(row), *(cell for n in measured for cell in _rates(row["contenders"][n]))] for row in rows]
    report += _table([*task, *head], cells)

    both = [row for row in rows if row["passes"] == "both"]
    report += ["", "Bytes that forward saves for backward, per token, beyond the operator's inputs.", ""]
    saved = [[*_task(r), *(_number(r["contenders"][n].get("saved_bytes_per_token")) for n in names)] for r in both]
    report += _table([*task, *names], saved)

    if result["memory"]:
        report += ["", "Peak memory beyond the inputs, MiB: results, temporaries, and what is saved.", ""]
        report += _table([*task, *names], [[*_task(r), *(_megabytes(r["contenders"][n]) for n in names)] for r in rows])

    if result["scaling"]:
        report += ["", "Our forward and backward against T, microseconds per token.", ""]
        cells = []
        for curve in result["scaling"]:
            per_token = [1e6 * s["median"] / t for s, t in zip(curve["seconds"], curve["tokens"])]
            text = ", ".join(f"{t}: {value:.3f}" for t, value in zip(curve["tokens"], per_token))
            cells.append([curve["operator"], curve["dtype"], text])
        report += _table(["operator", "dtype", "T: time per token"], cells)

    titles = (
        ("refused", "Refused, because the results are wrong or differ from ours:"),
        ("missing", "Missing:"),
        ("peak_extra_missing", "Peak memory missing:"),
    )
    for key, title in titles:
        said = _said(rows, key)
        report += ["", title, "", *said] if said else []
    return report
