"""The figures of a comparison: scores against rounds and against gradients computed, and W as it was learned.

Where rows of W are on a simplex, those of `domain_weights` come with them.

They show what is finished. Shapes: s snapshots, n clients.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cobo.collaboration import graph
from cobo.report import domain_weights, figures
from cobo.report.milestones import on_simplex, pairs, seen
from cobo.report.summary import Results, read_runs, read_snapshots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GRAPHS = ("cobo", "ifca", "fc")  # methods that find out who belongs together
STAGES = (0.0, 0.0075, 0.025, 0.125, 0.5, 1.0)  # of the rounds; the paper's figure of W has these
NAMES = {"accuracy": "accuracy, %", "perplexity": "perplexity", "loss": "loss"}


class Curve(NamedTuple):
    """A score over time: mean and standard deviation over seeds (None with one).

    Not a number where a seed has none: a line has a gap there.
    """

    rounds: list[int]
    gradients: list[float]
    mean: NDArray[np.float64]
    std: NDArray[np.float64] | None


class Graphs(NamedTuple):
    """W at some rounds [s, n, n] as one run recorded it, not a number where there is no pair; an oracle's, if known."""

    rounds: list[int]
    weights: list[NDArray[np.float64]]
    truth: NDArray[np.float64] | None
    darkest: float


def draw(folder: Path, results: Results) -> None:
    """FOLDER/figures: those for which there is something to show."""
    (folder / "figures").mkdir(exist_ok=True)
    for name, figure in drawn(folder, results).items():
        figures.save(figure, folder / "figures", name)


def drawn(folder: Path, results: Results, rounds: Sequence[int] | None = None) -> "dict[str, Figure]":
    """The figures by name; `rounds` are those at which W is shown, or else some stages of training."""
    runs = read_runs(folder)
    made: dict[str, Figure] = {}
    for score in NAMES:
        lines = {method: curve(seeds, score) for method, seeds in runs.items()}
        found = {method: line for method, line in lines.items() if np.isfinite(line.mean).sum() > 1}
        if found:
            target = results.get(f"target_{score}")
            made["perplexity" if score == "perplexity" else "accuracy"] = curves(found, score, "rounds", target)
            made["gradients"] = curves(found, score, "gradients", target)
            break
    learned = {}
    first = {method: next(iter(seeds.values())) for method, seeds in runs.items()}
    for name in GRAPHS:
        for method, run in first.items():
            snapshots = read_snapshots(run) if run["method"]["name"] == name else []
            if snapshots:
                seed = f"\nseed {next(iter(runs[method]))}" if len(runs[method]) > 1 else ""
                learned[method + seed] = _graphs(run, snapshots)
    if learned:
        made["weights"] = weights(learned, rounds)
    for seeds in runs.values():
        made |= domain_weights.draw(list(seeds.values()))
    return made


def curve(seeds: Mapping[int, dict[str, Any]], score: str) -> Curve:
    """The score of a method over the evaluations that all seeds have."""
    found = points(seeds, score)
    scores = [[np.nan if x.get(score) is None else x[score] for x in at] for at in found.values()]
    values = np.array(scores).reshape(-1, len(seeds))
    std = values.std(1, ddof=1) if len(seeds) > 1 else None
    return Curve(list(found), [fmean(x["gradients"] for x in at) for at in found.values()], values.mean(1), std)


def points(seeds: Mapping[int, dict[str, Any]], score: str) -> dict[int, list[dict[str, Any]]]:
    """By round: the lines of all seeds; none if there is no round at which each has a score."""
    histories = [{x["round"]: x for x in run["history"]} for run in seeds.values()]
    common = set.intersection(*(set(history) for history in histories))
    found = {round: [history[round] for history in histories] for round in sorted(common)}
    return found if any(not lost(at, score) for at in found.values()) else {}


def lost(lines: Sequence[dict[str, Any]], score: str) -> bool:
    """Whether a seed has no score that is a number."""
    return any(line.get(score) is None for line in lines)


