"""Comparing methods: the table in all its forms, the fair protocol, tuning, and being killed on the way."""

import csv
import io
import json
import os
import random
import shutil
import signal
import time
import tomllib
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import pytest
import tomli_w
import torch
from conftest import Point, blobs, labels_apart, point_client, quadratic
from rich.console import Console
from test_cli import run, start

import cobo
from cobo.cli.terminal import show_runs
from cobo.collaboration import graph
from cobo.errors import CheckpointError, ConfigError, DataError, Interrupted, RunError
from cobo.experiments import EXPERIMENTS, load_experiment, permuted
from cobo.experiments import tune as search
from cobo.experiments.runner import Claim, compare
from cobo.experiments.runner import run as run_one
from cobo.methods import METHODS
from cobo.report import comparison, figures, milestones, summary, table
from cobo.report.board import Board
from cobo.report.page import build, words
from cobo.report.summary import read_runs
from cobo.training.lock import only_one
from cobo.training.records import pack_weights


class Silent:
    """Watches a comparison or a search and remembers what it began, skipped and heard."""

    def __init__(self):
        self.begun, self.skipped, self.ended, self.events = [], 0, 0, []

    def __call__(self, event):
        self.events.append(event)

    def begin(self, label):
        self.begun.append(label)
        return self

    def skip(self):
        self.skipped += 1

    def end(self):
        self.ended += 1


def tiny(*changes: str, tuned=None):
    return load_experiment("digits", EXPERIMENTS, ["rounds=12", "evaluate_every=4", "samples=30", *changes], tuned)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """All methods, two seeds."""
    folder = tmp_path_factory.mktemp("compared")
    watch = Silent()
    compare(tiny(), list(METHODS), [0, 1], folder, resume=False, watch=watch)
    return folder, watch


def results_of(folder: Path, target: float = 20.0):
    return summary.summarise(folder, "digits", target)


def last(folder: Path, method: str, seed: int) -> dict:
    lines = (folder / method / f"seed-{seed}" / "metrics.jsonl").read_text().splitlines()
    return json.loads(lines[-1])


# The table


def test_all_methods_have_their_first_seed_before_any_has_its_second(compared):
    _, watch = compared
    assert watch.begun == [f"{m} seed {s}" for s in (0, 1) for m in METHODS]
    assert watch.ended == 16


def test_results_are_what_the_runs_say(compared):
    folder, _ = compared
    results = results_of(folder)
    assert list(results["methods"]) == ["local", "fedavg", "finetune", "ditto", "ifca", "fc", "cobo", "oracle"]
    assert results["seeds"] == [0, 1]
    assert results["rounds"] == 12
    for method, m in results["methods"].items():
        lines = [last(folder, method, s) for s in (0, 1)]
        scores = [x["accuracy"] for x in lines]
        assert m["accuracy"] == {"mean": pytest.approx(fmean(scores)), "std": pytest.approx(stdev(scores))}
        assert m["loss"]["mean"] == pytest.approx(fmean(x["loss"] for x in lines))
        assert m["gradients"] == round(fmean(x["gradients"] for x in lines))
        assert m["bytes"] == round(fmean(x["bytes"] for x in lines))
        assert m["settings"]["lr"] == tiny().methods[method]["lr"]
    local, oracle, ditto = (results["methods"][m] for m in ("local", "oracle", "ditto"))
    shares = []
    for s in (0, 1):
        alone, mine = (last(folder, m, s) for m in ("local", "ditto"))
        clients = [(mine["clients"][n]["accuracy"], alone["clients"][n]["accuracy"]) for n in mine["clients"]]
        shares.append(100 * fmean(a > b for a, b in clients))
    assert ditto["improved"]["mean"] == pytest.approx(fmean(shares))
    assert local["improved"] is None
    assert local["recovery"] is None
    assert oracle["recovery"] is None
    assert (oracle["weights_error"], oracle["groups_score"]) == (0, 1)
    assert local["weights_error"] is None
    assert local["bytes"] == 0
    assert (local["gradients"], ditto["gradients"], results["methods"]["fc"]["gradients"]) == (96, 192, 768)
    assert {m for m, r in results["methods"].items() if r["told"]} == {"ifca", "fc", "oracle"}


def made_up(folder: Path, method: str, seed: int, accuracies: list[float | None]) -> None:
    """A finished run with these accuracies of its clients."""
    where = folder / method / f"seed-{seed}"
    where.mkdir(parents=True)
    mean = None if None in accuracies else fmean(accuracies)
    line = {"round": 9, "seconds": 1.0, "gradients": 5, "comparisons": 0, "bytes": 0, "accuracy": mean, "loss": 0.5}
    line |= {"client_accuracy": accuracies, "client_loss": [0.5] * len(accuracies)}
    facts = {"training": {"rounds": 9}, "method": {"name": method}, "weights": None, "true_groups": []}
    facts["names"] = [f"client {k}" for k in range(len(accuracies))]
    (where / "result.json").write_text(json.dumps({**facts, "history": [line]}))


def test_recovery_is_the_gain_over_local_relative_to_the_oracles(tmp_path):
    for seed, (alone, mine, best) in enumerate([(90, 93, 94), (92, 92, 92), (80, 82, 84)]):
        for method, value in (("local", alone), ("ditto", mine), ("oracle", best)):
            made_up(tmp_path, method, seed, [value, value])
    # Gains 3, 0, 2 of 4, 0, 4: by the mean possible gain 8/3, also where a seed has nothing to gain.
    recovery = results_of(tmp_path)["methods"]["ditto"]["recovery"]
    assert recovery["mean"] == pytest.approx(100 * 5 / 8)
    assert recovery["std"] == pytest.approx(100 * stdev([3, 0, 2]) / (8 / 3))


@pytest.mark.parametrize(("missing", "key"), [("local", "improved"), ("local", "recovery"), ("oracle", "recovery")])
def test_a_seed_without_local_or_oracle_is_not_left_out_of_the_mean(tmp_path, missing, key):
    for seed in (0, 1):
        for method, value in (("local", 80.0), ("ditto", 85.0), ("oracle", 90.0)):
            if (method, seed) != (missing, 1):
                made_up(tmp_path, method, seed, [value])
    assert results_of(tmp_path)["methods"]["ditto"][key] is None


def test_what_diverged_does_not_flatter(tmp_path):
    for seed in (0, 1):
        made_up(tmp_path, "local", seed, [80.0, 80.0, 80.0])
        made_up(tmp_path, "ditto", seed, [90.0, None, None] if seed else [90.0, 90.0, 70.0])
    ditto = results_of(tmp_path)["methods"]["ditto"]
    assert ditto["accuracy"] is None  # not the mean of the seed that went well
    assert ditto["improved"]["mean"] == pytest.approx(100 * (2 / 3 + 1 / 3) / 2)


