"""Runs that have begun and are not finished, from what they have written so far."""

from pathlib import Path
from typing import Any, NamedTuple

from cobo.errors import CoboError
from cobo.report.summary import Runs, called, ordered, places
from cobo.training.events import Event, read_events
from cobo.training.records import listed, read_metrics, unpack_weights

OVER = {"interrupted": "stopped", "failed": "failed"}


class Going(NamedTuple):
    """A run, how it is and how far it has come; `run` is as `read_runs` has it, None before its first evaluation."""

    method: str
    seed: int
    state: str
    round: int
    rounds: int
    heard: float  # when it last wrote something, in seconds since 1970
    run: dict[str, Any] | None


def read_going(folder: Path) -> tuple[list[Going], list[str]]:
    """The runs in a folder that have begun, METHOD/seed-K or the folder's own; and why others cannot be read."""
    found, problems = [], []
    for place in places(folder, "events.jsonl"):
        if (place / "result.json").exists():
            continue
        try:
            going = _read(folder, place)
        except FileNotFoundError:  # replaced or moved away just now, which is no problem
            raise
        except Exception as error:  # files from elsewhere may be wrong in any way
            problems.append(f"{place} cannot be read: {said(error)}")
        else:
            found += [] if going is None else [going]
    return found, problems


def said(error: Exception) -> str:
    return str(error) if isinstance(error, CoboError) else f"{type(error).__name__}: {error}"


def as_runs(found: list[Going]) -> Runs:
    runs: Runs = {}
    for going in found:
        if going.run is not None:
            runs.setdefault(going.method, {})[going.seed] = going.run
    return ordered(runs)


def _read(folder: Path, place: Path) -> Going | None:
    events = read_events(place / "events.jsonl")
    started = next((event for event in reversed(events) if event["event"] == "started"), None)
    if started is None:
        return None
    run, metrics = started["run"], place / "metrics.jsonl"
    lines = read_metrics(metrics) if metrics.exists() else []
    lines = [line for line in lines if set(line["clients"]) <= set(run["names"])]  # of others, who are no longer known
    state = OVER.get(events[-1]["event"], "going on")
    heard = max(path.stat().st_mtime for path in (place / "events.jsonl", metrics) if path.exists())
    return Going(
        *called(folder, place, run), state, lines[-1]["round"] if lines else started["round"],
        started["rounds"], heard, _run(place, run, lines, events) if lines else None,
    )  # fmt: skip


def _run(place: Path, facts: dict[str, Any], lines: list[dict[str, Any]], events: list[Event]) -> dict[str, Any]:
    names, end, path = facts["names"], lines[-1]["round"], place / "weights.safetensors"
    snapshots = [W for round, W in unpack_weights(path, names) if round <= end] if path.exists() else []
    changes = [
        {"round": event["round"], event["event"]: event["clients"]}
        for event in events
        if event["event"] in ("joined", "left") and event["round"] < end
    ]
    return {
        **facts,
        "folder": place,
        "going": True,
        "history": [listed(line, names) for line in lines],
        "weights": snapshots[-1].tolist() if snapshots else None,
        "present": [name for name in names if name in lines[-1]["clients"]],
        "changes": [change for k, change in enumerate(changes) if change not in changes[:k]],  # made again after a kill
    }
