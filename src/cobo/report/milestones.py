"""When a run first got somewhere: to an accuracy or perplexity, or to the right groups; and who was there then."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cobo.collaboration import graph

Snapshots = Sequence[tuple[int, NDArray[np.float32]]]


def until(run: dict[str, Any], score: str, target: float | None, what: str) -> float | None:
    """The round, the gradients computed or the simulated time at the first evaluation with this score, or better."""
    if target is None:
        return None
    scored = (x for x in run["history"] if x.get(score) is not None)
    reached = (x for x in scored if (x[score] <= target if score == "perplexity" else x[score] >= target))
    return next((x.get(what) for x in reached), None)


def groups_right_from(run: dict[str, Any], snapshots: Snapshots) -> int | None:
    """The first recorded round from which on W has the true groups in every snapshot; None if not in the last."""
    first = None
    for round, W in reversed(snapshots):
        if not _right(run, round, W):
            break
        first = round
    return first


def _right(run: dict[str, Any], round: int, W: NDArray[np.float32]) -> bool:
    names, groups = run["names"], dict(zip(run["names"], run["true_groups"], strict=True))
    here = present_at(run, round)
    return graph.has_groups(graph.among(here, names, W), [groups[name] for name in here], relative=on_simplex(run))


def present_at(run: dict[str, Any], round: int) -> list[str]:
    """Who was there when a snapshot was taken; who joins or leaves in a round does so after that."""
    present = set(run.get("present", run["names"]))
    for change in reversed(run.get("changes", [])):
        if change["round"] >= round:
            present -= set(change.get("joined", ()))
            present |= set(change.get("left", ()))
    return [name for name in run["names"] if name in present]


def on_simplex(run: dict[str, Any]) -> bool:
    return bool(run["method"].get("domain") == "simplex")


def pairs(run: dict[str, Any], present: Sequence[str]) -> NDArray[np.bool_]:
    """Which weights there are among those present [n, n]; for themselves, clients have one with some methods only."""
    here = np.isin(run["names"], present)
    found: NDArray[np.bool_] = np.outer(here, here)
    return found if run["method"].get("self_weight") else found & ~np.eye(len(here), dtype=bool)


def seen(run: dict[str, Any], round: int, W: NDArray[np.float32]) -> NDArray[np.float64]:
    """A snapshot of W, not a number where there is no pair."""
    return np.where(pairs(run, present_at(run, round)), W.astype(np.float64), np.nan)