def test_clients_are_compared_with_themselves_alone_whatever_their_order(tmp_path):
    alone, together = {"a": 50.0, "b": 60.0, "c": 70.0, "d": 80.0}, {"a": 55.0, "b": 65.0, "c": 75.0, "d": 75.0}

    def made(method, accuracies):
        made_up(tmp_path, method, 0, list(accuracies.values()))
        path = tmp_path / method / "seed-0" / "result.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "names": list(accuracies)}))

    made("cobo", together)
    made("local", dict(reversed(alone.items())))
    assert results_of(tmp_path)["methods"]["cobo"]["improved"]["mean"] == 75
    shutil.rmtree(tmp_path / "local")
    made("local", {name: alone[name] for name in "dba"})
    results = results_of(tmp_path)
    assert results["methods"]["cobo"]["improved"]["mean"] == pytest.approx(100 * 2 / 3)
    assert words.notes(results, read_runs(tmp_path))[-1] == (
        "In one of the run and Local with the same seed only, so not compared: c (cobo seed 0)."
    )


def test_rows_with_fewer_seeds_and_unfinished_runs_are_marked(tmp_path):
    for seed in (0, 1):
        made_up(tmp_path, "local", seed, [80.0])
    made_up(tmp_path, "ditto", 0, [70.0])
    (tmp_path / "ditto" / "seed-1").mkdir()
    (tmp_path / "ditto" / "seed-1" / "metrics.jsonl").touch()
    results = results_of(tmp_path)
    assert results["unfinished"] == ["ditto seed-1"]
    for text in (table.markdown(results), table.latex(results)):
        assert "digits: 9 rounds, 2 seeds" in text
        assert "ditto*" in text
        assert "fewer seeds: ditto 1." in text
        assert "Begun but not finished: ditto seed-1." in text


@pytest.mark.slow
def test_a_method_that_diverges_does_not_keep_the_others_from_the_table(tmp_path):
    arguments = ("compare", "digits", "--rounds", "6", "--set", "samples=20", "--methods", "fedavg,local,oracle")
    bad = ("--set", "fedavg.lr=1e30", "--out", str(tmp_path))
    for more in ((), ("--resume",)):
        code, out, err = run(*arguments, *bad, *more)
        assert code == 1
        assert "fedavg seed 0 failed: round" in err.splitlines()[-1]
        assert "oracle" in out
        results = json.loads((tmp_path / "results.json").read_text())
        assert list(results["methods"]) == ["local", "oracle"]
        assert results["unfinished"] == ["fedavg seed-0"]


def test_rounds_to_target_need_every_seed(compared):
    folder, _ = compared
    assert results_of(folder, 0.0)["methods"]["local"]["rounds_to_target"] == 0
    assert results_of(folder, 100.0)["methods"]["local"]["rounds_to_target"] is None
    best = max(last(folder, "local", s)["accuracy"] for s in (0, 1))
    assert results_of(folder, best)["methods"]["local"]["rounds_to_target"] is None  # one seed does not get there


def test_the_table_in_every_form(compared, tmp_path):
    folder, _ = compared
    results = results_of(folder)
    table.write(tmp_path, results)
    assert json.loads((tmp_path / "results.json").read_text()) == results
    lines = (tmp_path / "table.md").read_text().splitlines()
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1
    assert sum(line.startswith("|") for line in lines) == 10
    assert "ifca the number of groups" in lines[-1]
    rows = list(csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text())))
    assert [row["method"] for row in rows] == list(METHODS)
    assert float(rows[3]["accuracy_mean"]) == results["methods"]["ditto"]["accuracy"]["mean"]
    assert rows[0]["improved_mean"] == ""
    assert rows[0]["seeds"] == "0 1"
    tex = (tmp_path / "table.tex").read_text()
    body = tex[tex.index(r"\midrule") : tex.index(r"\bottomrule")].splitlines()[1:]
    assert len(body) == 8
    assert {line.count("&") for line in body} == {tex.split(r"\toprule")[1].splitlines()[1].count("&")}
    assert all(line.endswith(r"\\") for line in body)
    assert tex.count(r"\textbf") == 1
    assert not any("±" in line for line in tex.splitlines() if not line.startswith("%"))
    assert not any("%" in line.replace(r"\%", "") for line in tex.splitlines() if not line.startswith("%"))


def test_the_best_of_those_not_told_is_bold():
    def made(accuracy, told=""):
        row = {"accuracy": {"mean": accuracy, "std": 0.5}, "loss": None, "improved": None, "recovery": None}
        row |= {
            "perplexity": None,
            "settings": {},
            "gradients": 1,
            "comparisons": 0,
            "bytes": 0,
            "rounds_to_target": None,
            "weights_error": None,
            "graph_settled": None,
        }
        return row | {"groups_score": None, "seconds": 1.0, "told": told, "seeds": [0, 1]}

    methods = {"local": made(50), "my_own": made(60), "fc": made(70, "sizes"), "oracle": made(80, "all")}
    results = {"experiment": "x", "rounds": 3, "seeds": [0, 1], "unfinished": [], "methods": methods}
    assert r"my\_own & \textbf{60.0 $\pm$ 0.5} &" in table.latex(results)


@pytest.fixture
def renamed(compared, tmp_path):
    """Runs in folders that are not called as their methods are."""
    for method, name in (("local", "local"), ("cobo", "cobo-a"), ("cobo", "cobo-b"), ("oracle", "oracle-b")):
        shutil.copytree(compared[0] / method, tmp_path / name)
    return tmp_path


def test_a_folder_of_another_name_is_told_what_its_method_is_told(renamed):
    results = results_of(renamed)
    told = {name: m["told"] for name, m in results["methods"].items()}
    assert told == {"local": METHODS["local"].told, "cobo-a": "", "cobo-b": "", "oracle-b": "the groups"}
    results["methods"]["oracle-b"]["accuracy"]["mean"] = 100.0
    assert table.best(results) != "oracle-b"


def test_the_command_names_methods_and_not_folders(renamed):
    command = build.command(results_of(renamed), read_runs(renamed), own=False)
    assert command == "cobo compare experiment.toml --methods local,cobo,oracle --seeds 2 --out again"
    shutil.rmtree(renamed / "local" / "seed-1")
    shutil.rmtree(renamed / "cobo-b")
    command = build.command(results_of(renamed), read_runs(renamed), own=False)
    assert command.splitlines()[1] == "cobo run experiment.toml --method cobo --seed 0 --out again"


def test_a_folder_of_another_name_has_a_colour_of_its_own_and_its_w(renamed):
    made = comparison.drawn(renamed, results_of(renamed))
    lines = [line for line in made["accuracy"].axes[0].lines if not line.get_label().startswith(("_", "target"))]
    assert len(lines) == 4
    assert len({line.get_color() for line in lines}) == 4
    labels = [ax.get_ylabel() for ax in made["weights"].axes if ax.images]
    assert [label for label in labels if label] == ["cobo-a\nseed 0", "cobo-b\nseed 0"]
    everyone = comparison.looks([*METHODS, "cobo-a", "cobo-b"])
    assert len({(look["color"], look["linestyle"]) for look in everyone.values()}) == len(METHODS) + 2