def curves(found: Mapping[str, Curve], score: str, against: str, target: float | None) -> "Figure":
    """A line per method, with a band of one standard deviation over seeds; beside it the same, nearer to the best."""
    near = None if score == "loss" else near_the_best(found, score)
    figure, axes = figures.new(6.4 if near is None else 9.6, 3.8, 1 if near is None else 2)
    everything = (-np.inf, np.inf)
    for ax, scores in zip(axes, (everything, near or everything), strict=False):
        for (method, line), look in zip(found.items(), looks(found).values(), strict=True):
            _line(ax, method, line, look, score, against, scores)
        if target is not None:
            ax.axhline(target, color=figures.GREY, linewidth=0.9, linestyle="--", label=f"target {target:g}")
        ax.set_xlabel("rounds" if against == "rounds" else "gradients computed")
        at = [x for line in found.values() for x in np.array(getattr(line, against))[_among(line, scores)].tolist()]
        if scores is near and len(set(at)) > 1:
            ax.set_xlim(min(at), max(at) + 0.03 * (max(at) - min(at)))
        if against == "gradients":
            _log_gradients(ax, [x for x in at if x > 0])
        if score == "loss" and all(np.nanmin(line.mean) > 0 for line in found.values()):
            ax.set_yscale("log")
    if score == "perplexity" and max(np.nanmax(line.mean) / np.nanmin(line.mean) for line in found.values()) > 10:
        _log_scale(axes[0])
    axes[0].set_ylabel(NAMES[score])
    if near is not None:
        axes[1].set_ylim(near)
    handles, labels = axes[0].get_legend_handles_labels()
    title = f"{score} in the end"
    figure.legend(handles, labels, loc="outside right upper", frameon=False, title=title, alignment="left")
    return figure


def _among(line: Curve, scores: tuple[float, float]) -> NDArray[np.bool_]:
    """Which points of a line are in a range of scores."""
    found: NDArray[np.bool_] = (scores[0] <= line.mean) & (line.mean <= scores[1])
    return found


def _line(
    ax: "Axes", method: str, line: Curve, look: dict[str, Any], score: str, against: str, scores: tuple[float, float]
) -> None:
    """The line of a method; its band if that is not so wide among these scores that it would hide the others."""
    x = np.array(getattr(line, against))
    shown = slice(None) if against == "rounds" else x > 0  # which a log scale can show
    ax.plot(x[shown], line.mean[shown], label=f"{figures.plain(method)} {_brief(line.mean[-1], score)}", **look)
    alone = _between_gaps(line.mean)
    if alone.any():
        ax.plot(x[alone], line.mean[alone], ".", color=look["color"])
    if line.std is not None:
        low, high = (line.mean - line.std)[shown], (line.mean + line.std)[shown]
        if line.std[_among(line, scores)].max(initial=0) < 0.5 * (scores[1] - scores[0]):
            ax.fill_between(x[shown], low, high, color=look["color"], alpha=0.18, linewidth=0)


def _between_gaps(mean: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which points of a line are no end of any stroke, and would not be seen."""
    known = np.isfinite(mean)
    alone: NDArray[np.bool_] = known & ~np.append(False, known[:-1]) & ~np.append(known[1:], False)
    return alone


def _log_gradients(ax: "Axes", values: list[float]) -> None:
    """A log scale, if they are far enough apart for one, with few and short numbers: 500, 2k, 10M."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    span = max(values, default=1) / min(values, default=1)
    if span >= 10:
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if span < 100 else (1.0,)))
        ax.xaxis.set_minor_formatter(NullFormatter())
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))


