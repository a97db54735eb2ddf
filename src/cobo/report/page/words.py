"""What the page says before it shows anything: what was found, and what is missing."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from cobo.methods import METHODS
from cobo.report import table
from cobo.report.domain_weights import has_rows
from cobo.report.page import graphs
from cobo.report.summary import Results, Runs, groups_score, has_truth
from cobo.training.events import Event, read_events

MOST_WARNINGS = 12  # that are shown

COLUMNS = {
    "accuracy %": "mean over clients of the share of test samples that they get right, in the end",
    "perplexity": "mean over clients, in the end; lower is better",
    "loss": "mean over clients on test samples, in the end; lower is better",
    "improved %": "share of clients that are better off than the same client alone (Local, same seed)",
    "recovery %": "how much of what an oracle gains over training alone the method gains",
    "gradients": "computed in all, of clients at their own and at others' models",
    "comparisons": "losses computed to choose between models, one for each batch",
    "MB sent": "what would go over a network, in all",
    "to target": "rounds to the experiment's target, if every seed got there",
    "W error": "mean distance of W from the true groups",
    "groups": "adjusted Rand index of the groups found; 1 if they are the true ones",
    "W right": "round from which on W had the true groups",
    "s": "seconds, on the computer that ran it",
}


def finding(results: Results, runs: Runs) -> str:
    """One sentence."""
    method = leading(results)
    m, seeds = results["methods"][method], runs[method]
    parted = [found for found in (graphs.found(run) for run in seeds.values()) if found is not None]
    if parted and has_rows(next(iter(seeds.values()))):
        said = f"With {title(method)} {_peers(list(seeds.values()))}"
    elif parted:
        said = f"{title(method)} found {_span([len(found.groups) for found in parted])}{_right(list(seeds.values()))}"
    elif len(results["methods"]) > 1 and method == table.best(results):
        said = f"{title(method)} is best of those that are told nothing of the groups"
    elif method in _going(results):
        run = next(iter(seeds.values()))
        said = f"{title(method)} is at round {run['history'][-1]['round']:,} of {run['training']['rounds']:,}"
    else:
        said = f"{title(method)} learns no weights between clients"
    if method in _going(results):
        said = f"So far: {said}"
    better = _better(m)
    return f"{said}; {better}." if better else f"{said}."


def _peers(runs: Sequence[dict[str, Any]]) -> str:
    """Whom each client has the largest weight for, on a simplex, in the mean over seeds: there are no groups there."""
    names = runs[0]["names"]
    W = np.mean([np.nan_to_num(graphs.last(run)) * (1 - np.eye(len(names))) for run in runs], axis=0)
    learners: dict[str, list[str]] = {}
    for name, row in zip(names, W, strict=True):
        if row.max() > 0:
            learners.setdefault(names[int(row.argmax())], []).append(name)
    said = [f"{' and '.join(some)} learn{'s' * (len(some) == 1)} most from {peer}" for peer, some in learners.items()]
    return ", ".join(said) or "nobody has a weight for another"


def scores(results: Results) -> str:
    """Where the methods end that the finding is about, or where they are."""
    score = table.score(results)
    cells = table.cells(results, [table.SCORES[score]])
    ends = {method: end for method, (end,) in zip(results["methods"], cells, strict=True)}
    told = dict.fromkeys((leading(results), "local", "oracle"))
    known = [name for name in told if ends.get(name, "-") != "-"]
    when = "so far" if set(told) & _going(results) else "in the end"
    what = f"{score.capitalize()} {when}{', %' * (score == 'accuracy')}"
    return f"{what}: {', '.join(f'{title(name)} {ends[name]}' for name in known) or 'not known'}."


def leading(results: Results) -> str:
    """The method that the page is about: CoBo, or else the best."""
    methods = results["methods"]
    return "cobo" if "cobo" in methods else table.best(results) or next(iter(methods))


def title(method: str) -> str:
    return METHODS[method].__name__ if method in METHODS else method


def notes(results: Results, runs: Runs) -> list[str]:
    """What is not as a reader may think: what failed, is missing, or was seen only once."""
    said = []
    if results["unfinished"]:
        said.append(f"Begun but not finished, and not shown: {_listed(results['unfinished'])}.")
    fewer = [name for name, m in results["methods"].items() if m["seeds"] != results["seeds"]]
    if fewer:
        said.append(f"Not all methods have all seeds: {_listed([_seeds(name, results) for name in fewer])}.")
    for score in table.SCORES:
        lost = [f"{method} seed {seed}" for method, seeds in runs.items() for seed, run in seeds.items()
                if score in run["history"][-1] and run["history"][-1][score] is None]  # fmt: skip
        if lost:
            said.append(f"No {score} that is a number in the end: {_listed(lost)}. The table then has none.")
        some = [f"{count} of {method} seed {seed}" for method, seeds in runs.items() for seed, run in seeds.items()
                if (count := _without(run, score))]  # fmt: skip
        if some:
            said.append(f"No {score} that is a number at {_listed(some)}. Curves have gaps there.")
    once = [method for method, seeds in runs.items() if all(len(run["history"]) < 2 for run in seeds.values())]
    if once:
        said.append(f"Evaluated only once, so a point instead of a curve: {_listed(once)}.")
    if "local" not in runs:
        said.append("Local was not run here, so nobody can be compared with training alone.")
    apart = [f"{who} ({method} seed {seed})" for method, seeds in runs.items() for seed, run in seeds.items()
             if (who := _in_one_only(run, runs.get("local", {}).get(seed)))]  # fmt: skip
    if apart:
        said.append(f"In one of the run and Local with the same seed only, so not compared: {_listed(apart)}.")
    return said + _warnings(runs)


def _warnings(runs: Runs) -> list[str]:
    """What the runs themselves warned of while they went on, each thing once."""
    found: dict[str, list[str]] = {}
    for method, seeds in runs.items():
        for seed, run in seeds.items():
            log = run["folder"] / "events.jsonl"
            for message in _warned(read_events(log)) if log.exists() else ():
                found.setdefault(message, []).append(f"{method} seed {seed}")
    said = [f"{message} ({_listed(where)})." for message, where in found.items()]
    more = [f"{len(said) - MOST_WARNINGS} more warnings are in the runs' events.jsonl."]
    return said[:MOST_WARNINGS] + more * (len(said) > MOST_WARNINGS)


def _warned(events: Sequence[Event]) -> list[str]:
    """Warnings as they are; who was set aside, with the number of rounds."""
    rounds: dict[str, set[int]] = {}
    for event in events:
        for name in event["clients"] if event["event"] == "set aside" else ():
            rounds.setdefault(name, set()).add(event["round"])  # a round may have been made again after a kill
    aside = _listed([f"{name} in {len(r)} round{'s' * (len(r) > 1)}" for name, r in rounds.items()])
    warned = dict.fromkeys(event["message"] for event in events if event["event"] == "warning")
    return [*warned, *([f"Gradient not finite, set aside: {aside}"] if aside else [])]


def _in_one_only(run: dict[str, Any], local: dict[str, Any] | None) -> str:
    """The clients that only one of a run and Local has."""
    return "" if local is None else _listed(sorted({*run["names"]} ^ {*local["names"]}))


def _without(run: dict[str, Any], score: str) -> str:
    """At how many evaluations of a run that has a score it is no number."""
    lost = sum(line.get(score, 0) is None for line in run["history"])
    return f"{lost} of {len(run['history'])} evaluations" if lost else ""


def _going(results: Results) -> set[str]:
    """Methods of which no seed is finished."""
    return set(results.get("going", ()))


def _seeds(method: str, results: Results) -> str:
    return f"{method} has {', '.join(str(seed) for seed in results['methods'][method]['seeds'])}"


def _span(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    if low == high:
        return f"{low} group{'s' * (low > 1)}"
    return f"{low} to {high} groups"


def _right(seeds: Sequence[dict[str, Any]]) -> str:
    """Whether they are the true ones, where those are known."""
    scores = [groups_score(run) for run in seeds if has_truth(run)]
    if not scores:
        return ""
    right = scores.count(1)
    if 0 < right < len(scores):
        return f", the true ones with {right} of {len(scores)} seeds"
    return ", the true ones" if right else ", not the true ones"


def _better(m: dict[str, Any]) -> str:
    if m["improved"] is None:
        return ""
    share = m["improved"]["mean"]
    who = {0: "no client is", 100: "every client is"}.get(share, f"{min(max(share, 1), 99):.0f}\u00a0% of clients are")
    return f"{who} better off than alone"


def _listed(words: Sequence[str], most: int = 12) -> str:
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more