def test_names_of_folders_are_no_markup(tmp_path):
    made_up(tmp_path, "[red]mine", 0, [80.0])
    console = Console(width=80, file=io.StringIO())
    console.print(table.terminal(summary.summarise(tmp_path, "[b]digits[/b]", None)))
    assert "[red]mine" in console.file.getvalue()
    assert "[b]digits[/b]: 9 rounds" in console.file.getvalue()


def test_the_table_fits_80_columns(compared):
    folder, _ = compared
    results = results_of(folder)
    for m in results["methods"].values():  # as large as they get
        m["gradients"], m["bytes"], m["seconds"], m["rounds_to_target"] = 40_000 * 64, 9_999e6, 9_999.0, 40_000
    console = Console(width=80, file=io.StringIO())
    console.print(table.terminal(results))
    text = console.file.getvalue()
    assert "…" not in text
    assert "40000" in text
    assert all(name in text for name in METHODS)


def recorded(folder: Path, method: str, seed: int, accuracies: dict[int, float], **facts) -> None:
    """A finished run with these accuracies by round, 10 gradients a round."""
    where = folder / method / f"seed-{seed}"
    where.mkdir(parents=True)
    counts = {"seconds": 1.0, "comparisons": 0, "bytes": 0, "loss": 0.5}
    counts |= {"client_accuracy": [], "client_loss": []}
    lines = [{"round": r, "gradients": 10 * r, "accuracy": a, **counts} for r, a in accuracies.items()]
    common = {"training": {"rounds": 9}, "method": {"name": method}, "weights": None, "true_groups": [], "names": []}
    (where / "result.json").write_text(json.dumps({**common, **facts, "history": lines}))


def test_when_the_target_and_dittos_accuracy_are_reached_in_rounds_and_gradients(tmp_path):
    for seed, good in enumerate((4, 6)):
        recorded(tmp_path, "ditto", seed, {0: 10.0, 5: 60.0, 9: 60.0 + seed})
        recorded(tmp_path, "cobo", seed, {0: 10.0, good: 61.0, 9: 50.0})
        recorded(tmp_path, "local", seed, {0: 10.0, 9: 60.5})  # as good as Ditto with the first seed only
    methods = results_of(tmp_path, 55.0)["methods"]
    measured = ("rounds_to_target", "gradients_to_target", "rounds_to_ditto", "gradients_to_ditto")
    assert [methods["cobo"][key] for key in measured] == [5, 50, 5, 50]
    assert [methods["ditto"][key] for key in measured] == [5, 50, 7, 70]
    assert [methods["local"][key] for key in measured] == [9, 90, None, None]
    assert methods["cobo"]["graph_settled"] is None
    alone = tmp_path / "alone"
    recorded(alone, "cobo", 0, {0: 10.0, 9: 99.0})
    assert results_of(alone)["methods"]["cobo"]["rounds_to_ditto"] is None


def with_graph(folder: Path, seed: int, snapshots: list, **facts) -> None:
    """A finished run of CoBo with four clients, in groups a, b, a, b, and this W over time."""
    names, groups = ["n", "s", "e", "w"], ["a", "b", "a", "b"]
    facts = {"names": names, "true_groups": groups, "weights": snapshots[-1][1].tolist(), **facts}
    recorded(folder, "cobo", seed, {r: 50.0 for r, _ in snapshots}, **facts)
    (folder / "cobo" / f"seed-{seed}" / "weights.safetensors").write_bytes(pack_weights(names, snapshots))


RIGHT = graph.oracle(["a", "b", "a", "b"]).astype(np.float32)
WRONG = np.ones((4, 4), dtype=np.float32)


def test_the_graph_is_settled_when_it_is_right_in_every_later_snapshot(tmp_path):
    with_graph(tmp_path, 0, [(0, WRONG), (10, RIGHT), (20, WRONG), (30, RIGHT), (40, RIGHT)])
    assert results_of(tmp_path)["methods"]["cobo"]["graph_settled"] == {"round": 30}
    with_graph(tmp_path, 1, [(0, WRONG), (10, RIGHT), (40, RIGHT)])
    results = results_of(tmp_path)
    assert results["methods"]["cobo"]["graph_settled"] == {"round": 20}  # the mean
    assert "| 1.00 | 20 |" in table.markdown(results)
    (row,) = csv.DictReader(io.StringIO(table.comma_separated(results)))
    assert row["graph_settled_round"] == "20.0"
    with_graph(tmp_path, 2, [(0, RIGHT), (40, WRONG)])
    assert results_of(tmp_path)["methods"]["cobo"]["graph_settled"] == {"round": None}


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ([RIGHT, RIGHT], "CoBo found 2 groups, the true ones."),
        ([RIGHT, WRONG, RIGHT], "CoBo found 1 to 2 groups, the true ones with 2 of 3 seeds."),
        ([WRONG, WRONG], "CoBo found 1 group, not the true ones."),
        ([WRONG], "CoBo found 1 group, not the true ones."),
    ],
)
def test_the_finding_says_with_how_many_seeds_the_groups_are_the_true_ones(tmp_path, last, said):
    for seed, W in enumerate(last):
        with_graph(tmp_path, seed, [(0, WRONG), (10, W)])
    assert words.finding(results_of(tmp_path), read_runs(tmp_path)) == said


def test_who_is_not_there_does_not_make_a_graph_wrong(tmp_path):
    away = RIGHT.copy()
    away[1] = away[:, 1] = 0  # "s" joins after round 10
    with_graph(tmp_path, 0, [(0, away), (10, away), (20, RIGHT)], present=["n", "s", "e", "w"],
               changes=[{"round": 10, "joined": ["s"]}])  # fmt: skip
    assert results_of(tmp_path)["methods"]["cobo"]["graph_settled"] == {"round": 0}
    here = read_runs(tmp_path)["cobo"][0]
    assert [milestones.present_at(here, r) for r in (10, 11)] == [["n", "e", "w"], ["n", "s", "e", "w"]]


# Figures


@pytest.mark.slow
def test_figures_of_a_comparison_are_written_and_the_same_each_time(compared, tmp_path):
    folder, _ = compared
    results = results_of(folder)
    contents = []
    for _ in range(2):
        comparison.draw(folder, results)
        contents.append({path.name: path.read_bytes() for path in (folder / "figures").iterdir()})
    names = {f"{name}.{kind}" for name in ("accuracy", "gradients", "weights") for kind in ("png", "svg")}
    assert set(contents[0]) == names
    assert contents[0] == contents[1]
    assert contents[0]["weights.png"].startswith(b"\x89PNG")
    assert b"<svg" in contents[0]["accuracy.svg"]


