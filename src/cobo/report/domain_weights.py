"""Rows of W on a simplex: how much each client learns from each, over rounds and in the end.

Shapes: k seeds, s snapshots, n clients.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cobo.report import figures
from cobo.report.milestones import on_simplex, seen
from cobo.report.summary import read_snapshots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 12  # clients whose lines and numbers can be told apart
HALF_LIFE = 0.02  # of the moving average, as a share of the rounds
IN_A_ROW = 4  # panels


class Rows(NamedTuple):
    """W [k, s, n, n] at some rounds; not a number where somebody was not there, or has no weight for itself."""

    names: list[str]
    rounds: list[int]
    weights: NDArray[np.float64]


def draw(runs: Sequence[dict[str, Any]]) -> "dict[str, Figure]":
    """Of the runs of one method, a seed each; none if its rows are not on a simplex or there are too many."""
    if not has_rows(runs[0]):
        return {}
    found = read(runs)
    return {"domain-weights": over_rounds(found), "weights-final": in_the_end(found)} if found.rounds else {}


def has_rows(run: dict[str, Any]) -> bool:
    """Whether a run has rows on a simplex, and few enough to be told apart."""
    return on_simplex(run) and len(run["names"]) <= MOST


def span(rounds: Sequence[int]) -> int:
    """The half-life of the moving average, in rounds."""
    return max(1, round(HALF_LIFE * rounds[-1]))


def read(runs: Sequence[dict[str, Any]]) -> Rows:
    """What the runs recorded, at the rounds that all of them have."""
    recorded = [dict(read_snapshots(run)) for run in runs]
    rounds = sorted(set.intersection(*(set(snapshots) for snapshots in recorded)))
    found = [[seen(run, r, snapshots[r]) for r in rounds] for run, snapshots in zip(runs, recorded, strict=True)]
    return Rows(runs[0]["names"], rounds, np.array(found))


def smoothed(rounds: Sequence[int], weights: NDArray[np.float64], half_life: float) -> NDArray[np.float64]:
    """The exponential moving average of weights [k, s, ...] over rounds [s]; who comes later begins there.

    >>> smoothed([0, 10, 20], np.array([[0.0, 1.0, 1.0]]), 10)
    array([[0.  , 0.5 , 0.75]])
    """
    found = weights.copy()
    for t in range(1, len(rounds)):
        keep = 0.5 ** ((rounds[t] - rounds[t - 1]) / half_life)
        before = np.where(np.isnan(found[:, t - 1]), weights[:, t], found[:, t - 1])
        found[:, t] = keep * before + (1 - keep) * weights[:, t]
    return found


def over_rounds(found: Rows) -> "Figure":
    """A panel per client with a line per peer: the mean over seeds and, thin, each seed. Its own weight is dashed."""
    n = len(found.names)
    half_life = span(found.rounds)
    lines = smoothed(found.rounds, found.weights, half_life)
    columns = min(n, IN_A_ROW)
    rows = -(-n // columns)
    figure, axes = figures.new(2.3 * columns + 1.7, 2.1 * rows + 0.7, columns, rows)
    handles: list[Any] = [None] * n
    labels = [_short(name) for name in found.names]
    highest, end = np.nanmax(lines), found.rounds[-1]
    for i, ax in enumerate(axes[:n]):
        for j in range(n):
            look = _look(j, own=i == j)
            for line in lines[:, :, i, j] if len(lines) > 1 else ():
                ax.plot(found.rounds, line, linewidth=0.6, alpha=0.45, **look)
            (drawn,) = ax.plot(found.rounds, lines[:, :, i, j].mean(0), linewidth=1.8, **look)
            if i != j:
                handles[j] = drawn
        ax.set(title=labels[i], xlim=(-0.04 * end, 1.04 * end), ylim=(-0.02, 1.08 * highest))
        ax.tick_params(labelleft=i % columns == 0)
    for ax in axes[n:]:
        ax.remove()
    if not np.isnan(lines[:, :, range(n), range(n)]).all():
        handles += axes[0].plot([], [], color=figures.GREY, linestyle="--")
        labels.append("its own")
    figure.supxlabel("rounds", fontsize=9)
    figure.supylabel(f"weight, moving average\n(half-life {half_life} round{'s' * (half_life > 1)})", fontsize=9)
    figure.legend(handles, labels, loc="outside right upper", frameon=False, title="learns from", alignment="left")
    return figure


def _look(client: int, *, own: bool) -> dict[str, Any]:
    """A client has one colour in all panels."""
    again, place = divmod(client, len(figures.CLIENT_COLOURS))
    return {"color": figures.CLIENT_COLOURS[place], "linestyle": "--" if own else "-." if again else "-"}


def in_the_end(found: Rows) -> "Figure":
    """The last W, mean over seeds, with its numbers."""
    W, names = found.weights[:, -1].mean(0), [_short(name) for name in found.names]
    n = len(names)
    figure, (ax,) = figures.new(0.6 * n + 2.1, 0.6 * n + 1.0)
    darkest = float(np.nanmax(W))
    image = figures.matrix(ax, W, darkest)
    for i, j in np.argwhere(~np.isnan(W)):
        colour = "white" if W[i, j] > 0.6 * darkest else "black"
        ax.text(j, i, f"{W[i, j]:.2f}", ha="center", va="center", color=colour)
    ax.set_xticks(range(n), names, rotation=35, ha="right", rotation_mode="anchor")
    ax.set_yticks(range(n), names)
    ax.tick_params(length=0)
    ax.set(xlabel="learns from", ylabel="client")
    seeds = len(found.weights)
    bar = figure.colorbar(image, ax=ax, shrink=0.9, pad=0.02)
    bar.set_label("$w_{ij}$" + (f", mean over {seeds} seeds" if seeds > 1 else ""))
    bar.outline.set_visible(False)
    return figure


def _short(name: str) -> str:
    return figures.plain(name if len(name) <= 16 else f"{name[:15]}…")
