"""results.json, from the files of the runs in a folder."""

import json
import re
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from cobo.collaboration import graph
from cobo.errors import CheckpointError
from cobo.methods import METHODS
from cobo.report.milestones import Snapshots, groups_right_from, on_simplex, until
from cobo.training.records import unpack_weights
from cobo.training.settings import OWN

Runs = dict[str, dict[int, dict[str, Any]]]
Results = dict[str, Any]

SEED = re.compile(r"seed-\d+")


def places(folder: Path, file: str) -> list[Path]:
    """Where there is such a file in a folder: METHOD/seed-K of it, or else the folder, if it is that of one run."""
    found = [path.parent for path in sorted(folder.glob(f"*/seed-*/{file}")) if SEED.fullmatch(path.parent.name)]
    return found or [path.parent for path in folder.glob(file)]


def called(folder: Path, place: Path, run: dict[str, Any]) -> tuple[str, int]:
    """Method and seed of a run: METHOD and K of its place, so that a method may be there twice; alone, its own."""
    if place == folder:
        return run["method"]["name"], run["training"]["seed"]
    return place.parent.name, int(place.name.removeprefix("seed-"))


def read_runs(folder: Path) -> Runs:
    """The finished runs in a folder, by method and seed; each says in `folder` where it is."""
    runs: Runs = {}
    for place in places(folder, "result.json"):
        run = _read(place / "result.json")
        method, seed = called(folder, place, run)
        runs.setdefault(method, {})[seed] = run
    return ordered(runs)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
        if not isinstance(found, dict) or not found.get("history"):
            raise ValueError("there is no history in it")
    except ValueError as error:
        raise CheckpointError(f"{path} cannot be read: {error}; run that method and seed again") from error
    return {**found, "folder": path.parent}


def ordered(runs: Runs) -> Runs:
    """Methods as the registry has them, then others; seeds by number."""
    order = [*METHODS, *sorted(set(runs) - set(METHODS))]
    return {method: dict(sorted(runs[method].items())) for method in order if method in runs}


def read_unfinished(folder: Path) -> list[str]:
    """Runs that were begun and have no result: stopped, failed, or going on."""
    begun = (place for place in places(folder, "metrics.jsonl") if place != folder)
    return [f"{run.parent.name} {run.name}" for run in begun if not (run / "result.json").exists()]


def summarise(folder: Path, experiment: str, target: float | None, target_perplexity: float | None = None) -> Results:
    """What results.json says of the finished runs in a folder; what does not apply is null.

    `target` is an accuracy.
    """
    runs = read_runs(folder)
    if not runs:
        raise CheckpointError(f"{folder} holds no finished run")
    return summarise_runs(runs, read_unfinished(folder), experiment, target, target_perplexity)


def summarise_runs(
    runs: Runs,
    unfinished: list[str],
    experiment: str,
    target: float | None,
    target_perplexity: float | None = None,
) -> Results:
    """The same of runs from anywhere.

    Those that say that they are `going` on are compared with nobody, and nobody with them: half trained is no end.
    """
    score = _score(runs)
    going = [method for method, seeds in runs.items() if any(run.get("going") for run in seeds.values())]
    ended = {method: seeds for method, seeds in runs.items() if method not in going}
    wanted = target_perplexity if score == "perplexity" else target
    return {
        "experiment": experiment,
        "seeds": sorted({seed for seeds in runs.values() for seed in seeds}),
        "rounds": max((r["training"]["rounds"] for seeds in runs.values() for r in seeds.values()), default=0),
        "target_accuracy": target,
        **({} if target_perplexity is None else {"target_perplexity": target_perplexity}),
        "environment": made_with(runs),
        "unfinished": unfinished,
        **({"going": going} if going else {}),
        "methods": {method: _method(runs[method], method, ended, score, wanted) for method in runs},
    }


def made_with(runs: Runs) -> dict[str, Any]:
    """The environment that runs were made in; a list where they differ."""
    known = [run.get("environment", {}) for seeds in runs.values() for run in seeds.values()]
    values = {key: list(dict.fromkeys(one.get(key) for one in known)) for one in known for key in one}
    return {key: found[0] if len(found) == 1 else found for key, found in values.items()}


def read_snapshots(run: dict[str, Any]) -> Snapshots:
    """W over time of a run, in the order of its names, as far as its history goes."""
    path, end = run["folder"] / "weights.safetensors", run["history"][-1]["round"]
    return [(round, W) for round, W in unpack_weights(path, run["names"]) if round <= end] if path.exists() else []


def _score(runs: Runs) -> str:
    """What targets are of."""
    known = any("perplexity" in run["history"][-1] for seeds in runs.values() for run in seeds.values())
    return "perplexity" if known else "accuracy"