def test_a_curve_is_the_mean_over_seeds_with_its_spread(compared):
    folder, _ = compared
    found = comparison.curve(read_runs(folder)["ditto"], "accuracy")
    assert found.rounds == [0, 4, 8, 12]
    assert found.gradients == [0, 64, 128, 192]
    scores = [last(folder, "ditto", s)["accuracy"] for s in (0, 1)]
    assert found.mean[-1] == pytest.approx(fmean(scores))
    assert found.std[-1] == pytest.approx(stdev(scores))
    one = comparison.curve({0: read_runs(folder)["ditto"][0]}, "accuracy")
    assert one.std is None
    figure = comparison.curves({"ditto": found, "my own": one}, "accuracy", "gradients", 90.0)
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    assert list(lines) == [f"ditto {found.mean[-1]:.1f}", f"my own {one.mean[-1]:.1f}", "target 90"]
    assert lines["target 90"].get_ydata() == [90, 90]
    assert [line.get_color() for line in lines.values()][:2] == [figures.METHOD_COLOURS["ditto"], figures.OTHER]


def test_a_score_that_is_no_number_is_a_gap_and_no_end(tmp_path):
    def made(seed, scores):
        made_up(tmp_path, "ditto", seed, [1.0])
        path = tmp_path / "ditto" / f"seed-{seed}" / "result.json"
        facts = json.loads(path.read_text())
        facts["history"] = [{**facts["history"][0], "round": k, "accuracy": score} for k, score in enumerate(scores)]
        path.write_text(json.dumps(facts))

    made(0, [10.0, 20.0, None, 40.0, None])
    made(1, [30.0, 40.0, 50.0, 60.0, 70.0])
    runs = read_runs(tmp_path)
    found = comparison.curve(runs["ditto"], "accuracy")
    assert found.rounds == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(found.mean, [20, 30, np.nan, 50, np.nan])
    np.testing.assert_array_equal(np.isnan(found.std), np.isnan(found.mean))
    other = comparison.Curve([0, 4], [0.0, 9.0], np.array([90.0, 99.0]), None)
    figure = comparison.curves({"ditto": found, "cobo": other}, "accuracy", "rounds", None)
    lines = [line for line in figure.axes[0].lines if not line.get_label().startswith("_")]
    assert [line.get_label() for line in lines] == ["ditto -", "cobo 99.0"]
    (alone,) = [line for line in figure.axes[0].lines if line.get_label().startswith("_")]
    assert (alone.get_xdata().tolist(), alone.get_ydata().tolist()) == ([3], [50])
    notes = words.notes(results_of(tmp_path), runs)
    assert "No accuracy that is a number at 2 of 5 evaluations of ditto seed 0. Curves have gaps there." in notes
    made(2, [None] * 5)
    assert comparison.points(read_runs(tmp_path)["ditto"], "accuracy") == {}
    comparison.draw(tmp_path, results_of(tmp_path))


@pytest.mark.parametrize(
    ("last", "rounds"), [(300, 3), (700, 12), (9_000, 50), (64_000, 60), (3_000_000, 50), (90_000_000, 400)]
)
def test_numbers_of_gradients_are_not_over_each_other(last, rounds):
    x = np.linspace(0, last, rounds)
    found = {
        name: comparison.Curve(list(range(rounds)), list(share * x), np.linspace(10, end, rounds), None)
        for name, share, end in (("local", 0.5, 60.0), ("cobo", 1.0, 95.0), ("oracle", 0.5, 96.0))
    }
    figure = comparison.curves(found, "accuracy", "gradients", None)
    assert len(figure.axes) == 2
    for ax in figure.axes:
        assert len(labels_apart(ax)) >= 2


def test_the_nearer_view_begins_where_the_first_line_comes_into_it_and_has_no_band_that_hides_others():
    rounds = list(range(101))
    up = np.linspace(0, 80, 101)
    found = {
        "local": comparison.Curve(rounds, [80.0 * k for k in rounds], up * 0.5, np.full(101, 0.5)),
        "cobo": comparison.Curve(rounds, [100.0 * k for k in rounds], up, np.full(101, 0.5)),
        "ifca": comparison.Curve(rounds, [90.0 * k for k in rounds], up * 0.95, np.full(101, 9.0)),
    }
    for against in ("rounds", "gradients"):
        whole, near = comparison.curves(found, "accuracy", against, None).axes
        low, _ = near.get_ylim()
        reached = [getattr(line, against)[int((line.mean < low).sum())] for line in (found["cobo"], found["ifca"])]
        assert near.get_xlim()[0] == min(reached)
        assert min(reached) > 0.8 * max(found["ifca"].rounds if against == "rounds" else found["ifca"].gradients)
        assert (len(whole.collections), len(near.collections)) == (3, 2)


def test_letters_that_the_font_does_not_have_are_no_warning(tmp_path):
    line = comparison.Curve([0, 1], [0.0, 9.0], np.array([90.0, 99.0]), None)
    figure = comparison.curves({"北京 🦊": line, "cobo": line}, "accuracy", "rounds", None)
    figures.save(figure, tmp_path, "accuracy", dpi=50)
    assert (tmp_path / "accuracy.png").exists()


