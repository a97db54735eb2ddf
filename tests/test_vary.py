"""An ablation: every value its runs, nothing run twice, one table and one figure."""

import csv
import io
import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
from conftest import labels_apart
from rich.console import Console
from test_cli import run, start
from test_compare import Silent, tiny

from cobo.errors import CheckpointError, ConfigError
from cobo.experiments import EXPERIMENTS
from cobo.experiments.runner import compare
from cobo.experiments.vary import Variation, load_values, split, stored
from cobo.report import figures, summary
from cobo.report import vary as report

SMALL = ["rounds=12", "evaluate_every=4", "samples=30"]


def variation(folder, setting, methods, *changes):
    key, values = load_values("digits", EXPERIMENTS, setting, folder, [*SMALL, *changes])
    return Variation(key, values, methods)


@pytest.fixture(scope="module")
def varied(tmp_path_factory):
    """A setting of CoBo's, two seeds."""
    folder = tmp_path_factory.mktemp("varied")
    watch = Silent()
    made = variation(folder, "cobo.sampling=constant,every,time", ["cobo", "local", "oracle"])
    made.run([0, 1], resume=False, watch=watch)
    return folder, made, watch


def numbers(results: dict) -> dict:
    return {name: {k: v for k, v in m.items() if k != "seconds"} for name, m in results["methods"].items()}


def test_methods_without_the_setting_are_run_once(varied):
    folder, made, watch = varied
    assert made.shared == ["local", "oracle"]
    per_seed = ["sampling=constant cobo", "local", "oracle", "sampling=every cobo", "sampling=time cobo"]
    assert watch.begun == [f"{label} seed {s}" for s in (0, 1) for label in per_seed]
    assert {p.name for p in folder.iterdir()} == {f"cobo.sampling={v}" for v in ("constant", "every", "time")}
    for method in ("local", "oracle"):
        assert [path.parent.name for path in folder.glob(f"*/{method}")] == ["cobo.sampling=constant"]


def test_a_folder_can_be_summarised_again_from_its_runs(varied, tmp_path):
    folder, made, _ = varied
    copied = Path(shutil.copytree(folder, tmp_path / "copied"))
    assert stored(copied, EXPERIMENTS) is None
    expected = report.summarise(made)
    report.write(copied, expected)
    again = stored(copied, EXPERIMENTS)
    assert report.summarise(again) == expected
    (copied / "table.md").unlink()
    code, out, err = run("report", str(copied))
    assert code == 0, err
    assert "cobo.sampling, 12 rounds, 2 seeds" in out
    assert (copied / "table.md").is_file()
    assert (copied / "figures" / "vary.png").is_file()


def test_each_value_has_the_results_of_a_comparison_with_it(varied, tmp_path):
    _, made, _ = varied
    results = report.summarise(made)
    assert [at["value"] for at in results["values"]] == ["constant", "every", "time"]
    assert (results["experiment"], results["varied"], results["shared"]) == (
        "digits", "cobo.sampling", ["local", "oracle"]
    )  # fmt: skip
    compare(tiny("cobo.sampling=every"), ["local", "cobo", "oracle"], [0, 1], tmp_path, resume=False, watch=Silent())
    expected = summary.summarise(tmp_path, "digits", tiny().target_accuracy)
    assert numbers(results["values"][1]) == numbers(expected)
    assert results["values"][1]["methods"]["cobo"]["recovery"] is not None
    gradients = [at["methods"]["cobo"]["gradients"] for at in results["values"]]
    assert len(set(gradients)) == 3


def test_a_folder_of_one_value_is_like_that_of_a_comparison(varied):
    folder, made, _ = varied
    at = folder / "cobo.sampling=every"
    stored = summary.read_runs(at)["cobo"][0]["method"]["sampling"]
    assert stored == "every"
    watch = Silent()
    compare(made.values[1].experiment, ["cobo"], [0, 1], at, resume=True, watch=watch)
    assert (watch.skipped, watch.begun) == (2, [])


def test_going_on_runs_only_what_is_new(varied):
    folder, _, _ = varied
    watch = Silent()
    more = variation(folder, "cobo.sampling=constant,every,time", ["cobo", "local", "oracle"])
    more.run([0, 1], resume=True, watch=watch)
    assert (watch.skipped, watch.begun) == (10, [])
    with pytest.raises(CheckpointError, match="already holds a run"):
        more.run([0, 1], resume=False, watch=watch)
    other = variation(folder, "cobo.sampling=constant,every,time", ["cobo"], "batch_size=8")
    with pytest.raises(CheckpointError, match="holds runs with batch_size = 32, not 8"):
        other.run([0], resume=True, watch=watch)
    assert watch.begun == []


