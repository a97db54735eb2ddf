"""A folder of runs in a terminal: the table, W in blocks, the groups found, and a line of blocks per curve."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from cobo.report import comparison, table
from cobo.report.milestones import on_simplex
from cobo.report.page import graphs, words
from cobo.report.summary import Results, Runs, read_runs

SHADES = " ░▒▓█"
HEIGHTS = "▁▂▃▄▅▆▇█"
RAMP = ("#0f1a26", "#0d2f57", "#08519c", "#2171b5", "#4292c6", "#6baed6", "#9ecae1", "#c6dbef", "#f7fbff")
NOBODY = "#5a5a5a"
MOST_NAMED = 30  # clients with a line of their own, and their name
MOST_LETTERS = 16  # of such a name
MOST_LISTED = 12  # groups, and names of one


def show(console: Console, folder: Path, results: Results) -> None:
    runs = read_runs(folder)
    console.print(table.terminal(results), soft_wrap=not console.is_terminal)
    console.print()
    _say(console, words.finding(results, runs))
    for note in words.notes(results, runs):
        _say(console, note)
    console.print()
    _weights(console, results, runs)
    _curves(console, results, runs)


def _weights(console: Console, results: Results, runs: Runs) -> None:
    """W in the end of the first seed of CoBo or, without it, of another method that has one."""
    order = [words.leading(results), *runs]
    known = (run for method in order for run in runs[method].values() if run["weights"] is not None)
    run = next(known, None)
    grouping = None if run is None else graphs.found(run)
    if run is None or grouping is None:
        return _say(console, "No W: no method here learns weights between clients.\n")
    rows = graphs.rows(run["names"], grouping, most=console.width)
    W = graphs.blocks(rows, graphs.last(run))
    top = float(np.nanmax(W, initial=1e-9)) if on_simplex(run) else 1.0
    head = f"W of {run['method']['name']}, seed {run['training']['seed']}, in the end (a row learns from a column)"
    _say(console, head + ("; rows are groups" if len(rows.clients) < len(run["names"]) else ""))
    coloured = console.color_system in ("256", "truecolor", "windows")
    labels = _aligned(rows.labels) if len(W) <= MOST_NAMED else None
    for line in _coloured(W / top, labels) if coloured else _shaded(W / top, labels):
        console.print(line, no_wrap=True, overflow="ignore", crop=False)
    legend = f"dark 0, light {top:.2g}; grey: no pair" if coloured else f"0 {SHADES[1:]} {top:.2g}; · no pair"
    _say(console, legend)
    console.print()
    _groups(console, run["names"], grouping)


def _coloured(W: graphs.Weights, labels: Sequence[str] | None) -> list[Text]:
    """Two columns a cell and a name, or one column and half a line."""
    if labels is not None:
        return [
            Text.assemble(label, *(("  ", f"on {_colour(w)}") for w in row))
            for label, row in zip(labels, W, strict=True)
        ]
    lower = [*W[1::2], *([np.full(len(W), np.nan)] * (len(W) % 2))]
    return [
        Text.assemble(*(("▀", f"{_colour(a)} on {_colour(b)}") for a, b in zip(upper, below, strict=True)))
        for upper, below in zip(W[::2], lower, strict=True)
    ]


def _shaded(W: graphs.Weights, labels: Sequence[str] | None) -> list[Text]:
    """The same without colours; where a line is two rows, it shows their mean."""
    if labels is not None:
        return [Text(label + "".join(2 * _shade(w) for w in row)) for label, row in zip(labels, W, strict=True)]
    pairs = [W[k : k + 2] for k in range(0, len(W), 2)]
    return [Text("".join(_shade(_mean(pair[:, j])) for j in range(len(W)))) for pair in pairs]


def _aligned(labels: Sequence[str]) -> list[str]:
    """Names that end in one column, by the columns that their letters take."""
    clean = [_clean(label) for label in labels]
    half = MOST_LETTERS // 2  # cut in the middle: names often differ in their last letters only
    brief = [label if len(label) <= MOST_LETTERS else f"{label[:half]}…{label[1 - half :]}" for label in clean]
    width = max(cell_len(label) for label in brief)
    return [" " * (width - cell_len(label)) + label + " " for label in brief]


def _mean(values: graphs.Weights) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def _colour(w: float) -> str:
    return NOBODY if np.isnan(w) else RAMP[round(min(max(w, 0), 1) * (len(RAMP) - 1))]


def _shade(w: float) -> str:
    return "·" if np.isnan(w) else SHADES[round(min(max(w, 0), 1) * (len(SHADES) - 1))]


def _groups(console: Console, names: Sequence[str], grouping: graphs.Found) -> None:
    for g, group in enumerate(grouping.groups[:MOST_LISTED]):
        listed = ", ".join(_clean(names[k]) for k in group[:MOST_LISTED])
        more = f" and {len(group) - MOST_LISTED} more" if len(group) > MOST_LISTED else ""
        _say(console, f"group {g + 1} ({len(group)}): {listed}{more}")
    if len(grouping.groups) > MOST_LISTED:
        _say(console, f"and {len(grouping.groups) - MOST_LISTED} more groups")
    if grouping.away:
        _say(console, f"have left: {', '.join(_clean(names[k]) for k in grouping.away[:MOST_LISTED])}")
    console.print()


def _curves(console: Console, results: Results, runs: Runs) -> None:
    """A line per method, all on one scale; mean over seeds; a dot where there is no number."""
    score = table.score(results)
    scored = {method: seeds for method, seeds in runs.items() if comparison.points(seeds, score)}
    found = {method: comparison.curve(seeds, score) for method, seeds in scored.items()}
    if not found:
        return _say(console, f"No {score} over time.")
    low = min(float(np.nanmin(line.mean)) for line in found.values())
    high = max(float(np.nanmax(line.mean)) for line in found.values())
    rounds = max(line.rounds[-1] for line in found.values())
    _say(console, f"{comparison.NAMES[score]} over {rounds:,} rounds, {low:.4g} to {high:.4g}")
    width = max(len(method) for method in found)
    room = max(10, min(50, console.width - width - 12))
    for method, line in found.items():
        end = "-" if np.isnan(line.mean[-1]) else f"{line.mean[-1]:.4g}"
        _say(console, f"{method:>{width}} {_line(line.mean, low, high, room)} {end}")


def _line(values: Any, low: float, high: float, room: int) -> str:
    kept = values[np.linspace(0, len(values) - 1, min(room, len(values))).round().astype(int)]
    share = (kept - low) / max(high - low, 1e-12)
    return "".join("·" if np.isnan(x) else HEIGHTS[round(float(x) * (len(HEIGHTS) - 1))] for x in share)


def _clean(name: str) -> str:
    """A name that moves no cursor."""
    return "".join(letter if letter.isprintable() else "?" for letter in name)


def _say(console: Console, line: str) -> None:
    console.print(Text(line))
