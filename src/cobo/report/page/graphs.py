"""W over time as the page has it: a byte per weight, clients beside those of their group, very many clients as groups.

Shapes: s snapshots, n clients, m rows of the picture (clients, or groups of them).
"""

import base64
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cobo.collaboration import graph
from cobo.report.comparison import first_met
from cobo.report.milestones import Snapshots, on_simplex, pairs, seen
from cobo.report.summary import Runs, read_snapshots

MOST_CLIENTS = 160  # with a row of their own; of more, groups have one
MOST_GROUPS = 60  # the smallest of more are one row
MOST_SNAPSHOTS = 240
BYTES = 6_000_000  # for W of all runs in a page
PAGE = 11_000_000  # for W, four letters for three bytes, and all that grows with runs and clients; of 12 MB
NOBODY = 255  # the byte of a pair that is none: somebody was not there, or has no weight for itself
PEERS = 3  # that are named in a client's row

Weights = NDArray[np.float64]


class Rows(NamedTuple):
    """The rows of the picture: their clients, their names, and the number of their group (-1: who has left)."""

    clients: list[list[int]]
    labels: list[str]
    groups: list[int]


class Found(NamedTuple):
    """Who belongs together at the end of a run: the clients of each group, the largest group first; who has left."""

    groups: list[list[int]]
    away: list[int]


def found(run: dict[str, Any]) -> Found | None:
    """Of W at the end; None without one."""
    if run["weights"] is None:
        return None
    names, present = run["names"], set(run.get("present", run["names"]))
    here = [k for k, name in enumerate(names) if name in present]
    W = np.array(run["weights"], dtype=np.float32)[np.ix_(here, here)]
    labels = graph.components(W, relative=on_simplex(run)).tolist() if here else []
    groups: dict[int, list[int]] = {}
    for k, label in sorted(zip(here, labels, strict=True), key=lambda one: first_met(run["true_groups"], one[0])):
        groups.setdefault(label, []).append(k)
    away = sorted(set(range(len(names))) - set(here))
    return Found(sorted(groups.values(), key=len, reverse=True), away)