def test_a_setting_of_all_is_run_for_all(tmp_path):
    watch = Silent()
    made = variation(tmp_path, "groups=2,3", ["local", "cobo"])
    made.run([0], resume=False, watch=watch)
    assert made.shared == []
    assert watch.begun == [f"groups={g} {m} seed 0" for g in (2, 3) for m in ("local", "cobo")]
    clients = [len(summary.read_runs(v.folder)["cobo"][0]["names"]) for v in made.values]
    assert clients == [4, 6]
    # The learning rate of the experiment replaces that of every method.
    assert variation(tmp_path, "lr=0.1,0.2", ["local", "cobo"]).shared == []


def test_nothing_runs_if_one_value_cannot(tmp_path):
    watch = Silent()
    made = variation(tmp_path / "new", "cobo.rho=0.1,1000", ["local", "cobo"], "cobo.mixing=explicit")
    with pytest.raises(ConfigError, match="needs rho <"):
        made.run([0], resume=False, watch=watch)
    assert watch.begun == []
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ("cobo.rho = 1, 2.5", ["1", "2.5"]),
        ("hidden=[64],[64, 32]", ["[64]", "[64, 32]"]),
        ('clocks={times="straggler", factor=2},{times="log-normal"}', ['{times="straggler", factor=2}',
                                                                         '{times="log-normal"}']),
        ("without=['a,b'],['c']", ["['a,b']", "['c']"]),
        ('device="a,b",c', ['"a,b"', "c"]),
    ],
)  # fmt: skip
def test_values_are_split_at_commas_outside_brackets_and_quotes(setting, values):
    assert split(setting)[1] == values


def test_lists_are_values(tmp_path):
    made = variation(tmp_path, "hidden=[8],[8, 4]", ["local"])
    assert [value.experiment.hidden for value in made.values] == [(8,), (8, 4)]
    assert [value.folder.name for value in made.values] == ["hidden=_8_", "hidden=_8,_4_"]


def test_the_table_of_a_variation_in_every_form(varied, tmp_path):
    _, made, _ = varied
    results = report.summarise(made)
    report.write(tmp_path, results)
    assert json.loads((tmp_path / "results.json").read_text()) == results
    lines = (tmp_path / "table.md").read_text().splitlines()
    assert lines[0] == "digits: cobo.sampling, 12 rounds, 2 seeds"
    assert sum(line.startswith("|") for line in lines) == 11
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1
    assert "Run once, as cobo.sampling is no setting of theirs: local, oracle." in lines[-1]
    rows = list(csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text())))
    assert [(row["cobo.sampling"], row["method"]) for row in rows[:4]] == [
        ("constant", "local"), ("constant", "cobo"), ("constant", "oracle"), ("every", "local")
    ]  # fmt: skip
    found = results["values"][1]["methods"]["cobo"]["accuracy"]["mean"]
    assert float(rows[4]["accuracy_mean"]) == found
    tex = (tmp_path / "table.tex").read_text()
    assert tex.count(r" \\") == 10
    console = Console(width=80, file=io.StringIO())
    console.print(report.terminal(results))
    text = console.file.getvalue()
    assert "…" not in text
    assert text.count("constant") == 1


def test_every_value_has_a_page_with_the_runs_that_all_share(varied):
    _, made, _ = varied
    report.write_pages(made)
    for value in made.values:
        text = (value.folder / "report.html").read_text()
        data = json.loads(re.search(r'id="data">(.*?)</script>', text)[1])
        assert data["title"] == f"digits, cobo.sampling = {value.text}"
        assert [row["cells"][0] for row in data["table"]["rows"]] == ["local", "cobo", "oracle"]
        assert {run["method"] for run in data["runs"] if run["alone"]} == {"cobo", "oracle"}


