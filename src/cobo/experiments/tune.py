"""Tuning: every method gets the same number of trials, on validation samples and seeds that are never reported.

A trial is a point in the ranges of the learning rate and of the method's own settings (`Method.search`). Points follow
a scrambled Halton sequence, whatever the experiment's own settings are, so the k-th trial is always the same and a
search can be stopped, resumed and lengthened. Each is run with every seed on clients that are judged by a share of
the *training* samples, on which nobody trains; the mean accuracy (or loss) decides. Test samples are never looked at.

What is best in short runs need not be in long ones. A search can be among the best of an earlier one: many trials of
few rounds first, then the best few of each method in full.
"""

import json
import math
import shutil
import tomllib
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import tomli_w

from cobo import draws
from cobo.errors import CheckpointError, ConfigError, RunError
from cobo.experiments.experiment import Experiment, Range
from cobo.experiments.job import Job, Watcher
from cobo.experiments.outlook import expect, outlook
from cobo.experiments.runner import Claim, Say, check
from cobo.methods import METHODS
from cobo.training.checkpoint import write_atomic
from cobo.training.fit import fit
from cobo.training.lock import only_one
from cobo.training.records import append_synced

FIRST_SEED = 1000
VALIDATION = 0.2
LR_FACTOR = 10.0  # the learning rate is searched from a tenth to ten times that of the experiment

Point = dict[str, Any]


class Trial(NamedTuple):
    """A point and what it scored: higher is better; None if it could not be run to its end."""

    number: int
    point: Point
    score: float | None
    note: str