def _method(
    mine: dict[int, dict[str, Any]], method: str, ended: Runs, score: str, target: float | None
) -> dict[str, Any]:
    """Of the seeds of a method, beside those that have come to their end."""
    local = ended.get("local", {})
    ditto = {seed: run["history"][-1].get(score) for seed, run in ended.get("ditto", {}).items()}
    last = {seed: run["history"][-1] for seed, run in mine.items()}
    over = method in ended
    improved = [_improved(run, local.get(seed)) for seed, run in mine.items()] if over and method != "local" else []
    recovery = _recovery(ended, method) if over and method not in ("local", "oracle") else []
    graphs = [run for run in mine.values() if has_truth(run)]
    settled = [groups_right_from(r, read_snapshots(r)) for r in graphs]
    return {
        "accuracy": _spread([_accuracy(run) for run in mine.values()]),
        "perplexity": _spread([line.get("perplexity") for line in last.values()]),
        "loss": _spread([line.get("loss") for line in last.values()]),
        "improved": _spread(improved),
        "recovery": _spread(recovery),
        "gradients": round(fmean(line["gradients"] for line in last.values())),
        "comparisons": round(fmean(line["comparisons"] for line in last.values())),
        "bytes": round(fmean(line["bytes"] for line in last.values())),
        "seconds": round(fmean(line["seconds"] for line in last.values()), 2),
        "rounds_to_target": _mean([until(run, score, target, "round") for run in mine.values()]),
        "gradients_to_target": _mean([until(run, score, target, "gradients") for run in mine.values()]),
        "rounds_to_ditto": _mean([until(run, score, ditto.get(seed), "round") for seed, run in mine.items()]),
        "gradients_to_ditto": _mean([until(run, score, ditto.get(seed), "gradients") for seed, run in mine.items()]),
        "time": _mean([line.get("time") for line in last.values()]),
        "time_to_target": _mean([until(run, score, target, "time") for run in mine.values()]),
        "weights_error": _mean([graph.weights_error(*_graph(r)) for r in graphs]),
        "groups_score": _mean([groups_score(r) for r in graphs]),
        "graph_settled": {"round": _mean(settled)} if graphs else None,
        "told": _told(mine),
        "settings": _settings(next(iter(mine.values()))),
        "seeds": list(mine),
    }


def _told(mine: dict[int, dict[str, Any]]) -> str | None:
    """What a method is told, by its own name: that of its folder may be any."""
    name = next(iter(mine.values()))["method"]["name"]
    return METHODS[name].told if name in METHODS else None


def _settings(run: dict[str, Any]) -> dict[str, Any]:
    """What a method ran with: its own settings, and those of training that methods may have for themselves."""
    training = {k: run["training"].get(k) for k in OWN}
    return {**training, **{k: v for k, v in run["method"].items() if k != "name"}}


def _accuracy(run: dict[str, Any]) -> float | None:
    value: float | None = run["history"][-1].get("accuracy")
    return value


def has_truth(run: dict[str, Any]) -> bool:
    """Whether there is a W, and true groups to hold it against."""
    return run["weights"] is not None and None not in run["true_groups"] and _several(run)


def groups_score(run: dict[str, Any]) -> float:
    """Of the groups found in the end; 1 if they are the true ones."""
    return graph.groups_score(*_graph(run), relative=on_simplex(run))


def _several(run: dict[str, Any]) -> bool:
    return len(run.get("present", run["names"])) > 1


def _graph(run: dict[str, Any]) -> tuple[graph.Matrix, list[str | int]]:
    """W and the true groups of those who were there in the end."""
    groups = dict(zip(run["names"], run["true_groups"], strict=True))
    present = run.get("present", run["names"])
    W = np.array(run["weights"], dtype=np.float32)
    return graph.among(present, run["names"], W), [groups[name] for name in present]


def _improved(run: dict[str, Any], local: dict[str, Any] | None) -> float | None:
    """The share of clients (percent) that are better than the same client alone, with the same seed.

    By accuracy; without one by loss, of which perplexity is the exponential. A client whose model has no finite score
    is not better; one that only one of the two runs has does not count.
    """
    if local is None:
        return None
    score, sign = ("accuracy", 1) if _accuracy(local) is not None else ("loss", -1)
    mine, alone = ends(run, score), ends(local, score)
    pairs = [(mine[name], alone[name]) for name in mine if alone.get(name) is not None]
    better = [a is not None and sign * (a - b) > 0 for a, b in pairs]
    return 100 * fmean(better) if better else None


def ends(run: dict[str, Any], score: str) -> dict[str, Any]:
    """The score with which each client ends, by its name."""
    return dict(zip(run["names"], run["history"][-1].get(f"client_{score}", []), strict=False))


def _recovery(runs: Runs, method: str) -> list[float | None]:
    """How much of what the oracle gains over training alone a method gains (percent), a number per seed.

    A seed's gain is divided by the oracle's mean gain over the seeds: by its own it would be a ratio of small numbers.
    """
    three = [runs.get(name, {}) for name in (method, "local", "oracle")]
    scores = [tuple(_accuracy(run[seed]) if seed in run else None for run in three) for seed in runs[method]]
    if any(value is None for values in scores for value in values):
        return [None]
    gains = [(mine - alone, best - alone) for mine, alone, best in scores]  # type: ignore[operator]
    possible = fmean(best for _, best in gains)
    return [100 * mine / possible if possible > 0 else None for mine, _ in gains]


def _mean(values: list[Any]) -> float | None:
    """None as soon as one seed has no value: a mean over the lucky ones would flatter."""
    return fmean(values) if values and None not in values else None


def _spread(values: list[Any]) -> dict[str, float | None] | None:
    """Mean and standard deviation; like `_mean`, nothing as soon as one seed has no value."""
    if not values or None in values:
        return None
    return {"mean": fmean(values), "std": stdev(values) if len(values) > 1 else None}
