"""Tuning: every method gets the same number of trials, on validation data and seeds that are never reported.

A trial is a point in the ranges of the learning rate and of the method's own settings (`Method.search`). The first is
what the experiment has; the others follow a scrambled Halton sequence, so the k-th trial is always the same and
a search can be stopped, resumed and lengthened. Each is run with every seed on clients that hold a share of
their *training* samples out, and is judged by the mean accuracy (or loss) on those. Test samples are never looked at.
"""

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import tomli_w
import torch

from cobo import draws
from cobo.errors import CheckpointError, ConfigError, RunError
from cobo.experiments.experiment import Experiment
from cobo.experiments.runner import Claim, Watcher
from cobo.methods import METHODS
from cobo.training.checkpoint import write_atomic
from cobo.training.fit import fit
from cobo.training.loop import append_synced

FIRST_SEED = 1000
HELD_OUT = 0.2
LR_FACTOR = 10.0  # the learning rate is searched from a tenth to ten times that of the experiment

Point = dict[str, Any]


class Trial(NamedTuple):
    """A point and what it scored: higher is better; None if it could not be run to its end."""

    number: int
    point: Point
    score: float | None
    note: str


def tune(
    experiment: Experiment, methods: Sequence[str], trials: int, seeds: int, folder: Path, watch: Watcher
) -> dict[str, Trial]:
    """The best trial of each method; FOLDER/tuned.toml holds them for `compare --tuned`."""
    claim = Claim(folder, experiment)
    if experiment.threads is not None:
        torch.set_num_threads(experiment.threads)
    for method in methods:
        for number, point in enumerate(points(experiment, method, trials)):
            for seed in range(FIRST_SEED, FIRST_SEED + seeds):
                if (number, seed) in _scores(folder, method):
                    watch.skip()
                    continue
                watch.begin(f"{method} trial {number} seed {seed}")
                _run(experiment, method, number, point, seed, folder, [claim, watch])
                watch.end()
    write_atomic(folder / "tuned.toml", _as_toml(experiment, folder, seeds).encode())
    return best(folder, seeds)


def points(experiment: Experiment, method: str, trials: int) -> list[Point]:
    """Trial settings: first the experiment's own, then `trials - 1` from the ranges.

    >>> from cobo.experiments import EXPERIMENTS, load_experiment
    >>> [sorted(p) for p in points(load_experiment("digits", EXPERIMENTS), "ditto", 2)]
    [['lam', 'lr'], ['lam', 'lr']]
    """
    from scipy.stats import qmc  # takes a second to import

    chosen, lr = experiment.method(method), experiment.training(method, 0)["lr"]
    ranges: dict[str, Any] = {"lr": (experiment.lr / LR_FACTOR, experiment.lr * LR_FACTOR), **METHODS[method].search}
    first = {"lr": lr, **{name: getattr(chosen, name) for name in METHODS[method].search}}
    seed = int(draws.key(0, "tune", method)) & 0xFFFF_FFFF
    drawn = qmc.Halton(len(ranges), scramble=True, rng=seed).random(max(0, trials - 1))
    return [
        first,
        *({n: _between(r, float(u)) for (n, r), u in zip(ranges.items(), row, strict=True)} for row in drawn),
    ]


def best(folder: Path, seeds: int) -> dict[str, Trial]:
    """The best complete trial of every method that has one."""
    found = {}
    for method in METHODS:
        complete = [t for t in finished(folder, method, seeds) if t.score is not None]
        if complete:
            found[method] = max(complete, key=lambda t: t.score or -math.inf)
    return found


def finished(folder: Path, method: str, seeds: int) -> list[Trial]:
    """The trials of a method that were run with all seeds."""
    by_trial: dict[int, list[dict[str, Any]]] = {}
    wanted = range(FIRST_SEED, FIRST_SEED + seeds)
    for (number, seed), line in _scores(folder, method).items():
        if seed in wanted:
            by_trial.setdefault(number, []).append(line)
    trials = []
    for number, lines in sorted(by_trial.items()):
        if len(lines) == seeds:
            scores = [line["score"] for line in lines]
            notes = [line["note"] for line in lines if line["note"]]
            score = None if None in scores else fmean(scores)
            trials.append(Trial(number, lines[0]["point"], score, notes[0] if notes else ""))
    return trials