def tune(
    experiment: Experiment,
    methods: Sequence[str],
    trials: int,
    seeds: int,
    folder: Path,
    watch: Watcher,
    among: Path | None = None,
    say: Say | None = None,
) -> dict[str, Trial]:
    """The best trial of each method; FOLDER/tuned.toml holds them for `compare --tuned`.

    `among` is the folder of an earlier search: the trials are then the best so many of each method there. `say` is
    told first what the search will take.
    """
    if among is not None:
        _check_same(among, experiment)
    chosen = {m: points(experiment, m, trials) if among is None else finalists(among, m, trials) for m in methods}
    claim = Claim(folder, experiment)
    experiment = experiment.replace(evaluate_every=max(1, experiment.rounds // 4))
    _prepare(experiment, methods, trials, range(FIRST_SEED, FIRST_SEED + seeds), folder, say)
    for method in methods:
        (folder / method).mkdir(parents=True, exist_ok=True)
        with only_one(folder / method):
            _drop_torn_line(folder / method / "trials.jsonl")
            done = _scores(folder, method)
            for number, point in enumerate(chosen[method]):
                for seed in range(FIRST_SEED, FIRST_SEED + seeds):
                    if (number, seed) in done:
                        _check_point(folder, method, done[number, seed], point)
                        watch.skip()
                        continue
                    heard = watch.begin(f"{method} trial {number + 1} seed {seed}")
                    _run(experiment, method, number, point, seed, folder, [claim, heard])
                    heard.end()
    found = best(folder, trials, seeds)
    for method in methods:
        if method not in found:
            note = finished(folder, method, trials, seeds)[0].note
            raise RunError(f"no trial of {method} could be run to its end; the first: {note}")
    write_atomic(folder / "tuned.toml", _as_toml(experiment, folder, trials, seeds, among).encode())
    return found


def points(experiment: Experiment, method: str, trials: int) -> list[Point]:
    """The settings of the trials.

    >>> from cobo.experiments import EXPERIMENTS, load_experiment
    >>> [sorted(p) for p in points(load_experiment("digits", EXPERIMENTS), "ditto", 2)]
    [['lam', 'lr'], ['lam', 'lr']]
    """
    from scipy.stats import qmc  # takes a second to import

    ranges = _ranges(experiment, method)
    seed = int(draws.key(0, "tune", method)) & 0xFFFF_FFFF
    drawn = qmc.Halton(len(ranges), scramble=True, rng=seed).random(trials)
    return [{n: _between(r, float(u)) for (n, r), u in zip(ranges.items(), row, strict=True)} for row in drawn]


def finalists(folder: Path, method: str, wanted: int) -> list[Point]:
    """The points of the best trials of an earlier search, best first."""
    lines = _scores(folder, method).values()
    seeds = len({line["seed"] for line in lines})
    tried = finished(folder, method, 1 + max((line["trial"] for line in lines), default=-1), seeds)
    scored = sorted((-trial.score, trial.number, trial.point) for trial in tried if trial.score is not None)
    if len(scored) < wanted:
        raise ConfigError(f"{folder} has {len(scored)} finished trials of {method}, not {wanted}: fewer --trials?")
    return [point for _, _, point in scored[:wanted]]


def _check_same(among: Path, experiment: Experiment) -> None:
    path = among / "experiment.toml"
    if not path.is_file():
        raise ConfigError(f"--among {among} holds no search; give the folder that an earlier `cobo tune` wrote")
    name = tomllib.loads(path.read_text(encoding="utf-8")).get("experiment")
    if name != experiment.experiment:
        raise ConfigError(f"--among {among} is a search for {name}, not for {experiment.experiment}")


def best(folder: Path, trials: int, seeds: int) -> dict[str, Trial]:
    """The best trial of every method that has had all of them."""
    found = {}
    for method in METHODS:
        tried = finished(folder, method, trials, seeds)
        first = leader(tried)
        if first is not None and len(tried) == trials:
            found[method] = first
    return found


def leader(tried: Sequence[Trial]) -> Trial | None:
    """The best of them, if any could be run to its end."""
    scored = [(trial.score, -trial.number, trial) for trial in tried if trial.score is not None]
    return max(scored)[-1] if scored else None


def finished(folder: Path, method: str, trials: int, seeds: int) -> list[Trial]:
    """The trials of a method, of the first so many, that were run with all seeds."""
    scores = _scores(folder, method)
    found = []
    for number in range(trials):
        lines = [scores.get((number, seed)) for seed in range(FIRST_SEED, FIRST_SEED + seeds)]
        known = [line for line in lines if line is not None]
        if len(known) == seeds:
            values = [line["score"] for line in known]
            notes = [line["note"] for line in known if line["note"]]
            score = None if None in values else fmean(values)
            found.append(Trial(number, known[0]["point"], score, notes[0] if notes else ""))
    return found


def _ranges(experiment: Experiment, method: str) -> dict[str, Any]:
    """Where to look: the usual ranges, but for those that the experiment has of its own."""
    usual = {"lr": (experiment.lr / LR_FACTOR, experiment.lr * LR_FACTOR), **METHODS[method].search}
    own = experiment.search.get(method, {})
    return {**usual, **{k: (v.low, v.high) if isinstance(v, Range) else v for k, v in own.items()}}


def _prepare(
    experiment: Experiment, methods: Sequence[str], trials: int, seeds: Sequence[int], folder: Path, say: Say | None
) -> None:
    """Refuse what cannot work at any point: what fails in a trial is then the point's fault. Say what trials take."""
    tables = {m: {**experiment.methods.get(m, {}), "lr": min(_ranges(experiment, m)["lr"])} for m in methods}
    federation = check(experiment.replace(methods=tables), methods, FIRST_SEED, validation=VALIDATION)
    done = {m: _scores(folder, m) for m in methods}
    left = [(m, seed) for m in methods for k in range(trials) for seed in seeds if (k, seed) not in done[m]]
    jobs = [Job(experiment, m, seed, folder, m) for m, seed in left]
    if say is not None and jobs:
        for line in outlook(jobs, [expect(federation, jobs, resume=False)]):
            say(line)


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
    trial = folder / method / f"trial-{number + 1}-seed-{seed}"
    table = {**experiment.methods.get(method, {}), **point}
    changed = experiment.replace(methods={**experiment.methods, method: table})
    parts = changed.parts(seed, validation=VALIDATION)
    score, note = None, ""
    try:
        result = fit(
            parts.clients, model=parts.model, loss=parts.loss, method=changed.method(method), out=trial, resume=True,
            listeners=listeners,
            **changed.training(method, seed),
        )  # fmt: skip
        score, note = _judged(result.history[-1])
    except (ConfigError, RunError) as error:  # outside the stable range, or diverged
        note = str(error)
    line = {"trial": number, "seed": seed, "point": point, "score": score, "note": note}
    append_synced(folder / method / "trials.jsonl", json.dumps(line) + "\n")
    shutil.rmtree(trial, ignore_errors=True)


def _judged(last: dict[str, Any]) -> tuple[float | None, str]:
    if last.get("accuracy") is not None:
        return last["accuracy"], ""
    loss = last.get("loss")
    return (None, "the loss is not finite") if loss is None else (-loss, "")


def _scores(folder: Path, method: str) -> dict[tuple[int, int], dict[str, Any]]:
    """The lines of a method's trials, by trial and seed; one without its end is not there yet."""
    path = folder / method / "trials.jsonl"
    lines = {}
    for k, text in enumerate(_whole_lines(path)):
        try:
            line = json.loads(text)
            lines[line["trial"], line["seed"]] = line
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path} is damaged in line {k + 1}; mend or delete the file") from error
    return lines


def _whole_lines(path: Path) -> list[bytes]:
    texts = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [text for text in texts if text.endswith(b"\n")]


def _drop_torn_line(path: Path) -> None:
    """What a kill has left of a line is made again."""
    if path.exists():
        write_atomic(path, b"".join(_whole_lines(path)))


def _check_point(folder: Path, method: str, line: dict[str, Any], point: Point) -> None:
    if line["point"] != point:
        raise CheckpointError(
            f"{folder}: trial {line['trial'] + 1} of {method} was run with {line['point']}, not {point}; the ranges or "
            "the earlier search have changed, use another --out"
        )


def _as_toml(experiment: Experiment, folder: Path, trials: int, seeds: int, among: Path | None) -> str:
    last, share = FIRST_SEED + seeds - 1, 100 * experiment.judged_by(VALIDATION)
    text = (
        f"# Best of {trials} trials of each method for {experiment.experiment}, {experiment.rounds} rounds, judged by "
        f"{share:.3g}% of the training samples\n# on which nobody trained, with seeds {FIRST_SEED} to {last}.\n"
    )
    if among is not None:
        text += "# These were the best of an earlier search.\n"
    text += tomli_w.dumps({"experiment": experiment.experiment})
    for method, trial in best(folder, trials, seeds).items():
        about = f"trial {trial.number + 1}, score {trial.score:.4g}"
        failed = sum(t.score is None for t in finished(folder, method, trials, seeds))
        if failed:
            about += f"; {failed} could not be run to their end"
        ranges = _ranges(experiment, method)
        edges = [name for name, value in trial.point.items() if name in ranges and _at_edge(ranges[name], value)]
        if edges:
            about += f"; at the edge of the range: {', '.join(edges)}"
        kept = {k: v for k, v in experiment.methods.get(method, {}).items() if k not in trial.point}
        text += f"\n# {about}\n" + tomli_w.dumps({"methods": {method: {**kept, **trial.point}}})
    return text


def _at_edge(bounds: Any, value: Any) -> bool:
    """Whether a value lies within a tenth of the end of its range: what is best may lie outside."""
    if isinstance(bounds, list):
        return False
    place = math.log(value / bounds[0]) / math.log(bounds[1] / bounds[0])
    return not 0.1 <= place <= 0.9