def test_w_is_drawn_at_stages_of_training_by_group_with_the_oracle_last(tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr(figures, "save", lambda figure, folder, name: drawn.update({name: figure}))
    away = RIGHT.copy()
    away[1] = away[:, 1] = 0
    with_graph(tmp_path, 0, [(0, WRONG), (10, WRONG), (400, RIGHT), (1000, away)], present=["n", "e", "w"],
               changes=[{"round": 900, "left": ["s"]}])  # fmt: skip
    comparison.draw(tmp_path, results_of(tmp_path))
    cells = [ax for ax in drawn["weights"].axes if ax.images]
    assert [cell.get_title() for cell in cells] == ["round 0", "round 10", "round 400", "round 1,000", "oracle"]
    shown = [np.asarray(cell.images[0].get_array().filled(np.nan)) for cell in cells]
    truth = np.array([[np.nan, 1, 0, 0], [1, np.nan, 0, 0], [0, 0, np.nan, 1], [0, 0, 1, np.nan]])
    np.testing.assert_array_equal(shown[4], truth)  # n, e, s, w
    np.testing.assert_array_equal(shown[2], truth)
    truth[2] = truth[:, 2] = np.nan  # "s" has left
    np.testing.assert_array_equal(shown[3], truth)
    assert [cell.get_ylabel() for cell in cells] == ["cobo", "", "", "", ""]
    with_graph(tmp_path, 1, [(0, WRONG), (10, WRONG)])
    comparison.draw(tmp_path, results_of(tmp_path))
    assert drawn["weights"].axes[0].get_ylabel() == "cobo\nseed 0"  # of several, it says which


def test_w_on_a_simplex_is_as_dark_as_it_gets_with_the_weights_that_clients_have_for_themselves(tmp_path):
    W = np.full((4, 4), 0.05, dtype=np.float32) + 0.2 * np.eye(4, dtype=np.float32)
    with_graph(tmp_path, 0, [(0, W / 2), (10, W)])
    path = tmp_path / "cobo" / "seed-0" / "result.json"
    method = {"name": "cobo", "domain": "simplex", "self_weight": True}
    path.write_text(json.dumps({**json.loads(path.read_text()), "method": method}))
    recorded(
        tmp_path, "ifca", 0, {0: 50.0, 10: 50.0}, names=list("nsew"), true_groups=list("abab"), weights=RIGHT.tolist()
    )
    packed = pack_weights(list("nsew"), [(0, WRONG), (10, RIGHT)])
    (tmp_path / "ifca" / "seed-0" / "weights.safetensors").write_bytes(packed)
    figure = comparison.drawn(tmp_path, results_of(tmp_path))["weights"]
    images = [ax.images[0] for ax in figure.axes if ax.images]
    assert [image.get_clim()[1] for image in images] == pytest.approx([0.25] * 3 + [1.0] * 3)
    masked = [np.ma.getmaskarray(np.ma.masked_invalid(image.get_array())).diagonal().any() for image in images]
    assert masked == [False] * 3 + [True] * 3
    bars = [ax.get_ylim()[1] for ax in figure.axes if ax.get_ylabel() == "$w_{ij}$"]
    assert bars == pytest.approx([0.25, 1.0])


@pytest.mark.parametrize("case", ["no test data", "no groups", "roster", "one is left"])
def test_figures_of_unusual_runs(tmp_path, case):
    def client(name, mu):
        found = point_client(name, mu, group=None if case == "no groups" else int(mu[0]))
        return cobo.Client(name, train=found.train, group=found.group) if case == "no test data" else found

    clients = [client("a", [0.0]), client("b", [0.0]), client("c", [3.0])]
    changes = {
        "roster": [{"round": 2, "join": "b"}, {"round": 4, "leave": "c"}],
        "one is left": [{"round": 2, "leave": "b"}, {"round": 4, "leave": "c"}],
    }.get(case, [])
    for method in (cobo.CoBo(), cobo.Local()):
        out = tmp_path / method.name / "seed-0"
        cobo.fit(clients, model=lambda: Point([1.0]), objective=quadratic, method=method, rounds=6, lr=0.1, out=out,
                 roster=cobo.Roster(changes=changes))  # fmt: skip
    comparison.draw(tmp_path, results_of(tmp_path))
    names = {path.stem for path in (tmp_path / "figures").iterdir()}
    assert "weights" in names
    assert ("accuracy" in names) == (case != "no test data")


# The board


def test_the_board_is_live_on_a_terminal_and_plain_lines_elsewhere(compared, capsys):
    folder, _ = compared
    results = results_of(folder)
    for terminal in (True, False):
        console = Console(width=100, file=io.StringIO(), force_terminal=terminal)
        with Board(3, 10, lambda: table.terminal(results), console) as board:
            board.skip()
            line = board.begin("ditto seed 1")
            line({"event": "warning", "message": "mind [this]"})
            line({"event": "warning", "message": "mind [this]"})
            for t in range(1, 11):
                line({"event": "round", "round": t})
            line({"event": "evaluated", "round": 10, "accuracy": 66.6, "loss": 1.0})
            line.end()
        text = console.file.getvalue()
        err = capsys.readouterr().err
        if terminal:
            assert "all runs" in text
            assert "2/3" in text
            assert "oracle" in text  # the table is there while runs go on
            assert text.count("mind [this]") == 1
            assert "accuracy 66.6 %" in text
        else:
            assert err.splitlines() == ["ditto seed 1: mind [this]", "[2/3] ditto seed 1: accuracy 66.6 %"]
            assert text == ""


# A fair protocol


def test_every_method_starts_from_the_same_models_and_has_the_same_rounds(compared):
    folder, _ = compared
    firsts = [json.loads((folder / m / "seed-0" / "metrics.jsonl").read_text().splitlines()[0]) for m in METHODS]
    assert len({json.dumps(x["clients"]) for x in firsts}) == 1
    assert {last(folder, m, 0)["round"] for m in METHODS} == {12}


@pytest.mark.parametrize("key", ["rounds", "batch_size", "evaluate_every", "buffers"])
def test_what_all_methods_share_cannot_be_set_for_one(key):
    with pytest.raises(ConfigError, match=f"ditto.{key} is not allowed; {key} is the same for all methods"):
        tiny(f"ditto.{key}=3")
    assert tiny("ditto.lr=0.5", "ditto.momentum=0.1").training("ditto", 0)["lr"] == 0.5


def test_a_search_gives_nobody_a_head_start_and_can_be_lengthened():
    for method in METHODS:
        short, long = (search.points(tiny(), method, k) for k in (4, 9))
        assert long[:4] == short
        assert len(long) == 9
        assert all(0.003 <= p["lr"] <= 0.3 for p in long)
        assert len({p["lr"] for p in long}) == 9
        assert all(set(p) == {"lr", *METHODS[method].search} for p in long)
    # What was set for a method before, by hand or by looking at results, is not among the trials.
    assert search.points(tiny("cobo.rho=1.5", "cobo.lr=0.5"), "cobo", 9) == search.points(tiny(), "cobo", 9)
    assert all(1e-3 <= p["lam"] <= 10 for p in search.points(tiny(), "ditto", 9))
    assert {p["share"] for p in search.points(tiny(), "finetune", 40)} == {0.1, 0.25, 0.5, 0.75, 0.9}
    shares = np.array([p["lr"] for p in search.points(tiny(), "local", 100)])
    assert 40 <= (shares < 0.03).sum() <= 60  # even on a log scale


def test_an_experiment_may_have_ranges_of_its_own_for_the_search():
    experiment = load_experiment("cross-silo-small", EXPERIMENTS)
    found = search.points(experiment, "cobo", 30)
    assert all(set(p) == {"lr", "rho", "gamma"} and 0.003 <= p["lr"] <= 0.3 for p in found)  # all else is as usual
    assert {p["gamma"] for p in found} == {4.0}
    assert all(1 <= p["rho"] <= 100 for p in found)
    assert max(p["rho"] for p in found) > 30  # beyond the usual range
    assert {p["compare"] for p in search.points(experiment, "ifca", 30)} == {"batch"}
    usual = load_experiment("cross-silo-small", EXPERIMENTS, ["search={}"])
    assert {p["compare"] for p in search.points(usual, "ifca", 30)} == {"batch", "all"}
    assert search.points(experiment, "ditto", 9) == search.points(usual, "ditto", 9)
    again = tomllib.loads(tomli_w.dumps(experiment.plain()))
    assert again["search"]["cobo"] == {"gamma": [4.0], "rho": {"low": 1.0, "high": 100.0}}
    assert "search" not in tiny().plain()


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ({"magic": {"lr": [0.1, 1]}}, "'magic' is none"),
        ({"cobo": {"depth": [0.1, 1]}}, "cobo has no depth"),
        ({"cobo": {"rounds": [10, 20]}}, "cobo has no rounds"),
        ({"cobo": {"rho": {"low": 1, "high": 0.1}}}, "cobo.rho is not"),
        ({"cobo": {"rho": {"low": 0, "high": 1}}}, "cobo.rho is not"),
        ({"cobo": {"ask": {"low": 1, "high": 8}}}, "cobo.ask is not"),
    ],
)
def test_wrong_ranges_are_refused(ranges, words):
    with pytest.raises(ConfigError, match=words) as caught:
        tiny().replace(search=ranges)
    assert "\n" not in str(caught.value)


