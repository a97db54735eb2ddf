"""What slow clients cost: accuracy against simulated time, for methods that wait and for CoBo that does not.

    python benchmarks/stragglers.py [--experiment digits] [--seeds 0 1 2] [--count gradients] [--out runs/stragglers]

Three kinds of speeds: all alike; one client ten times slower; log-normal. With `--count gradients` (the default) each
gradient takes a client's time, so CoBo pays for its pairs and Ditto for its shared model. Settings of methods are
those of the experiment. Finished runs in --out are not run again, others go on. Writes
results/stragglers/EXPERIMENT.json, .png and .svg, and prints a table.
"""

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from cobo.engines.clocks import Times
from cobo.experiments import EXPERIMENTS, Experiment, load_experiment
from cobo.experiments.runner import run
from cobo.report import figures
from cobo.report.summary import environment

SPEEDS: dict[str, dict[str, Any]] = {
    "all alike": {},
    "one 10x slower": {"times": "straggler", "factor": 10.0},
    "log-normal": {"times": "log-normal", "spread": 0.5},
}
RUNS: dict[str, tuple[str, bool]] = {  # the method, and whether it waits
    "CoBo, waiting": ("cobo", True),
    "CoBo, non-blocking": ("cobo", False),
    "FedAvg": ("fedavg", True),
    "Ditto": ("ditto", True),
}
COLOURS = (figures.ORANGE, figures.BLUE, figures.GREEN, figures.RED)
Job = tuple[str, str, int]  # speeds, run, seed


def once(job: Job, options: argparse.Namespace) -> dict[str, Any]:
    """One run's curve and what came of the slowest client and of those that share its group."""
    speeds, name, seed = job
    method, waits = RUNS[name]
    experiment = prepared(options, speeds, waits)
    kind = f"{speeds} {options.count} {'waiting' if waits else 'non-blocking'}".replace(" ", "-")
    folder = options.out / options.experiment / kind
    result = run(experiment, method, seed, folder, resume=True, progress=False)  # at once, if it is finished
    history, groups = result.history, result.true_groups
    everyone = np.arange(len(result.names))
    assert experiment.clocks is not None
    slowest = int(Times(experiment.clocks, result.names, seed).of(everyone, 0 * everyone).argmax())
    mates = [k for k in everyone if groups[k] == groups[slowest] and k != slowest]
    last = history[-1]["client_accuracy"]
    ages = [line["staleness"] for line in history if line.get("staleness", {}).get("mean") is not None]
    print(f"{speeds}, {name}, seed {seed}: {history[-1]['accuracy']:.1f} %", file=sys.stderr, flush=True)
    return {
        "time": [round(line["time"], 2) for line in history],
        "accuracy": [round(line["accuracy"], 3) for line in history],
        "slowest": last[slowest],
        "mates": fmean(last[k] for k in mates) if mates else None,
        "staleness": {"mean": fmean(a["mean"] for a in ages), "max": max(a["max"] for a in ages)} if ages else None,
    }


def prepared(options: argparse.Namespace, speeds: str, waits: bool) -> Experiment:
    experiment = load_experiment(options.experiment, EXPERIMENTS, [f"rounds={options.rounds}"] * bool(options.rounds))
    clocks = {**SPEEDS[speeds], "count": options.count, "blocking": waits}
    if not waits:
        clocks |= {"staleness": options.staleness}
    return experiment.replace(clocks=clocks, evaluate_every=options.every)


def time_to(target: float | None, curve: dict[str, Any]) -> float | None:
    """When an evaluation first found the mean accuracy of all clients at the target."""
    reached = [t for t, a in zip(curve["time"], curve["accuracy"], strict=True) if target is not None and a >= target]
    return reached[0] if reached else None


def summary(curves: list[dict[str, Any]], target: float | None) -> dict[str, Any]:
    times = [time_to(target, curve) for curve in curves]
    last = [curve["accuracy"][-1] for curve in curves]
    ages = [curve["staleness"] for curve in curves if curve["staleness"]]
    return {
        "time_to_target": None if None in times else fmean(t for t in times if t is not None),
        "times_to_target": times,
        "accuracy": {"mean": fmean(last), "std": stdev(last) if len(last) > 1 else 0.0},
        "slowest": fmean(curve["slowest"] for curve in curves),
        "mates": fmean(curve["mates"] for curve in curves if curve["mates"] is not None),
        "end": fmean(curve["time"][-1] for curve in curves),
        "staleness": {"mean": fmean(a["mean"] for a in ages), "max": max(a["max"] for a in ages)} if ages else None,
        "curves": [{k: curve[k] for k in ("time", "accuracy")} for curve in curves],
    }


