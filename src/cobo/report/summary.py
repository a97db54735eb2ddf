"""results.json and the table, from the files of the runs in a folder."""

import json
import os
import platform
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from rich.table import Table

import cobo
from cobo.collaboration import graph
from cobo.errors import CheckpointError
from cobo.methods import METHODS
from cobo.training.checkpoint import write_atomic

Runs = dict[str, dict[int, dict[str, Any]]]


def read_runs(folder: Path) -> Runs:
    """The finished runs in a folder, by method and seed."""
    runs: Runs = {}
    for path in sorted(folder.glob("*/seed-*/result.json")):
        method, seed = path.parent.parent.name, int(path.parent.name.removeprefix("seed-"))
        try:
            runs.setdefault(method, {})[seed] = json.loads(path.read_text())
        except ValueError as error:
            raise CheckpointError(f"{path} cannot be read: {error}; run that method and seed again") from error
    order = [*METHODS, *sorted(set(runs) - set(METHODS))]
    return {method: dict(sorted(runs[method].items())) for method in order if method in runs}


def summarise(folder: Path, experiment: str, target: float | None) -> dict[str, Any]:
    """results.json of all finished runs in a folder; what does not apply is null."""
    runs = read_runs(folder)
    if not runs:
        raise CheckpointError(f"{folder} holds no finished run")
    results = {
        "experiment": experiment,
        "seeds": sorted({seed for seeds in runs.values() for seed in seeds}),
        "rounds": max(r["training"]["rounds"] for seeds in runs.values() for r in seeds.values()),
        "target_accuracy": target,
        "environment": environment(),
        "methods": {method: _method(runs, method, target) for method in runs},
    }
    write_atomic(folder / "results.json", json.dumps(results, indent=1).encode())
    write_atomic(folder / "table.md", markdown(results).encode())
    return results


def environment() -> dict[str, Any]:
    return {
        "cobo": cobo.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def _method(runs: Runs, method: str, target: float | None) -> dict[str, Any]:
    mine = runs[method]
    local, oracle = runs.get("local", {}), runs.get("oracle", {})
    last = {seed: run["history"][-1] for seed, run in mine.items()}
    improved = [_improved(run, local[s]) for s, run in mine.items() if s in local and method != "local"]
    recovery = [
        _recovery(_accuracy(run), _accuracy(local[s]), _accuracy(oracle[s]))
        for s, run in mine.items()
        if s in local and s in oracle and method not in ("local", "oracle")
    ]
    graphs = [r for r in mine.values() if r["weights"] is not None and None not in r["true_groups"]]
    return {
        "accuracy": _spread([_accuracy(run) for run in mine.values()]),
        "loss": _spread([line.get("loss") for line in last.values()]),
        "improved": _spread(improved),
        "recovery": _spread(recovery),
        "gradients": round(fmean(line["gradients"] for line in last.values())),
        "seconds": round(fmean(line["seconds"] for line in last.values()), 2),
        "rounds_to_target": _mean([_rounds_to(run, target) for run in mine.values()]),
        "weights_error": _mean([graph.weights_error(np.array(r["weights"]), r["true_groups"]) for r in graphs]),
        "groups_score": _mean([_groups_score(r) for r in graphs]),
        "seeds": list(mine),
    }


def _accuracy(run: dict[str, Any]) -> float | None:
    value: float | None = run["history"][-1].get("accuracy")
    return value


def _groups_score(run: dict[str, Any]) -> float:
    relative = run["method"].get("domain") == "simplex"
    return graph.groups_score(np.array(run["weights"]), run["true_groups"], relative=relative)


def _improved(run: dict[str, Any], local: dict[str, Any]) -> float | None:
    """The share of clients (percent) that are better than the same client alone, with the same seed."""
    score, sign = ("client_accuracy", 1) if _accuracy(run) is not None else ("client_loss", -1)
    pairs = zip(run["history"][-1][score], local["history"][-1][score], strict=True)
    better = [sign * (a - b) > 0 for a, b in pairs if a is not None and b is not None]
    return 100 * fmean(better) if better else None


def _recovery(mine: float | None, local: float | None, oracle: float | None) -> float | None:
    """How much of what the oracle gains over training alone a method gains (percent)."""
    if mine is None or local is None or oracle is None or oracle <= local:
        return None
    return 100 * (mine - local) / (oracle - local)


def _rounds_to(run: dict[str, Any], target: float | None) -> int | None:
    if target is None:
        return None
    return next((x["round"] for x in run["history"] if (x.get("accuracy") or -1) >= target), None)


def _mean(values: list[Any]) -> float | None:
    """None as soon as one seed has no value: a mean over the lucky ones would flatter."""
    return fmean(values) if values and None not in values else None


def _spread(values: list[Any]) -> dict[str, float | None] | None:
    known = [v for v in values if v is not None]
    if not known:
        return None
    return {"mean": fmean(known), "std": stdev(known) if len(known) > 1 else None}


COLUMNS = (
    "method",
    "accuracy %",
    "loss",
    "improved %",
    "recovery %",
    "gradients",
    "to target",
    "W error",
    "groups",
    "s",
)


def rows(results: dict[str, Any]) -> list[tuple[str, ...]]:
    """The table as text, a row per method."""
    return [
        (
            name,
            _plus_minus(m["accuracy"], 1),
            _plus_minus(m["loss"], 3),
            _plus_minus(m["improved"], 0),
            _plus_minus(m["recovery"], 0),
            f"{m['gradients']:,}",
            _number(m["rounds_to_target"], 0),
            _number(m["weights_error"], 3),
            _number(m["groups_score"], 2),
            _number(m["seconds"], 1),
        )
        for name, m in results["methods"].items()
    ]


def markdown(results: dict[str, Any]) -> str:
    lines = [COLUMNS, tuple("---" for _ in COLUMNS), *rows(results)]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def terminal(results: dict[str, Any]) -> Table:
    """The table for 80 columns: the spread over seeds is shown for accuracy only."""
    seeds = len(results["seeds"])
    title = f"{results['experiment']}: {results['rounds']} rounds, {seeds} seed{'s' * (seeds > 1)}"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 0, 0, 1), pad_edge=False)
    for k, column in enumerate(COLUMNS):
        first, _, rest = column.partition(" ")
        table.add_column(f"{first}\n{rest}", justify="left" if k == 0 else "right", no_wrap=True)
    for name, accuracy, *others in rows(results):
        table.add_row(name, accuracy, *(text.partition(" ±")[0] for text in others))
    return table


def _plus_minus(spread: dict[str, float | None] | None, digits: int) -> str:
    if spread is None:
        return "-"
    text = _number(spread["mean"], digits)
    return text if spread["std"] is None else f"{text} ± {_number(spread['std'], digits)}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