def test_a_setting_of_training_reaches_every_method_also_those_with_their_own():
    experiment = tiny("lr=0.01", "ditto.lr=0.02")
    assert {m: experiment.training(m, 0)["lr"] for m in METHODS} == {**dict.fromkeys(METHODS, 0.01), "ditto": 0.02}
    assert experiment.method("finetune").share == 0.5  # what is the method's own stays


def test_settings_that_are_searched_exist():
    for kind in METHODS.values():
        for name, bounds in kind.search.items():
            for value in bounds:
                assert getattr(kind(**{name: value}), name) == value


def test_held_out_samples_come_from_training_and_never_overlap():
    client = blobs("a", seed=0, samples=20)
    held = client.hold_out(0.25, seed=3)
    assert (len(held.train), len(held.test)) == (15, 5)
    rows = [tuple(x.tolist()) for part in (held.train, held.test) for x in part.fields[0]]
    assert sorted(rows) == sorted(tuple(x.tolist()) for x in client.train.fields[0])
    assert torch.equal(held.test.fields[0], client.hold_out(0.25, seed=3).test.fields[0])
    assert not torch.equal(held.test.fields[0], client.hold_out(0.25, seed=4).test.fields[0])
    with pytest.raises(DataError, match="'b' has 1 sample"):
        cobo.Client("b", train=(torch.zeros(1, 2), torch.zeros(1))).hold_out(0.2, 0)
    pairs = torch.utils.data.ConcatDataset([torch.utils.data.TensorDataset(*client.train.fields)])
    assert len(cobo.Client("c", train=pairs).hold_out(0.25, 3).train) == 15


def test_nobody_trains_on_validation_samples():
    def images(samples):
        return {tuple(row.tolist()) for row in samples.fields[0].reshape(len(samples), -1)}

    clients = load_experiment("digits", EXPERIMENTS).build(1000, validation=0.2).clients
    judged = images(clients[0].test)
    assert len(judged) == 240
    assert all(len(client.train) == 150 for client in clients)  # as many as in the experiment itself
    assert all(not judged & images(client.train) for client in clients)
    tests = images(load_experiment("digits", EXPERIMENTS).build(1000).clients[0].test)
    assert not judged & tests
    assert judged != images(load_experiment("digits", EXPERIMENTS).build(1001, validation=0.2).clients[0].test)
    everything = load_experiment("digits", EXPERIMENTS, ["samples=600"]).build(0, validation=0.2).clients
    assert {len(client.train) for client in everything} == {480}


@pytest.mark.slow
def test_a_search_never_looks_at_test_samples(tmp_path, monkeypatch):
    folders = []
    real = permuted.digits

    def other_tests():
        train, test = real()
        return train, type(test)(torch.zeros_like(test.inputs), torch.zeros_like(test.targets))

    for k, source in enumerate((real, other_tests)):
        monkeypatch.setattr(permuted, "digits", source)
        folders.append(tmp_path / str(k))
        search.tune(tiny(), ["local", "ditto"], 2, 2, folders[-1], Silent())
    for method in ("local", "ditto"):
        one, two = ((f / method / "trials.jsonl").read_text() for f in folders)
        assert one == two


@pytest.mark.slow
def test_the_best_trial_by_mean_over_seeds_is_written_and_used(tmp_path):
    folder = tmp_path / "search"
    found = search.tune(tiny(), ["ditto", "local"], 4, 2, folder, Silent())
    lines = [json.loads(x) for x in (folder / "ditto" / "trials.jsonl").read_text().splitlines()]
    assert {(x["trial"], x["seed"]) for x in lines} == {(k, s) for k in range(4) for s in (1000, 1001)}
    means = [fmean(x["score"] for x in lines if x["trial"] == k) for k in range(4)]
    assert found["ditto"].number == int(np.argmax(means))
    assert found["ditto"].score == pytest.approx(max(means))
    assert not list(folder.rglob("checkpoint"))  # trials leave a line each
    tuned = tomllib.loads((folder / "tuned.toml").read_text())
    assert tuned["methods"]["ditto"] == found["ditto"].point
    experiment = tiny(tuned=str(folder / "tuned.toml"))
    assert experiment.training("ditto", 0)["lr"] == found["ditto"].point["lr"]
    assert experiment.method("ditto").lam == found["ditto"].point["lam"]
    assert tiny("ditto.lam=0.5", tuned=str(folder / "tuned.toml")).method("ditto").lam == 0.5
    # A method that was not tuned cannot slip in with other settings.
    code, _, err = run("compare", "digits", "--tuned", str(folder / "tuned.toml"), "--methods", "ditto,fedavg")
    assert code == 2
    assert "has nothing for fedavg" in err
    # Going on does only what is new; more trials are the same and further ones.
    watch = Silent()
    search.tune(tiny(), ["ditto", "local"], 5, 2, folder, watch)
    assert (watch.skipped, len(watch.begun)) == (16, 4)


def test_a_trial_that_cannot_run_counts_and_is_never_the_best(tmp_path, monkeypatch):
    point = {"lr": 0.03, "rho": 1000.0, "gamma": 0.1}  # outside the stable range
    monkeypatch.setattr(search, "points", lambda *_: [point, {**point, "rho": 1.0}, point])
    found = search.tune(tiny(), ["cobo"], 3, 1, tmp_path, Silent())
    lines = [json.loads(x) for x in (tmp_path / "cobo" / "trials.jsonl").read_text().splitlines()]
    assert [x["score"] is None for x in lines] == [True, False, True]
    assert "needs rho <" in lines[0]["note"]
    assert found["cobo"].number == 1
    assert "2 could not be run to their end" in (tmp_path / "tuned.toml").read_text()
    monkeypatch.setattr(search, "points", lambda *_: [point])
    with pytest.raises(RunError, match="no trial of cobo could be run to its end; the first: rho = 1000"):
        search.tune(tiny(), ["cobo"], 1, 1, tmp_path / "all", Silent())
    assert not (tmp_path / "all" / "tuned.toml").exists()