def test_the_figure_has_dots_for_words_lines_for_numbers_and_levels_for_what_is_shared(varied, tmp_path):
    _, made, _ = varied
    results = report.summarise(made)
    report.draw(tmp_path, results)
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {"vary.png", "vary.svg"}
    words = report.figure(results, "accuracy")
    ax, legend = words.axes[0], words.legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["local", "cobo", "oracle"]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["constant", "every", "time"]
    (dots,) = [line for line in ax.lines if line.get_marker() == "o"]
    assert dots.get_linestyle() == "None"
    assert list(dots.get_ydata()) == [at["methods"]["cobo"]["accuracy"]["mean"] for at in results["values"]]
    assert dots.get_color() == figures.METHOD_COLOURS["cobo"]
    for panel, measure in zip(words.axes[1:], ("weights_error", "gradients"), strict=True):
        (dots,) = [line for line in panel.lines if line.get_marker() == "o"]
        assert list(dots.get_ydata()) == [at["methods"]["cobo"][measure] for at in results["values"]]
    for value, at in zip((0.01, 0.1, 1.0), results["values"], strict=True):
        at["value"] = value
    ax = report.figure(results, "accuracy").axes[0]
    (line,) = [line for line in ax.lines if line.get_marker() == "o"]
    assert line.get_linestyle() == "-"
    assert list(line.get_xdata()) == [0.01, 0.1, 1.0]
    assert ax.get_xscale() == "log"


@pytest.mark.parametrize(
    ("texts", "scale"),
    [
        ("0.1 0.2 0.3", "linear"),
        ("0.01 0.1 1", "log"),
        ("0 0.001 0.01 0.1 1", "linear"),
        ("0.01 0.02 0.03 0.1 1", "linear"),
        ("1 0.1 0.02 0.03", "linear"),
        ("0 0.0001 0.0003 0.001 0.003 0.01 0.03 0.1 0.3 1", "linear"),
        ("constant every time mixed constant-2", "linear"),
    ],
)
def test_values_are_not_over_each_other_on_the_axis(varied, texts, scale):
    results = report.summarise(varied[1])
    at = results["values"][0]
    results["values"] = [
        {**at, "text": text, "value": text if text[0].isalpha() else float(text)} for text in texts.split()
    ]
    for ax in report.figure(results, "accuracy").axes:
        assert ax.get_xscale() == scale
        assert sorted(labels_apart(ax)) == sorted(texts.split())
    (line,) = [line for line in ax.lines if line.get_marker() == "o"]
    from_left = [text for _, text in sorted(zip(line.get_xdata(), texts.split(), strict=True))]
    assert from_left == (texts.split() if texts[0].isalpha() else sorted(texts.split(), key=float))


COMMAND = ("vary", "digits", "cobo.gamma=0.01,0.1", "--methods", "cobo,local", "--rounds", "200", "--set",
           "evaluate_every=20", "--jobs", "2")  # fmt: skip


@pytest.mark.slow
def test_a_variation_from_the_command_line_stopped_and_gone_on_with(tmp_path):
    folder = tmp_path / "v"
    process = start(*COMMAND, "--out", str(folder), start_new_session=True)
    deadline = time.monotonic() + 300
    while not list(folder.glob("*/cobo/seed-0/checkpoint/round-*")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.splitlines()[-1].startswith("cobo: stopped by the user; go on with the same command and --resume")
    code, out, err = run(*COMMAND, "--out", str(folder), "--resume")
    assert code == 0, err
    assert out.splitlines()[-1] == f"written to {folder}; each value has its report.html"
    assert max(len(line) for line in out.splitlines()[:-1]) <= 80
    values = json.loads((folder / "results.json").read_text())["values"]
    assert [list(at["methods"]) for at in values] == [["local", "cobo"]] * 2
    assert values[0]["methods"]["local"] == values[1]["methods"]["local"]
    assert (folder / "figures" / "vary.svg").exists()
    code, out, err = run("report", str(folder / "cobo.gamma=0.1"))
    assert code == 0, err
    assert "cobo" in out


@pytest.mark.slow
def test_a_value_that_diverges_is_named_and_the_others_are_in_the_table(tmp_path):
    code, out, err = run("vary", "digits", "local.lr=0.1,1e30", "--methods", "local", "--rounds", "10", "--out",
                         str(tmp_path))  # fmt: skip
    assert code == 1
    assert "lr=1e30 local seed 0 failed: round" in err.splitlines()[-1]
    assert "Begun but not finished: 1e30 local seed-0." in out
    assert re.search(r"^1e30( +-){8}$", out, re.MULTILINE)
    good, bad = json.loads((tmp_path / "results.json").read_text())["values"]
    assert list(good["methods"]) == ["local"]
    assert (bad["text"], bad["methods"], bad["unfinished"]) == ("1e30", {}, ["local seed-0"])
    assert "| 1e30 | - | - |" in (tmp_path / "table.md").read_text()
    assert (tmp_path / "table.csv").read_text().splitlines()[-1].startswith("1e30,,,")
    assert "1e30 & - & -" in (tmp_path / "table.tex").read_text()
    assert "1e30" in (tmp_path / "figures" / "vary.svg").read_text()