def shares(runs: Runs, taken: int = 0) -> dict[tuple[str, int], int]:
    """How many bytes W of a run (method, seed) may take, where so many are taken in the page.

    None at all, but for the first seed of each method, if not even the first and the last W of all would fit.
    """
    known = {(m, seed): run for m, seeds in runs.items() for seed, run in seeds.items() if run["weights"] is not None}
    room = max(1, min(BYTES, (PAGE - taken) * 3 // 4))
    share = room // max(1, len(known))
    if all(2 * _rows_at_most(run) ** 2 <= share for run in known.values()):
        return dict.fromkeys(known, share)
    first = {method: (method, seed) for method, seed in reversed(known)}
    return dict.fromkeys(first.values(), room // len(first) + 1)


def _rows_at_most(run: dict[str, Any]) -> int:
    return len(run["names"]) if len(run["names"]) <= MOST_CLIENTS else MOST_GROUPS + 1


def shown(run: dict[str, Any], share: int) -> dict[str, Any] | None:
    """What the page needs to draw W of a run in about so many bytes; None without W."""
    grouping = found(run)
    if grouping is None:
        return None
    picture = rows(run["names"], grouping)
    grouped = len(picture.clients) < len(run["names"])
    recorded = _recorded(run)
    kept = _evenly(recorded, min(MOST_SNAPSHOTS, max(2, share // len(picture.clients) ** 2)))
    W = np.array([blocks(picture, seen(run, round, weights)) for round, weights in kept])
    scale = float(np.nanmax(W, initial=1e-9)) if on_simplex(run) else 1.0
    truth = None
    if None not in run["true_groups"]:
        truth = blocks(picture, np.where(pairs(run, run["names"]), graph.oracle(run["true_groups"]), np.nan))
    return {
        "rounds": [round for round, _ in kept],
        "recorded": len(recorded),
        "labels": picture.labels if grouped else None,  # else the clients of each group found, and who has left
        "groups": picture.groups,
        "sizes": [len(row) for row in picture.clients],
        "grouped": grouped,
        "scale": scale,
        "weights": _bytes(W, scale),
        "truth": None if truth is None else _bytes(truth, 1.0),
        "places": _places(W[-1], picture.groups),
    }


def peers(run: dict[str, Any]) -> list[list[tuple[int, float]]]:
    """For each client those it learns most from in the end, with their weights."""
    W = np.array(run["weights"], dtype=np.float64)
    np.fill_diagonal(W, 0)
    least = 0.05 * (W.max() if on_simplex(run) else 1.0)
    best = np.argsort(-W, axis=1, kind="stable")[:, :PEERS]
    return [[(int(j), round(float(row[j]), 3)) for j in js if row[j] > least] for row, js in zip(W, best, strict=True)]


def rows(names: Sequence[str], grouping: Found, most: int = MOST_CLIENTS) -> Rows:
    """A row per client; of more than `most`, a row per group."""
    groups, away = grouping
    if len(names) <= most:
        order = [(k, g) for g, group in enumerate(groups) for k in group] + [(k, -1) for k in away]
        return Rows([[k] for k, _ in order], [names[k] for k, _ in order], [g for _, g in order])
    large, small = groups[: MOST_GROUPS - 1], groups[MOST_GROUPS - 1 :]
    clients = [*large, *([[k for group in small for k in group]] if small else []), *([away] if away else [])]
    labels = [f"group {g + 1}" for g in range(len(large))]
    labels += [f"{len(small)} small groups"] if small else []
    labels += ["have left"] if away else []
    return Rows(clients, labels, [*range(len(large) + bool(small)), *([-1] if away else [])])


def last(run: dict[str, Any]) -> Weights:
    """W in the end, not a number where there is no pair."""
    return np.where(pairs(run, run.get("present", run["names"])), np.array(run["weights"]), np.nan)


def _recorded(run: dict[str, Any]) -> Snapshots:
    snapshots = read_snapshots(run) or [(-1, np.array(run["weights"], dtype=np.float32))]
    end = run["history"][-1]["round"]
    return [(end if round < 0 else round, W) for round, W in snapshots]  # -1: saved by hand, the last W only


def _evenly(snapshots: Snapshots, most: int) -> Snapshots:
    chosen = np.linspace(0, len(snapshots) - 1, min(most, len(snapshots))).round().astype(int)
    return [snapshots[k] for k in chosen]


def blocks(picture: Rows, W: Weights) -> Weights:
    """The mean weight between the clients of rows [m, m], not a number where there is no pair."""
    if all(len(row) == 1 for row in picture.clients):
        order = [row[0] for row in picture.clients]
        return W[np.ix_(order, order)]
    member = np.zeros((len(picture.clients), len(W)))
    for k, row in enumerate(picture.clients):
        member[k, row] = 1
    known = ~np.isnan(W)
    count = member @ known @ member.T
    total = member @ np.where(known, W, 0) @ member.T
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _bytes(W: Weights, scale: float) -> str:
    known = ~np.isnan(W)
    levels = np.rint(np.clip(np.where(known, W, 0) / scale, 0, 1) * (NOBODY - 1))
    return base64.b64encode(np.where(known, levels, NOBODY).astype(np.uint8).tobytes()).decode()


def _places(W: Weights, numbers: Sequence[int]) -> list[list[float]]:
    """Where the rows are in the picture of the graph, from -1 to 1: groups around a circle, each laid out by itself."""
    groups = [[k for k, number in enumerate(numbers) if number == g] for g in dict.fromkeys(numbers)]
    radii = [len(group) ** 0.5 for group in groups]
    ring = sum(radii) / 3 if len(groups) > 1 else 0.0  # somewhat more room than the groups need side by side
    turns = np.cumsum([0.0, *radii]) / sum(radii)
    places = np.zeros((len(numbers), 2))
    for group, radius, first, last in zip(groups, radii, turns, turns[1:], strict=False):
        angle = np.pi * (first + last)
        places[group] = ring * np.array([np.sin(angle), -np.cos(angle)]) + 0.5 * radius * _cluster(W, group)
    places -= (places.max(0) + places.min(0)) / 2
    reach = np.abs(places).max(0)  # each way by itself, to use the room, unless it is all but a line
    return [[round(float(x), 3) for x in place] for place in places / np.maximum(reach, 0.3 * max(reach.max(), 1e-9))]


def _cluster(W: Weights, group: Sequence[int]) -> Weights:
    """The members of a group near to whom they are connected with, from -1 to 1."""
    if len(group) == 1:
        return np.zeros((1, 2))
    import networkx as nx  # slow to import, and not needed otherwise

    known = np.where(np.isnan(W), 0, W)[np.ix_(group, group)]
    known = (known + known.T) / 2
    np.fill_diagonal(known, 0)
    turns = 2 * np.pi * np.arange(len(group)) / len(group)
    start = dict(enumerate(np.stack([np.sin(turns), -np.cos(turns)], axis=1)))
    places = nx.spring_layout(nx.from_numpy_array(known), pos=start, seed=0)
    return np.array([places[k] for k in range(len(group))])