def test_the_best_score_may_be_zero():
    trials = [{"trial": k, "seed": 1000, "point": {"lr": k}, "score": s, "note": ""} for k, s in enumerate([-3.0, 0.0])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "_scores", lambda *_: {(t["trial"], 1000): t for t in trials})
        assert search.best(Path(), 2, 1)["local"].number == 1


def test_the_edge_of_a_range_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(search, "points", lambda *_: [{"lr": 0.29, "lam": 0.3}])
    search.tune(tiny(), ["ditto"], 1, 1, tmp_path, Silent())
    assert "at the edge of the range: lr\n" in (tmp_path / "tuned.toml").read_text()


def test_only_methods_with_all_trials_are_in_the_file(tmp_path):
    search.tune(tiny(), ["ditto", "local"], 1, 1, tmp_path, Silent())
    search.tune(tiny(), ["local"], 2, 1, tmp_path, Silent())
    assert list(tomllib.loads((tmp_path / "tuned.toml").read_text())["methods"]) == ["local"]


def test_trials_of_other_ranges_are_refused(tmp_path):
    search.tune(tiny(), ["ditto"], 2, 1, tmp_path, Silent())
    path = tmp_path / "ditto" / "trials.jsonl"
    lines = [json.loads(x) for x in path.read_text().splitlines()]
    lines[1]["point"]["lam"] = 0.77
    path.write_text("".join(json.dumps(x) + "\n" for x in lines))
    with pytest.raises(CheckpointError, match=r"trial 2 of ditto was run with .*0\.77"):
        search.tune(tiny(), ["ditto"], 2, 1, tmp_path, Silent())


@pytest.mark.parametrize("cut", [1, 20])
def test_a_torn_line_is_made_again(tmp_path, cut):
    search.tune(tiny(), ["ditto"], 2, 1, tmp_path, Silent())
    path = tmp_path / "ditto" / "trials.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    watch = Silent()
    search.tune(tiny(), ["ditto"], 2, 1, tmp_path, watch)
    assert path.read_bytes() == whole
    assert (watch.skipped, len(watch.begun)) == (1, 1)


@pytest.mark.slow
def test_two_processes_do_not_write_into_one_run(tmp_path):
    with only_one(tmp_path), pytest.raises(CheckpointError, match="another process is at work"), only_one(tmp_path):
        pass
    with only_one(tmp_path):  # free again
        pass
    events = []

    def second(event):
        if event["event"] == "started" and not events:
            events.append(
                run("run", "digits", "--rounds", "6", "--method", "local", "--out", str(tmp_path), "--resume")
            )

    experiment = load_experiment("digits", EXPERIMENTS, ["rounds=6"])
    run_one(experiment, "local", 0, tmp_path, resume=False, listeners=[second], progress=False)
    code, _, err = events[0]
    assert code == 2
    assert "another process is at work" in err


def test_ctrl_c_in_the_last_round_of_a_run_ends_the_comparison(tmp_path):
    watch = Silent()

    class Stop(Silent):
        def __call__(self, event):
            if event["event"] == "round" and event["round"] == 12:
                os.kill(os.getpid(), signal.SIGINT)

    stop = Stop()
    with pytest.raises(Interrupted, match="after round 12 of 12"):
        compare(tiny(), ["local", "ditto"], [0], tmp_path, resume=False, watch=stop)
    assert stop.begun == ["local seed 0"]
    compare(tiny(), ["local", "ditto"], [0], tmp_path, resume=True, watch=watch)
    assert list(results_of(tmp_path)["methods"]) == ["local", "ditto"]


def test_what_a_stop_leaves_of_a_report_says_what_the_tables_say(tmp_path, capsys):
    made_up(tmp_path, "local", 0, [50.0, 60.0])
    show_runs(tmp_path, None, draw=False)
    assert not (tmp_path / "report.html").exists()  # somebody who stops it does not want to wait
    (tmp_path / "report.html").write_text("of an earlier day")
    made_up(tmp_path, "ditto", 0, [55.0, 65.0])
    show_runs(tmp_path, None, draw=False)
    assert "ditto" in (tmp_path / "report.html").read_text()
    assert "ditto" in (tmp_path / "table.md").read_text()
    assert not (tmp_path / "figures").exists()
    assert "report.html to see it" in capsys.readouterr().out


def test_the_papers_own_values():
    experiment = tiny(tuned="paper")
    rates = {m: experiment.training(m, 0)["lr"] for m in METHODS}
    assert rates == {"ditto": 0.1, "fc": 0.05, **dict.fromkeys(METHODS.keys() - {"ditto", "fc"}, 0.01)}
    assert experiment.method("ditto").lam == 1.0
    assert experiment.method("cobo") == cobo.CoBo.paper(sampling="mixed")
    assert {experiment.training(m, 0)["momentum"] for m in METHODS} == {0.0}
    for name, share in (("cross-device", 0.1), ("cross-device-small", 0.1), ("cross-silo", 1.0)):
        assert load_experiment(name, EXPERIMENTS, tuned="paper").method("ifca").participation == share
    for name in ("cross-silo", "cross-device"):  # presets that are the paper's
        tuned = load_experiment(name, EXPERIMENTS, tuned="paper")
        assert tuned.method("cobo") == load_experiment(name, EXPERIMENTS).method("cobo")
    for name in ("language", "quadratic"):
        with pytest.raises(ConfigError, match=f"--tuned 'paper' is for cross-silo, .*; '{name}' has"):
            load_experiment(name, EXPERIMENTS, tuned="paper")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_preset_paper_is_algorithm_1_whatever_the_experiment_sets(name):
    usual = load_experiment(name, EXPERIMENTS)
    literal = load_experiment(name, EXPERIMENTS, ["cobo.rho=0.2", "cobo.preset=paper", "cobo.switch=0.3"])
    assert literal.method("cobo") == cobo.CoBo.paper(rho=0.2, switch=0.3)
    assert literal.training("cobo", 0) == usual.training("cobo", 0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "is not there; it should be a file that `cobo tune` wrote, or paper"),
        ("lr = 3", "no .methods.NAME. tables"),
        ("methods = 3", "no .methods.NAME. tables"),
        ("[methods.ditto\n", "not valid TOML"),
        ('experiment = "quadratic"\n[methods.ditto]\nlr = 1.0', "tuned for 'quadratic', not for 'digits'"),
        ("[methods.ditto]\nrounds = 3", "rounds is the same for all methods"),
        ("[methods.ditto]\nlamb = 3", "no setting 'lamb'"),
        ("[methods.magic]\nlr = 3", "'magic' is not known"),
    ],
)
def test_a_bad_tuned_file_gets_one_clear_line(tmp_path, text, words):
    path = tmp_path / "tuned.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        tiny(tuned=str(path))
    assert "\n" not in str(caught.value)


