"""What a variation found: a table of values times methods, and panels of what matters against the value."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.markup import escape
from rich.table import Table

from cobo.experiments.vary import Value, Variation
from cobo.methods import METHODS
from cobo.report import figures, page, table
from cobo.report.comparison import NAMES, method_look
from cobo.report.summary import Results, Runs, made_with, read_runs, read_unfinished, summarise_runs
from cobo.training.checkpoint import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Spread = dict[str, Any] | None  # mean and standard deviation over seeds

PANELS = {"weights_error": "distance of W from the true groups", "gradients": "gradients computed"}
COLUMNS = ("method", "accuracy %", "perplexity", "loss", "improved %", "recovery %", "gradients", "groups", "s")


def summarise(variation: Variation) -> Results:
    """What results.json says: for each value the results of a comparison, with the runs that all values share.

    A value with no finished run has no methods.
    """
    values = []
    all_runs = {}
    for value, runs in _runs(variation):
        all_runs.update({f"{value.text} {method}": seeds for method, seeds in runs.items()})
        results = _results(value, runs, value.experiment.experiment)
        common = ("experiment", "environment")
        own = {key: found for key, found in results.items() if key not in common}
        values.append({"value": value.value, "text": value.text, "folder": value.folder.name, **own})
    return {
        "experiment": variation.values[0].experiment.experiment,
        "varied": variation.key,
        "shared": variation.shared,
        "environment": made_with(all_runs),
        "values": values,
    }


def _runs(variation: Variation) -> list[tuple[Value, Runs]]:
    """For each value the finished runs that count for it, wherever they are."""
    finished = {value.folder: read_runs(value.folder) for value in variation.values}
    ordered = [method for method in METHODS if method in variation.methods]
    found = []
    for value in variation.values:
        runs = {method: finished[variation.home(value, method).folder].get(method, {}) for method in ordered}
        found.append((value, {method: seeds for method, seeds in runs.items() if seeds}))
    return found


def _results(value: Value, runs: Runs, title: str) -> Results:
    targets = (value.experiment.target_accuracy, value.experiment.target_perplexity)
    return summarise_runs(runs, read_unfinished(value.folder), title, *targets)


def write_pages(variation: Variation) -> None:
    """The report.html of each value in its folder, with the runs that all values share."""
    for value, runs in _runs(variation):
        if runs and value.folder.is_dir():
            title = f"{value.experiment.experiment}, {variation.key} = {value.text}"
            page.write(value.folder, _results(value, runs, title), runs)


def write(folder: Path, results: Results) -> None:
    """results.json and the table in every form."""
    key, heads, csv_heads = results["varied"], _columns(results), table.csv_columns(*results["values"])
    about = [title(results), notes(results)]
    nothing = ["-"] * len(heads)  # the row of a value with no finished run
    none: list[object] = [None] * len(csv_heads)
    body = [(at["text"], *row) for at in results["values"] for row in table.cells(at, heads) or [nothing]]
    numbers = [(at["text"], *row) for at in results["values"] for row in table.csv_rows(at, csv_heads) or [none]]
    cells = [[table.escaped(cell) for cell in row] for row in body]
    markdown = f"{about[0]}\n\n{table.markdown_table((key, *heads), body)}\n{about[1]}\n"
    write_atomic(folder / "table.md", markdown.encode())
    write_atomic(folder / "table.csv", table.csv_table((key, *csv_heads), numbers).encode())
    write_atomic(folder / "table.tex", table.latex_table((key, *heads), cells, about, words=2).encode())
    write_atomic(folder / "results.json", json.dumps(results, indent=1).encode())


def terminal(results: Results) -> Table:
    """For 80 columns; a value is named once."""
    found = Table(
        title=escape(title(results)), title_justify="left", caption=escape(notes(results)), caption_justify="left",
        box=None, padding=(0, 0, 0, 1), pad_edge=False,
    )  # fmt: skip
    found.add_column(results["varied"].rpartition(".")[2], overflow="fold", max_width=20)
    heads = _columns(results)
    for head in heads:
        table.add_column(found, head)
    for at in results["values"]:
        for k, row in enumerate(table.brief_cells(at, heads) or [["-"] * len(heads)]):
            found.add_row(*(escape(cell) for cell in (at["text"] if k == 0 else "", *row)))
    return found


def title(results: Results) -> str:
    done = [at for at in results["values"] if at["methods"]]
    rounds, seeds = {at["rounds"] for at in done}, {len(at["seeds"]) for at in done}
    return f"{results['experiment']}: {results['varied']}, {_span(rounds, 'round')}, {_span(seeds, 'seed')}"


def notes(results: Results) -> str:
    said = []
    if results["shared"]:
        said.append(f"Run once, as {results['varied']} is no setting of theirs: {', '.join(results['shared'])}.")
    if any(m["seeds"] != at["seeds"] for at in results["values"] for m in at["methods"].values()):
        said.append("* fewer seeds.")
    missing = [f"{at['text']} {run}" for at in results["values"] for run in at["unfinished"]]
    said += [f"Begun but not finished: {', '.join(missing)}."] if missing else []
    return " ".join(said)


def draw(folder: Path, results: Results) -> None:
    """FOLDER/figures/vary, if there is something to show."""
    for name, found in drawn(results).items():
        (folder / "figures").mkdir(exist_ok=True)
        figures.save(found, folder / "figures", name)


def drawn(results: Results) -> "dict[str, Figure]":
    """The figure by its name: accuracy, or else perplexity or loss, and what it took, against the value."""
    known = (score for score in NAMES if any(m[score] for at in results["values"] for m in at["methods"].values()))
    score = next(known, None)
    return {} if score is None else {"vary": figure(results, score)}


def figure(results: Results, score: str) -> "Figure":
    """Panels over the values: the score, how far W is from the true groups where they are known, gradients computed.

    A line per method over values that are numbers, else dots side by side; bars are one standard deviation. A method
    that was run once for all values is a level line.
    """
    found = [m for at in results["values"] for m in at["methods"].values()]
    panels = [score, *(["weights_error"] if any(m["weights_error"] is not None for m in found) else []), "gradients"]
    drawn, axes = figures.new(3.6 * len(panels) + 1.2, 3.4, len(panels))
    handles: dict[str, Any] = {}
    for ax, measure in zip(axes, panels, strict=True):
        for method, handle in _panel(ax, results, measure).items():
            handles.setdefault(method, handle)
        ax.set(xlabel=figures.plain(results["varied"]), ylabel={**NAMES, **PANELS}[measure])
        if measure == "weights_error":  # what is nearly nothing should look like it
            ax.set_ylim(-0.01, max(0.2, ax.get_ylim()[1]))
    drawn.legend(
        list(handles.values()), [figures.plain(method) for method in handles], loc="outside right upper", frameon=False
    )
    return drawn


def _panel(ax: "Axes", results: Results, measure: str) -> dict[str, Any]:
    """One measure against the value; what stands for each method that has it."""
    values = results["values"]
    numbers = all(isinstance(at["value"], int | float) and not isinstance(at["value"], bool) for at in values)
    texts = [figures.plain(at["text"]) for at in values]
    places, scale = _places([at["value"] for at in values], texts) if numbers else (np.arange(len(values)), "linear")
    methods = list(dict.fromkeys(method for at in values for method in at["methods"]))
    handles: dict[str, Any] = {}
    varied = [method for method in methods if method not in results["shared"]]
    for method in methods:
        spreads = [_spread(at["methods"].get(method, {}).get(measure)) for at in values]
        if method in results["shared"]:
            handles[method] = _level(ax, method, next((spread for spread in spreads if spread), None))
        else:
            aside = 0.0 if numbers else 0.12 * (varied.index(method) - (len(varied) - 1) / 2)
            handles[method] = _points(ax, method, places + aside, spreads, joined=numbers)
    ax.set_xscale(scale)
    ax.set_xticks(places, texts, rotation=90 if len(values) * _width(texts) > 1 else 0)
    ax.minorticks_off()
    if not numbers:
        ax.set_xlim(-0.5, len(values) - 0.5)
        ax.grid(visible=False, axis="x")
    return {method: handle for method, handle in handles.items() if handle is not None}


def _places(values: list[float], texts: list[str]) -> tuple[NDArray[np.float64], str]:
    """Where numbers are on the axis, and its scale; evenly, by size, where their texts would be over each other."""
    places, scale = np.array(values, dtype=float), "linear"
    if places.min() > 0 and places.max() >= 20 * places.min():
        scale = "log"
    on_paper = np.sort(np.log(places) if scale == "log" else places)
    if np.diff(on_paper).min(initial=np.inf) < _width(texts) * np.ptp(on_paper):
        return places.argsort().argsort().astype(float), "linear"
    return places, scale


def _width(texts: list[str]) -> float:
    """Of the longest text, as a share of a panel."""
    return 0.03 * (max(len(text) for text in texts) + 1)


def _spread(value: Any) -> Spread:
    """Of what has one number for all seeds, that number."""
    return {"mean": value, "std": None} if isinstance(value, int | float) else value


def _level(ax: "Axes", method: str, spread: Spread) -> Any:
    if spread is None:
        return None
    look = method_look(method)
    if spread["std"] is not None:
        low, high = spread["mean"] - spread["std"], spread["mean"] + spread["std"]
        ax.axhspan(low, high, color=look["color"], alpha=0.12, linewidth=0)
    return ax.axhline(spread["mean"], **look)


def _points(ax: "Axes", method: str, places: Any, spreads: list[Spread], *, joined: bool) -> Any:
    known = [(x, spread) for x, spread in zip(places, spreads, strict=True) if spread is not None]
    if not known:
        return None
    look = method_look(method) | ({} if joined else {"linestyle": ""})
    deviations = [spread["std"] for _, spread in known]
    return ax.errorbar(
        [x for x, _ in known], [spread["mean"] for _, spread in known],
        yerr=None if None in deviations else deviations,
        marker="o", markersize=5, capsize=3, elinewidth=1.2, **look,
    )  # fmt: skip


def _columns(results: Results) -> list[str]:
    return [head for head in table.columns(*results["values"]) if head in COLUMNS]


def _span(counts: set[int], what: str) -> str:
    low, high = min(counts), max(counts)
    return (f"{low}" if low == high else f"{low} to {high}") + f" {what}{'s' * (high > 1)}"
