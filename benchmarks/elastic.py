"""What elastic membership costs and gives: late joiners, and half of the clients leaving midway.

    python benchmarks/elastic.py digits --out runs/elastic-digits [--seeds 0 1 2]

Four groups of four clients. Joining: the last client of every group comes at half time; how many rounds does it need to
be as good as its group was then, with CoBo and alone? Leaving: eight clients leave at half time, two whole groups or
half of every group; how do the others end, beside a run in which those eight never were? Runs are kept in --out, and
those that are finished are not done again. Writes results/elastic/EXPERIMENT.json and a figure.
"""

import argparse
import json
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from matplotlib.figure import Figure
from origin import origin

import cobo
from cobo.experiments import EXPERIMENTS, load_experiment
from cobo.experiments.runner import run
from cobo.report import figures

NAMES = [f"group{g}-client{k}" for g in range(4) for k in range(4)]
LATE = [name for name in NAMES if name.endswith("client3")]
MATES = [name for name in NAMES if name not in LATE]
LEAVERS = {
    "two groups": [name for name in NAMES if name[:6] in ("group2", "group3")],
    "half of every group": [name for name in NAMES if name[-1] in "23"],
}


def changed(verb: str, names: list[str], round: int, **options: str) -> str:
    changes = ", ".join(f'{{round = {round}, {verb} = "{name}"}}' for name in names)
    more = "".join(f', {key} = "{value}"' for key, value in options.items())
    return f"roster={{changes = [{changes}]{more}}}"


def settings(rounds: int) -> dict[str, tuple[str, list[str]]]:
    """For every run: the method, and what is set."""
    half = rounds // 2
    runs = {
        "alone": ("local", []),
        "all from the start": ("cobo", []),
        "joining": ("cobo", [changed("join", LATE, half)]),
        "joining, weights 1": ("cobo", [changed("join", LATE, half, start="common", weights="one")]),
    }
    for which, names in LEAVERS.items():
        runs[f"leaving, {which}"] = ("cobo", [changed("leave", names, half)])
        runs[f"never there, {which}"] = ("cobo", [f"without={json.dumps(names)}"])
    return runs


def curve(result: cobo.Result, names: list[str]) -> list[tuple[int, float]]:
    """Mean accuracy of some clients over the rounds in which they are there."""
    places = [result.names.index(name) for name in names]
    lines = [(line["round"], [line["client_accuracy"][k] for k in places]) for line in result.history]
    return [(round, fmean(values)) for round, values in lines if None not in values]


def until(points: list[tuple[int, float]], target: float, since: int = 0) -> int | None:
    return next((round - since for round, accuracy in points if round > since and accuracy >= target), None)


def measure(results: dict[str, cobo.Result], rounds: int) -> dict[str, Any]:
    """The numbers of one seed."""
    half = rounds // 2
    alone = curve(results["alone"], LATE)
    found: dict[str, Any] = {"alone in the end": alone[-1][1]}
    for name in ("joining", "joining, weights 1"):
        target = dict(curve(results[name], MATES))[half]
        joiners, mates = curve(results[name], LATE), curve(results[name], MATES)
        found[name] = {
            "target": target, "rounds": until(joiners, target, half), "rounds alone": until(alone, target),
            "rounds to what alone ends with": until(joiners, alone[-1][1], half),
            "rounds alone to what alone ends with": until(alone, alone[-1][1]),
            "in the end": joiners[-1][1], "mates in the end": mates[-1][1],
            "mates at worst after": min(accuracy for round, accuracy in mates if round > half),
        }  # fmt: skip
    found["in the end, there from the start"] = curve(results["all from the start"], LATE)[-1][1]
    for which, names in LEAVERS.items():
        stay = [name for name in NAMES if name not in names]
        left, never = (curve(results[f"{kind}, {which}"], stay)[-1][1] for kind in ("leaving", "never there"))
        found[which] = {"left": left, "never there": never, "difference": left - never}
    return found


def draw(results: dict[str, cobo.Result], rounds: int, title: str) -> Figure:
    """Accuracy of newcomers, of their mates, and alone; and of those who stay. One seed."""
    figure, (left, right) = figures.new(10, 3.8, 2)
    shown = {
        "their groups": ("joining", MATES, "black"),
        "newcomers, probing": ("joining", LATE, figures.BLUE),
        "newcomers, weights 1": ("joining, weights 1", LATE, figures.ORANGE),
        "the same clients alone (from round 0)": ("alone", LATE, figures.RED),
    }
    for label, (name, who, colour) in shown.items():
        left.plot(*zip(*curve(results[name], who), strict=True), label=label, color=colour, linewidth=1.3)
    left.set_title("a quarter of the clients joins at half time")
    for (which, names), colour in zip(LEAVERS.items(), (figures.BLUE, figures.RED), strict=True):
        stay = [name for name in NAMES if name not in names]
        for kind, style in (("leaving", "-"), ("never there", ":")):
            points = zip(*curve(results[f"{kind}, {which}"], stay), strict=True)
            verb = "leave" if kind == "leaving" else "never were"
            right.plot(*points, style, label=f"{which} {verb}", color=colour, linewidth=1.3)
    right.set_title("half of the clients leave: accuracy of the others")
    best = max(accuracy for _, accuracy in curve(results["all from the start"], NAMES))
    for axes in (left, right):
        axes.axvline(rounds // 2, color=figures.GREY, linewidth=0.8, linestyle="--")
        axes.set_xlabel("round")
        axes.set_ylim(best - 20, best + 2)
        axes.legend(fontsize=8, edgecolor="none", framealpha=0.9, loc="lower right")
    left.set_ylabel("accuracy (%)")
    figure.suptitle(title, fontsize=11)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=["digits", "fashion-mnist"])
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--results", type=Path, default=Path("results/elastic"))
    arguments = parser.parse_args()
    rounds = load_experiment(arguments.experiment, EXPERIMENTS).rounds
    base = ["clients_per_group=4", f"evaluate_every={rounds // 100}"]
    measured, shown = {}, None
    for seed in arguments.seeds:
        results = {}
        for name, (method, changes) in settings(rounds).items():
            experiment = load_experiment(arguments.experiment, EXPERIMENTS, [*base, *changes])
            folder = arguments.out / name.replace(",", "").replace(" ", "-")
            results[name] = run(experiment, method, seed, folder, resume=True, progress=False)
            print(f"seed {seed}, {name}: {results[name].history[-1]['accuracy']:.2f}", flush=True)
        measured[seed] = measure(results, rounds)
        shown = shown or draw(results, rounds, f"{arguments.experiment}, 16 clients in 4 groups, seed {seed}")
    arguments.results.mkdir(parents=True, exist_ok=True)
    path = arguments.results / f"{arguments.experiment}.json"
    summary = summarise(measured)
    path.write_text(json.dumps({"origin": origin(), "summary": summary, "seeds": measured}, indent=1) + "\n")
    assert shown is not None
    figures.save(shown, arguments.results, arguments.experiment, dpi=140)
    print(json.dumps(summary, indent=1))


def summarise(measured: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Every number over the seeds; where one seed has none (never reached), all are listed."""
    found: dict[str, Any] = {}
    for key, value in next(iter(measured.values())).items():
        if isinstance(value, dict):
            found[key] = summarise({seed: one[key] for seed, one in measured.items()})
        else:
            values = [one[key] for one in measured.values()]
            spread = stdev(values) if len(values) > 1 and None not in values else 0.0
            found[key] = values if None in values else f"{fmean(values):.2f} +- {spread:.2f}"
    return found


if __name__ == "__main__":
    main()