def test_the_best_of_a_short_search_are_tried_again_in_full(tmp_path):
    short, full = tmp_path / "short", tmp_path / "full"
    search.tune(tiny(), ["ditto", "local"], 4, 2, short, Silent())
    found = search.tune(tiny("rounds=16"), ["ditto"], 2, 1, full, Silent(), short)
    ranked = sorted(search.finished(short, "ditto", 4, 2), key=lambda trial: -trial.score)
    assert [trial.point for trial in search.finished(full, "ditto", 2, 1)] == [trial.point for trial in ranked[:2]]
    assert found["ditto"].score == max(trial.score for trial in search.finished(full, "ditto", 2, 1))
    assert "the best of an earlier search" in (full / "tuned.toml").read_text()
    with pytest.raises(ConfigError, match="has 4 finished trials of ditto, not 5"):
        search.tune(tiny(), ["ditto", "local"], 5, 1, tmp_path / "more", Silent(), short)
    with pytest.raises(ConfigError, match="has 0 finished trials of cobo"):
        search.tune(tiny(), ["cobo"], 1, 1, tmp_path / "more", Silent(), short)
    other = load_experiment("quadratic", EXPERIMENTS)
    with pytest.raises(ConfigError, match="is a search for digits, not for quadratic"):
        search.tune(other, ["ditto"], 2, 1, tmp_path / "more", Silent(), short)
    with pytest.raises(ConfigError, match="holds no search"):
        search.tune(tiny(), ["ditto"], 2, 1, tmp_path / "more", Silent(), tmp_path)
    assert not (tmp_path / "more").exists()


@pytest.mark.slow
def test_tune_and_compare_from_the_command_line(tmp_path):
    small = ["--rounds", "8", "--set", "samples=20", "--methods", "ditto,local"]
    code, out, err = run("tune", "digits", *small, "--trials", "2", "--seeds", "1", "--out", str(tmp_path / "t"))
    assert code == 0, err
    assert f"--tuned {tmp_path / 't' / 'tuned.toml'}" in out
    assert len(err.splitlines()) == 4
    code, _, err = run("tune", "digits", *small, "--trials", "2", "--seeds", "1", "--out", str(tmp_path / "t"))
    assert code == 2
    assert "--resume" in err
    tuned = tmp_path / "t" / "tuned.toml"
    code, out, err = run("compare", "digits", *small, "--tuned", str(tuned), "--out", str(tmp_path / "c"))
    assert code == 0, err
    stored = tomllib.loads((tmp_path / "c" / "experiment.toml").read_text())
    assert stored["methods"]["ditto"] == tomllib.loads(tuned.read_text())["methods"]["ditto"]
    assert max(len(line) for line in out.splitlines() if "written to" not in line) <= 80


def test_two_commands_that_start_at_once_do_not_mix_settings(tmp_path):
    """Both look into the empty folder before either writes; the second finds the first's settings when it starts."""
    first, same, other = Claim(tmp_path, tiny()), Claim(tmp_path, tiny()), Claim(tmp_path, tiny("samples=31"))
    first({"event": "started"})
    kept = (tmp_path / "experiment.toml").read_bytes()
    same({"event": "started"})
    with pytest.raises(CheckpointError, match="holds runs with samples = 30, not 31"):
        other({"event": "started"})
    assert [path.name for path in tmp_path.iterdir()] == ["experiment.toml"]
    assert (tmp_path / "experiment.toml").read_bytes() == kept


def test_results_say_what_runs_were_made_with(tmp_path):
    compare(tiny(), ["local", "oracle"], [0], tmp_path, resume=False, watch=Silent())
    made = summary.summarise(tmp_path, "digits", None)["environment"]
    assert made["threads"] == tiny().threads
    assert made["torch"] == torch.__version__
    path = tmp_path / "oracle" / "seed-0" / "result.json"
    facts = json.loads(path.read_text())
    facts["environment"]["commit"] = "another"
    path.write_text(json.dumps(facts))
    assert summary.summarise(tmp_path, "digits", None)["environment"] == {**made, "commit": [made["commit"], "another"]}


# Killed and gone on with


def plain_results(folder: Path) -> dict:
    """results.json without the wall clock, which no two runs share."""
    results = json.loads((folder / "results.json").read_text())
    for m in results["methods"].values():
        assert m.pop("seconds") > 0
    return results


@pytest.mark.slow
def test_compare_killed_at_ten_random_moments_ends_with_the_same_results(tmp_path):
    moments = random.Random(1)
    settings = ("compare", "digits", "--rounds", "60", "--seeds", "3", "--set", "evaluate_every=7")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert run(*settings, "--out", str(whole))[0] == 0
    arguments = (*settings, "--out", str(killed), "--resume")
    reached = []
    for _ in range(10):
        process = start(*arguments)
        before = len(list(killed.glob("*/seed-*/metrics.jsonl")))
        begun = time.monotonic()
        while len(list(killed.glob("*/seed-*/metrics.jsonl"))) <= before and process.poll() is None:
            assert time.monotonic() - begun < 120
            time.sleep(0.02)
        time.sleep(moments.uniform(0, 0.3))
        process.kill()
        process.communicate()
        reached.append(len(list(killed.glob("*/seed-*/result.json"))))
    assert reached[0] < 4
    assert len(set(reached)) > 4  # it was cut off in different runs
    assert reached[-1] < 24  # and never came to its end by itself
    code, _, err = run(*arguments)
    assert code == 0, err
    assert plain_results(killed) == plain_results(whole)
    for name in ("table.csv", "table.md", "table.tex"):
        assert (killed / name).exists()


@pytest.mark.slow
def test_a_search_killed_on_its_way_ends_with_the_same_trials(tmp_path):
    moments = random.Random(2)
    settings = ("tune", "digits", "--rounds", "60", "--trials", "3", "--seeds", "2", "--methods", "ditto,ifca")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert run(*settings, "--out", str(whole))[0] == 0
    arguments = (*settings, "--out", str(killed), "--resume")
    for _ in range(3):
        process = start(*arguments)
        before = sum(len(p.read_text().splitlines()) for p in killed.glob("*/trials.jsonl"))
        begun = time.monotonic()
        while sum(len(p.read_text().splitlines()) for p in killed.glob("*/trials.jsonl")) <= before:
            assert time.monotonic() - begun < 120
            time.sleep(0.02)
        time.sleep(moments.uniform(0, 0.5))
        process.kill()
        process.communicate()
    code, _, err = run(*arguments)
    assert code == 0, err
    for path in ("tuned.toml", "ditto/trials.jsonl", "ifca/trials.jsonl"):
        assert (killed / path).read_text() == (whole / path).read_text()