def _between(bounds: Any, u: float) -> Any:
    """A value of a range (on a log scale, three digits) or of a list, for u in [0, 1)."""
    if isinstance(bounds, list):
        return bounds[int(u * len(bounds))]
    low, high = bounds
    return float(f"{low * (high / low) ** u:.3g}")


def _run(
    experiment: Experiment, method: str, number: int, point: Point, seed: int, folder: Path, listeners: list[Any]
) -> None:
    """One run of a trial. What it leaves is one line; its own folder exists only while it runs."""
    trial = folder / method / f"trial-{number}-seed-{seed}"
    table = {**experiment.methods.get(method, {}), **point}
    changed = experiment.replace(methods={**experiment.methods, method: table})
    score, note = None, ""
    try:
        parts = changed.build(seed)
        result = fit(
            [client.hold_out(HELD_OUT, seed) for client in parts.clients],
            model=parts.model, loss=parts.loss, method=changed.method(method), out=trial, resume=True,
            listeners=listeners,
            **{**changed.training(method, seed), "evaluate_every": max(1, changed.rounds // 10)},
        )  # fmt: skip
        score, note = _judged(result.history[-1])
    except (ConfigError, RunError) as error:  # outside the stable range, or diverged
        if number == 0 and isinstance(error, ConfigError):
            raise  # the experiment itself is not right
        note = str(error)
    line = {"trial": number, "seed": seed, "point": point, "score": score, "note": note}
    (folder / method).mkdir(parents=True, exist_ok=True)
    append_synced(folder / method / "trials.jsonl", json.dumps(line) + "\n")
    shutil.rmtree(trial, ignore_errors=True)


def _judged(last: dict[str, Any]) -> tuple[float | None, str]:
    if last.get("accuracy") is not None:
        return last["accuracy"], ""
    loss = last.get("loss")
    return (None, "the loss is not finite") if loss is None else (-loss, "")


def _scores(folder: Path, method: str) -> dict[tuple[int, int], dict[str, Any]]:
    """The lines of a method's trials, by trial and seed; one torn by a kill is run again."""
    path = folder / method / "trials.jsonl"
    if not path.exists():
        return {}
    lines = {}
    texts = path.read_bytes().splitlines(keepends=True)
    for k, text in enumerate(texts):
        try:
            line = json.loads(text)
            lines[line["trial"], line["seed"]] = line
        except (ValueError, KeyError, TypeError) as error:
            if k == len(texts) - 1 and not text.endswith(b"\n"):
                write_atomic(path, b"".join(texts[:-1]))
                break
            raise CheckpointError(f"{path} is damaged in line {k + 1}; mend or delete the file") from error
    return lines


def _as_toml(experiment: Experiment, folder: Path, seeds: int) -> str:
    last = FIRST_SEED + seeds - 1
    text = (
        f"# Best trial of each method for {experiment.experiment}, {experiment.rounds} rounds, judged by "
        f"{HELD_OUT:.0%} of each client's training samples,\n# held out, with seeds {FIRST_SEED} to {last}.\n"
    )
    text += tomli_w.dumps({"experiment": experiment.experiment})
    for method, trial in best(folder, seeds).items():
        tried = finished(folder, method, seeds)
        failed = sum(t.score is None for t in tried)
        about = f"trial {trial.number + 1} of {len(tried)}, score {trial.score:.4g}"
        if tried[0].number == 0 and tried[0].score is not None:
            about += f"; the experiment's own settings {tried[0].score:.4g}"
        if failed:
            about += f"; {failed} could not be run to their end"
        edges = _at_edge(experiment, method, trial.point)
        if edges:
            about += f"; at the edge of the range: {', '.join(edges)}"
        kept = {k: v for k, v in experiment.methods.get(method, {}).items() if k not in trial.point}
        text += f"\n# {about}\n" + tomli_w.dumps({"methods": {method: {**kept, **trial.point}}})
    return text


def _at_edge(experiment: Experiment, method: str, point: Point) -> list[str]:
    """Settings whose best value lies within a tenth of the end of their range: what is best may lie outside."""
    ranges: dict[str, Any] = {"lr": (experiment.lr / LR_FACTOR, experiment.lr * LR_FACTOR), **METHODS[method].search}
    edges = []
    for name, bounds in ranges.items():
        if isinstance(bounds, tuple):
            place = math.log(point[name] / bounds[0]) / math.log(bounds[1] / bounds[0])
            if not 0.1 <= place <= 0.9:
                edges.append(name)
    return edges
