"""What the page shows, gathered from the runs and put into it as JSON."""

import base64
import hashlib
import html
import json
import math
import re
from importlib.resources import files
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from cobo.report import comparison, domain_weights, figures, table
from cobo.report.page import graphs, words
from cobo.report.summary import Results, Runs, ends, read_runs
from cobo.training.checkpoint import write_atomic

MOST_POINTS = 400  # of a curve
STYLES = {"-": "solid", "--": "dashed", ":": "dotted"}
AXES = {"round": "rounds", "gradients": "gradients computed", "seconds": "seconds", "time": "simulated time"}


def write(folder: Path, results: Results, runs: Runs | None = None) -> None:
    """FOLDER/report.html; of these runs, or else of those in the folder."""
    data = gathered(folder, results, read_runs(folder) if runs is None else runs)
    write_atomic(folder / "report.html", page(data).encode())


def page(data: dict[str, Any], *, live: bool = False) -> str:
    """The page with its data, style and script; it may run no other, and ask for nothing.

    A live one may ask the server that it came from for what is new.
    """
    style, script = _part("page.css"), _part("page.js") + (_part("live.js") if live else "")
    parts = {
        "title": html.escape(data["title"]), "style": style, "script": script, "data": embedded(data),
        "policy": policy(style, script, live=live),
    }  # fmt: skip
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _part("page.html"))


def policy(style: str, script: str, *, live: bool) -> str:
    allowed = f"script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:"
    return f"default-src 'none'; {allowed}" + "; connect-src 'self'" * live


def gathered(folder: Path, results: Results, runs: Runs, beside: Runs | None = None) -> dict[str, Any]:
    """Everything that the page shows; of runs `beside` those of the table, W and clients only."""
    everything = {m: {**runs.get(m, {}), **(beside or {}).get(m, {})} for m in {**runs, **(beside or {})}}
    stored = folder / "experiment.toml"
    return {
        "title": results["experiment"],
        "about": table.title(results),
        "finding": words.finding(results, runs),
        "scores": words.scores(results),
        "notes": words.notes(results, runs),
        "table": _table(results),
        "leading": words.leading(results),
        "looks": {method: _look(look) for method, look in comparison.looks(everything).items()},
        "axes": AXES,
        "curves": _curves(runs),
        "near": {score: _near(runs, score) for score in ("accuracy", "perplexity")},
        "score": table.score(results),
        **_runs(everything, results),
        "colours": figures.CLIENT_COLOURS,
        "domains": next(filter(None, (_domains(list(seeds.values())) for seeds in runs.values())), None),
        "settings": stored.read_text(encoding="utf-8") if stored.is_file() else _settings(runs),
        "command": command(results, runs, own=not stored.is_file()),
        "environment": results["environment"],
    }


def command(results: Results, runs: Runs, *, own: bool) -> str:
    """What gives these runs again."""
    apart = [run for seeds in runs.values() for run in seeds.values() if run["training"].get("engine") == "flower"]
    if own and apart:
        return "flwr run in your own Flower project, with the settings below as its run-config"
    if own:
        return "cobo.fit(...) with the settings below, on your own clients and model"
    seeds = results["seeds"]
    complete = all(m["seeds"] == seeds for m in results["methods"].values())
    if complete and not apart and seeds == list(range(len(seeds))) and len(runs) * len(seeds) > 1:
        methods = dict.fromkeys(run["method"]["name"] for found in runs.values() for run in found.values())
        return f"cobo compare experiment.toml --methods {','.join(methods)} --seeds {len(seeds)} --out again"
    return "\n".join(dict.fromkeys(_again(seed, run) for found in runs.values() for seed, run in found.items()))


def _again(seed: int, run: dict[str, Any]) -> str:
    chosen = f"experiment.toml --method {run['method']['name']} --seed {seed}"
    if run["training"].get("engine") == "flower":
        return f"cobo flower simulate {chosen} --local-steps {run['training']['local_steps']} --out again"
    return f"cobo run {chosen} --out again"


def _table(results: Results) -> dict[str, Any]:
    heads, first = table.columns(results), table.best(results) if len(results["methods"]) > 1 else None
    rows = [
        {
            "cells": cells, "best": method == first, "told": m["told"] or "",
            "going": method in results.get("going", ()),
        }
        for (method, m), cells in zip(results["methods"].items(), table.cells(results, heads), strict=True)
    ]  # fmt: skip
    said = {head: words.COLUMNS[head] for head in heads if head in words.COLUMNS}
    return {"heads": heads, "rows": rows, "notes": table.notes(results), "said": said}


def _look(look: dict[str, Any]) -> dict[str, Any]:
    return {"colour": look["color"], "style": STYLES[look["linestyle"]], "width": look["linewidth"]}


def _curves(runs: Runs) -> dict[str, dict[str, Any]]:
    """By score and method: mean and standard deviation over seeds, against all that a curve can be drawn against."""
    found: dict[str, dict[str, Any]] = {}
    for score in comparison.NAMES:
        for method, seeds in runs.items():
            points = list(comparison.points(seeds, score).values())
            if points:
                kept = sorted({*_evenly(len(points)), *_gaps(points, score)})
                found.setdefault(score, {})[method] = _curve([points[k] for k in kept], score)
    return found