def _log_scale(ax: "Axes") -> None:
    """With plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.minorticks_off()


def near_the_best(found: Mapping[str, Curve], score: str) -> tuple[float, float] | None:
    """The range of scores in which the better methods end, if much of the whole lies outside it."""
    everything = np.concatenate([line.mean[np.isfinite(line.mean)] for line in found.values()])
    ends = [line.mean[-1] for line in found.values() if np.isfinite(line.mean[-1])]
    if not ends:
        return None
    if score == "perplexity":
        low = 0.98 * everything.min()
        high = 1.05 * max(end for end in ends if end <= 1.25 * min(ends))
    else:
        low = min(end for end in ends if end >= max(ends) - 10) - 2
        high = everything.max() + 1
    return (low, high) if high - low < 0.5 * np.ptp(everything) else None


def looks(methods: Iterable[str]) -> dict[str, dict[str, Any]]:
    """How the line of each looks. Names of folders that are no method's take turns with the colours that are left."""
    found = {method: method_look(method) for method in methods}
    left = [figures.OTHER, *(c for m, c in figures.METHOD_COLOURS.items() if m not in found)]
    for k, method in enumerate(method for method in found if method not in figures.METHOD_COLOURS):
        found[method] |= {"color": left[k % len(left)], "linestyle": "-" if k < len(left) else ":"}
    return found


def method_look(method: str) -> dict[str, Any]:
    """How a method's line looks, everywhere."""
    return {
        "color": figures.METHOD_COLOURS.get(method, figures.OTHER),
        "linestyle": "--" if method == "oracle" else "-",
        "linewidth": 2.2 if method == "cobo" else 1.4,
        "zorder": 3 if method == "cobo" else 2,
    }


def _brief(value: float, score: str) -> str:
    if np.isnan(value):
        return "-"
    return f"{value:.1f}" if score == "accuracy" else f"{value:.{4 if score == 'perplexity' else 3}g}"


def _graphs(run: dict[str, Any], snapshots: Sequence[tuple[int, NDArray[np.float32]]]) -> Graphs:
    """Clients ordered by their true group, where it is known."""
    groups, names = run["true_groups"], run["names"]
    order = sorted(range(len(names)), key=lambda k: first_met(groups, k))
    shown = [seen(run, round, W)[np.ix_(order, order)] for round, W in snapshots]
    darkest = float(np.nanmax(shown, initial=1e-9)) if on_simplex(run) else 1.0
    truth = None
    if None not in groups:
        known = np.where(pairs(run, names), graph.oracle(groups), np.nan)
        truth = known[np.ix_(order, order)].astype(np.float64)
    return Graphs([round for round, _ in snapshots], shown, truth, darkest)


def first_met(groups: Sequence[str | int | None], k: int) -> int:
    """Where a client's group is first met; those of which no group is known stay where they are."""
    return k if groups[k] is None else groups.index(groups[k])


def weights(learned: Mapping[str, Graphs], wanted: Sequence[int] | None = None) -> "Figure":
    """A row per method, a column per recorded round nearest to one wanted (or to a stage), and last the oracle's W.

    On a simplex the largest weight is the darkest.
    """
    known = all(found.truth is not None for found in learned.values())
    common = sorted(set.intersection(*(set(found.rounds) for found in learned.values())))
    at = [share * common[-1] for share in STAGES] if wanted is None else wanted
    rounds = list(dict.fromkeys(min(common, key=lambda r: abs(r - place)) for place in at))
    columns = len(rounds) + known
    figure, axes = figures.new(1.25 * columns + 1.0, 1.3 * len(learned) + 0.4, columns, len(learned))
    rows = [axes[k * columns : (k + 1) * columns] for k in range(len(learned))]
    images = []
    for cells, (method, found) in zip(rows, learned.items(), strict=True):
        recorded = dict(zip(found.rounds, found.weights, strict=True))
        for cell, round in zip(cells, rounds, strict=False):
            image = figures.matrix(cell, recorded[round], found.darkest)
        images.append(image)
        if known:
            figures.matrix(cells[-1], found.truth, found.darkest)
        cells[0].set_ylabel(figures.plain(method), fontsize=10)
    for cell, head in zip(axes, [f"round {r:,}" for r in rounds] + ["oracle"] * known, strict=False):
        cell.set_title(head, fontsize=9)
    alike = len({found.darkest for found in learned.values()}) == 1
    for image, beside in [(images[0], axes)] if alike else zip(images, rows, strict=True):
        bar = figure.colorbar(image, ax=list(beside), shrink=0.8 if len(beside) == columns else 0.5, pad=0.02)
        bar.set_label("$w_{ij}$")
        bar.outline.set_visible(False)
    return figure