def table(found: dict[str, dict[str, dict[str, Any]]], target: float | None) -> str:
    lines = [
        f"| speeds | run | time to {target} % | ratio | final % | slowest % | its group % | end | age mean, max |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for speeds, runs in found.items():
        waiting = runs["CoBo, waiting"]["time_to_target"]
        for name, r in runs.items():
            reached, ages = r["time_to_target"], r["staleness"]
            ratio = f"{waiting / reached:.1f}" if waiting and reached else "-"
            spread = f"{r['accuracy']['mean']:.1f} ± {r['accuracy']['std']:.1f}"
            age = f"{ages['mean']:.0f}, {ages['max']}" if ages else "-"
            lines.append(
                f"| {speeds} | {name} | {'-' if reached is None else f'{reached:,.0f}'} | {ratio} | {spread} | "
                f"{r['slowest']:.1f} | {r['mates']:.1f} | {r['end']:,.0f} | {age} |"
            )
    return "\n".join(lines)


def held(curve: dict[str, Any], grid: NDArray[np.float64]) -> NDArray[np.float64]:
    """The accuracy at the last evaluation before each time: nothing is drawn that was not measured."""
    last = np.searchsorted(curve["time"], grid, side="right") - 1
    return np.array(curve["accuracy"])[last]


def figure(found: dict[str, dict[str, dict[str, Any]]], target: float | None) -> Figure:
    """Mean accuracy over seeds, with the least and the largest, against time; a panel for each kind of speeds."""
    drawn, panels = figures.new(11, 3.8, len(found))
    looks = dict(zip(RUNS, zip(COLOURS, ("--", "-", ":", "-."), strict=True), strict=True))
    for axes, (speeds, runs) in zip(panels, found.items(), strict=True):
        for name, r in runs.items():
            ends = [curve["time"][-1] for curve in r["curves"]]
            grid = np.geomspace(max(curve["time"][1] for curve in r["curves"]), max(ends), 150)
            rows = np.array([held(curve, grid) for curve in r["curves"]])
            colour, line = looks[name]
            axes.plot(grid, rows.mean(0), label=name, color=colour, linestyle=line)
            axes.fill_between(grid, rows.min(0), rows.max(0), color=colour, alpha=0.15, linewidth=0)
        if target is not None:
            axes.axhline(target, color=figures.GREY, linewidth=0.8)
        axes.set(xscale="log", xlabel="simulated time", title=speeds, ylim=(0, 100))
    panels[0].set_ylabel("accuracy %, mean of all clients")
    drawn.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(RUNS), frameon=False)
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiment", default="digits", choices=["digits", "fashion-mnist"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--count", default="gradients", choices=["rounds", "gradients"])
    parser.add_argument("--staleness", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--every", type=int, default=10, help="rounds between evaluations")
    parser.add_argument("--out", type=Path, default=Path("runs/stragglers"))
    parser.add_argument("--results", type=Path, default=Path("results/stragglers"))
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    options = parser.parse_args()
    target = load_experiment(options.experiment, EXPERIMENTS).target_accuracy
    jobs = [(speeds, name, seed) for seed in options.seeds for speeds in SPEEDS for name in RUNS]
    with ProcessPoolExecutor(options.workers) as pool:
        done = dict(zip(jobs, pool.map(once, jobs, [options] * len(jobs)), strict=True))
    found = {s: {n: summary([done[s, n, k] for k in options.seeds], target) for n in RUNS} for s in SPEEDS}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    facts = {
        "experiment": options.experiment, "seeds": options.seeds, "target_accuracy": target, "count": options.count,
        "staleness": options.staleness, "commit": commit, "environment": environment(), "speeds": found,
    }  # fmt: skip
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / f"{options.experiment}.json").write_text(json.dumps(facts) + "\n")
    figures.save(figure(found, target), options.results, options.experiment, dpi=140)
    print(f"`python benchmarks/stragglers.py {' '.join(sys.argv[1:])}`, commit {commit}\n\n{table(found, target)}")


if __name__ == "__main__":
    main()