def _curve(points: list[list[dict[str, Any]]], score: str) -> dict[str, Any]:
    values = [None if comparison.lost(at, score) else [line[score] for line in at] for at in points]
    return {
        **{axis: [_short(fmean(x[axis] for x in at)) for at in points] for axis in AXES if axis in points[0][0]},
        "mean": [None if at is None else _short(fmean(at)) for at in values],
        "std": [None if at is None else _short(stdev(at)) for at in values] if len(points[0]) > 1 else None,
    }


def _gaps(points: list[list[dict[str, Any]]], score: str) -> list[int]:
    """Where a curve breaks off, which thinning must not hide."""
    gap = [comparison.lost(at, score) for at in points]
    return [k for k, lost in enumerate(gap) if lost and not (k and gap[k - 1])]


def _near(runs: Runs, score: str) -> tuple[float, float] | None:
    """The range of scores in which the better methods end."""
    found = {
        method: comparison.curve(seeds, score) for method, seeds in runs.items() if comparison.points(seeds, score)
    }
    return comparison.near_the_best(found, score) if len(found) > 1 else None


def _runs(runs: Runs, results: Results) -> dict[str, Any]:
    """What there is to see of each run; once, what many have alike: who their clients are, what an oracle knows."""
    kept = {(method, seed): _run(runs, method, seed, results) for method, seeds in runs.items() for seed in seeds}
    found, people = list(kept.values()), list[dict[str, Any]]()
    for run in found:
        own = {"clients": run.pop("clients"), "truth": run.pop("truth")}
        people += [] if own in people else [own]
        run["people"] = people.index(own)
    shares = graphs.shares(runs, taken=len(embedded({"runs": found, "people": people})))
    for (method, seed), run in kept.items():
        share = shares.get((method, seed), 0)
        run["graph"] = graphs.shown(runs[method][seed], share) if share else None
        run["left_out"] = run["found"] is not None and not share
    drawn = [run["graph"] for run in found if run["graph"] is not None and run["graph"]["truth"] is not None]
    truths = list(dict.fromkeys(graph["truth"] for graph in drawn))
    for graph in drawn:
        graph["truth"] = truths.index(graph["truth"])
    return {"runs": found, "people": people, "truths": truths}


def _run(runs: Runs, method: str, seed: int, results: Results) -> dict[str, Any]:
    """A run but for W: how each client ends, beside the same client alone if both have come to their end."""
    run, alone = runs[method][seed], runs.get("local", {}).get(seed)
    if alone is not None and (method == "local" or run.get("going") or alone.get("going")):
        alone = None
    score, names = table.score(results), run["names"]
    grouping, truth = graphs.found(run), run["true_groups"]
    present = run.get("present")  # older results have none: nobody could leave
    return {
        "method": method,
        "seed": seed,
        "round": run["history"][-1]["round"],
        "rounds": run["training"]["rounds"],
        "clients": names,
        "mine": _ends(run, score, names),
        "alone": None if alone is None else _ends(alone, score, names),
        "away": [] if present is None else [k for k, name in enumerate(names) if name not in present],
        "truth": None if None in truth else [str(group) for group in truth],
        "peers": None if grouping is None else graphs.peers(run),
        "found": None if grouping is None else grouping.groups,
    }


def _ends(run: dict[str, Any], score: str, names: list[str]) -> list[float | None]:
    """The score with which each client ends; None where there is none that is a number."""
    found = ends(run, score)
    return [_short(found.get(name)) for name in names]


def _domains(seeds: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Rows of W on a simplex over rounds, smoothed, mean over seeds."""
    found = domain_weights.read(seeds) if domain_weights.has_rows(seeds[0]) else None
    if found is None or not found.rounds:
        return None
    half_life = domain_weights.span(found.rounds)
    mean = domain_weights.smoothed(found.rounds, found.weights, half_life).mean(0)
    kept = _evenly(len(mean))
    lines = [[[_short(float(x)) for x in mean[kept, i, j]] for j in range(mean.shape[2])] for i in range(mean.shape[1])]
    return {
        "method": seeds[0]["method"]["name"], "names": found.names, "half_life": half_life, "lines": lines,
        "rounds": [found.rounds[k] for k in kept],
    }  # fmt: skip


def _settings(runs: Runs) -> str:
    first = next(run for seeds in runs.values() for run in seeds.values())
    return json.dumps({"method": first["method"], "training": first["training"]}, indent=1)


def _evenly(count: int) -> list[int]:
    """Which of so many points are shown; the first and the last always are."""
    return np.linspace(0, count - 1, min(count, MOST_POINTS)).round().astype(int).tolist()  # type: ignore[no-any-return]


def _short(value: float | None) -> float | None:
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None


def _part(name: str) -> str:
    return files("cobo.report.page").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def embedded(data: dict[str, Any]) -> str:
    """JSON that ends no script element and starts no other, whatever clients are called."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))  # all but ASCII is escaped, U+2028 too
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
