"""The command line: what it prints, what it leaves behind, how it ends."""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from safetensors.torch import load_file

from cobo.cli import main

ROOT = Path(__file__).parent.parent


def start(*arguments: str, **options) -> subprocess.Popen:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "80"}
    command = [sys.executable, "-m", "cobo", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, **options
    )


def run(*arguments: str, **options) -> tuple[int, str, str]:
    process = start(*arguments, **options)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def test_the_version_is_the_packages(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["cobo", "--version"])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert capsys.readouterr().out == f"cobo {project['version']}\n"


@pytest.mark.slow
def test_run_leaves_what_the_contract_says(tmp_path):
    code, _, err = run("run", "digits", "--rounds", "20", "--seed", "3", "--out", str(tmp_path))
    assert code == 0, err
    assert "round 20/20" in err
    folder = tmp_path / "cobo" / "seed-3"
    lines = [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()]
    assert {"round", "seconds", "gradients", "accuracy", "loss", "clients"} <= set(lines[-1])
    weights = load_file(folder / "weights.safetensors")
    assert weights["weights"].shape == (len(weights["rounds"]), 8, 8)
    assert len(list((folder / "models").iterdir())) == 8
    assert any((folder / "checkpoint").iterdir())
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["experiment"] == "digits"
    assert results["seeds"] == [3]
    assert results["rounds"] == 20
    assert set(results["methods"]) == {"cobo"}
    assert {
        "accuracy", "loss", "improved", "gradients", "seconds", "rounds_to_target", "weights_error", "groups_score"
    } <= set(results["methods"]["cobo"])  # fmt: skip
    assert results["methods"]["cobo"]["improved"] is None
    names = {f"{name}.{kind}" for name in ("accuracy", "gradients", "weights") for kind in ("png", "svg")}
    assert {path.name for path in (tmp_path / "figures").iterdir()} == names
    assert "CoBo found" in (tmp_path / "report.html").read_text()
    # experiment.toml is enough to run it again.
    again = tmp_path / "again"
    code, _, err = run("run", str(tmp_path / "experiment.toml"), "--seed", "3", "--out", str(again))
    assert code == 0, err
    one, two = (load_file(f / "cobo" / "seed-3" / "models" / "group0-client0.safetensors") for f in (tmp_path, again))
    assert all((one[k] == two[k]).all() for k in one)


@pytest.mark.slow
def test_compare_fills_the_table_and_report_rebuilds_it(tmp_path):
    code, out, err = run("compare", "digits", "--seeds", "2", "--rounds", "10", "--out", str(tmp_path))
    assert code == 0, err
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["seeds"] == [0, 1]
    assert results["methods"]["oracle"]["groups_score"] == 1
    assert results["methods"]["oracle"]["weights_error"] == 0
    assert results["methods"]["local"]["weights_error"] is None
    assert results["methods"]["cobo"]["accuracy"]["std"] >= 0
    assert max(len(line) for line in out.splitlines() if "written to" not in line) <= 80
    (tmp_path / "results.json").unlink()
    code, _, err = run("report", str(tmp_path))
    assert code == 0, err
    assert json.loads((tmp_path / "results.json").read_text()) == results


@pytest.mark.slow
def test_what_runs_of_a_comparison_warn_of_is_said_once(tmp_path):
    settings = ("--set", "samples=40", "--set", "cobo.gamma=0.3")
    code, _, err = run("compare", "digits", "--methods", "cobo", "--rounds", "20", "--out", str(tmp_path), *settings)
    assert code == 0, err
    assert err.count("W is undecided") == 1


@pytest.mark.slow
def test_settings_reach_experiment_and_method(tmp_path):
    changes = ["--set", "samples=40", "--set", "cobo.rho=0.25", "--set", "cobo.lr=0.01", "--set", "optimizer=adamw"]
    code, _, err = run("run", "digits", "--rounds", "2", "--out", str(tmp_path), *changes)
    assert code == 0, err
    stored = tomllib.loads((tmp_path / "experiment.toml").read_text())
    assert (stored["samples"], stored["methods"]["cobo"]["rho"], stored["optimizer"]) == (40, 0.25, "adamw")
    result = json.loads((tmp_path / "cobo" / "seed-0" / "result.json").read_text())
    assert result["method"]["rho"] == 0.25
    assert result["training"]["lr"] == 0.01


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "nothing"], "experiment 'nothing' is not known"),
        (["run", "nothing.toml"], "experiment 'nothing.toml' is no file that is there"),
        (["run", "digits", "--set", "roster={changes = [{"], "is not valid TOML"),
        (["run", "digits", "--set", "clock.times=straggler"], "'clock' has no settings of its own"),
        (["run", "digits", "--set", "clocks.times=sundial"], "times = 'sundial' is not allowed"),
        (["run", "digits", "--set", "clocks=5", "--set", "clocks.times=straggler"], "clocks = 5 is not allowed"),
        (["tune", "digits", "--set", "search={ifca={compare=[]}}"], "ifca.compare has none"),
        (["run", "digits", "--method", "magic"], "method 'magic' is not known"),
        (["run", "digits", "--set", "roundz=3"], "no setting 'roundz'"),
        (["run", "digits", "--set", "cobo.rho=-1"], "rho = -1"),
        (["run", "digits", "--set", "cobo.rh=1"], "no setting 'rh'"),
        (["run", "digits", "--set", "magic.rho=1"], "'magic' has no settings of its own"),
        (["run", "digits", "--set", "lr"], "KEY=VALUE"),
        (["run", "digits", "--set", "samples=100000"], "samples = 100000"),
        (["run", "digits", "--set", "groups=11"], "groups = 11"),
        (["run", "digits", "--rounds", "0"], "rounds = 0"),
        (["run", "digits", "--set", "cobo.preset=best"], "preset = 'best'"),
        (["run", "digits", "--set", "seed=5"], "--seed"),
        (["run", "digits", "--set", "cobo.seed=5"], "--seed"),
        (["run", "digits", "--set", "experiment=foo"], "not allowed"),
        (["run", "digits", "--fast"], "--fast"),
        (["run", "digits", "--rounds", "many"], "'many' is not a valid integer. (see `cobo run --help`)"),
        (["run"], "EXPERIMENT"),
        (["runn", "digits"], "'runn'. Did you mean 'run'? (see `cobo --help`)"),
        (["bogus"], "bogus"),
        (["compare", "digits", "--methods", "cobo,magic"], "method 'magic' is not known"),
        (["report", "."], "holds no run"),
        (["compare", "digits", "--tuned", "nowhere.toml"], "'nowhere.toml' is not there"),
        (["compare", "digits", "--set", "ditto.rounds=3"], "rounds is the same for all methods"),
        (["compare", "digits", "--seeds", "1001"], "1001"),
        (["compare", "digits", "--jobs", "0"], "jobs"),
        (["compare", "digits", "--jobs", "2", "--set", "groups=11"], "groups = 11"),
        (["vary", "digits", "groups"], "it should be KEY=V1,V2,... with two values or more"),
        (["vary", "digits", "groups=2"], "with two values or more"),
        (["vary", "digits", "groups=2,,4"], "with two values or more"),
        (["vary", "digits", "groups=2,4,2"], "2 is the same as 2; give each value once"),
        (["vary", "digits", "lr=0.1,1e-1"], "1e-1 is the same as 0.1; give each value once"),
        (["vary", "digits", "roundz=2,4"], "no setting 'roundz'"),
        (["vary", "digits", "magic.rho=2,4"], "'magic' has no settings of its own"),
        (["vary", "digits", "cobo.rh=2,4"], "no setting 'rh'"),
        (["vary", "digits", "cobo.rho=2,-4"], "rho = -4"),
        (["vary", "digits", "groups=2,11"], "groups = 11"),
        (["vary", "digits", "seed=0,1"], "--seed"),
        (["vary", "digits", "hidden=[64],[32"], "not valid TOML"),
        (["vary", "digits", "cobo.rho=2,4", "--methods", "local,ditto"], "cobo.rho is no setting of local, ditto"),
        (["vary", "digits", "groups=2,4", "--methods", "magic"], "method 'magic' is not known"),
        (["tune", "digits", "--methods", "magic"], "method 'magic' is not known"),
        (["tune", "digits", "--trials", "0"], "trials"),
        (["tune", "digits", "--methods", "local", "--set", "augment=crop-flip"], "crop-flip"),
        (
            ["tune", "digits", "--methods", "cobo", "--set", "optimizer=adamw", "--set", "clocks.blocking=false"],
            "optimizer = 'adamw'",
        ),
        (["data", "fetch", "mnist"], "'mnist' is not known"),
        (["run", "digits", "--set", "cobo.mixing=explicit", "--set", "cobo.rho=1000"], "needs rho < 6.99301"),
    ],
)
def test_bad_usage_is_one_clear_line_and_exit_2(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["cobo", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    err = capsys.readouterr().err
    assert words in err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1
    assert not list(tmp_path.rglob("*.toml"))


@pytest.mark.parametrize(
    ("methods", "words"),
    [("methods = 5", "methods = 5 is not allowed"), ("methods.cobo = 5", "cobo = 5 is not allowed")],
)
@pytest.mark.parametrize("change", ["lr=1", "cobo.rho=1"])
def test_methods_that_are_no_tables_are_one_clear_line(methods, words, change, tmp_path, monkeypatch, capsys):
    path = tmp_path / "own.toml"
    path.write_text(f'experiment = "digits"\n{methods}\n')
    monkeypatch.setattr(sys, "argv", ["cobo", "run", str(path), "--set", change])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert capsys.readouterr().err == f"cobo: {words}; it should be a table of settings\n"


def test_a_folder_of_data_that_cannot_be_is_one_clear_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["cobo", "data"])
    monkeypatch.setenv("COBO_DATA", "~nosuchuser/x")
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert capsys.readouterr().err == "cobo: COBO_DATA = '~nosuchuser/x' is not allowed; there is no such user\n"


def test_bad_usage_ends_a_real_process_with_2():
    for arguments, words in ((("run", "digits", "--fast"), "--fast"), (("run", "nothing"), "cobo: experiment")):
        code, _, err = run(*arguments)
        assert code == 2
        assert words in err
        assert "Traceback" not in err


@pytest.mark.slow
def test_a_folder_is_not_mixed_with_other_settings_nor_overwritten(tmp_path):
    assert run("run", "digits", "--rounds", "3", "--out", str(tmp_path))[0] == 0
    before = (tmp_path / "cobo" / "seed-0" / "metrics.jsonl").read_bytes()
    code, _, err = run("run", "digits", "--rounds", "4", "--out", str(tmp_path), "--resume")
    assert code == 2
    assert "rounds = 3, not 4" in err
    code, _, err = run("run", "digits", "--rounds", "3", "--out", str(tmp_path))
    assert code == 2
    assert "--resume" in err
    assert (tmp_path / "cobo" / "seed-0" / "metrics.jsonl").read_bytes() == before


@pytest.mark.slow
def test_a_diverged_run_is_exit_1_and_keeps_its_checkpoint(tmp_path):
    code, _, err = run(
        "run", "digits", "--rounds", "60", "--out", str(tmp_path), "--set", "lr=1e30", "--method", "local"
    )
    assert code == 1
    assert "no client has a finite gradient" in err
    assert "Traceback" not in err
    assert (tmp_path / "local" / "seed-0" / "metrics.jsonl").exists()


@pytest.mark.slow
def test_ctrl_c_checkpoints_says_how_to_go_on_and_exits_130(tmp_path):
    arguments = ("run", "digits", "--rounds", "400", "--out", str(tmp_path / "stopped"))
    process = start(*arguments)
    wait_for(tmp_path / "stopped" / "cobo" / "seed-0" / "metrics.jsonl", lines=5, process=process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "--resume" in err
    assert "Traceback" not in err
    assert any((tmp_path / "stopped" / "cobo" / "seed-0" / "checkpoint").iterdir())
    assert run(*arguments, "--resume")[0] == 0
    assert run("run", "digits", "--rounds", "400", "--out", str(tmp_path / "whole"))[0] == 0
    assert identical(tmp_path / "stopped", tmp_path / "whole")


def wait_for(path: Path, lines: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if path.exists() and len(path.read_text().splitlines()) >= lines:
            return
        time.sleep(0.02)
    raise AssertionError(f"{path} did not reach {lines} lines: {process.poll()}")


def identical(one: Path, two: Path) -> bool:
    """Bit by bit the same models and weights, and the same metrics but for the time they took."""

    def content(folder: Path) -> dict:
        found = {}
        for path in sorted(folder.glob("cobo/seed-0/**/*")):
            name = str(path.relative_to(folder))
            if path.suffix == ".safetensors" and "checkpoint" not in name:
                found[name] = path.read_bytes()
            elif path.name == "metrics.jsonl":
                found[name] = [{**json.loads(x), "seconds": 0} for x in path.read_text().splitlines()]
        return found

    a, b = content(one), content(two)
    return len(a) == 10 and a == b


COMING_AND_GOING = (
    'roster={changes=[{round=30, join="group0-client1"}, {round=90, leave="group1-client0"}, '
    '{round=120, leave="group3-client0"}, {round=150, join="group1-client0"}]}'
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("plain", ()),
        ("roster", ("--set", COMING_AND_GOING)),
        ("non-blocking", ("--set", 'clocks={times="log-normal", blocking=false, delay=0.7}')),
    ],
)
def test_kill_9_at_random_moments_then_resume_gives_the_same_run(tmp_path, kind, changes):
    import random

    moments = random.Random(kind)
    settings = ("run", "digits", "--rounds", "210", "--set", "evaluate_every=5", *changes)
    assert run(*settings, "--out", str(tmp_path / "whole"))[0] == 0
    arguments = (*settings, "--out", str(tmp_path / "killed"), "--resume")
    metrics = tmp_path / "killed" / "cobo" / "seed-0" / "metrics.jsonl"
    kills = 0
    while kills < 5:
        process = start(*arguments)
        seen = len(metrics.read_text().splitlines()) if metrics.exists() else 0
        if seen < 30:
            wait_for(metrics, seen + 2, process)
        time.sleep(moments.uniform(0, 0.25))
        process.kill()
        process.communicate()
        kills += 1
    code, _, err = run(*arguments)
    assert code == 0, err
    assert identical(tmp_path / "killed", tmp_path / "whole")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("experiments", ["digits"]),
        ("methods", ["cobo", "local", "fedavg", "finetune", "ditto", "ifca", "fc", "oracle", "rho", "lam"]),
        ("data", ["digits", "scikit-learn", "fashion-mnist"]),
        ("--help", ["Usage", "demo", "compare"]),
    ],
)
def test_lists_of_experiments_methods_and_data(command, words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["cobo", command])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    out = capsys.readouterr().out
    assert all(word in out for word in words)


@pytest.mark.slow
def test_examples_run_and_fit_on_a_page(tmp_path):
    script = ROOT / "examples" / "own_data.py"
    assert len(script.read_text().splitlines()) < 40
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "groups found: [['Basel', 'Bern', 'Chur'], ['Genf', 'Thun', 'Zug']]" in done.stdout
    assert (tmp_path / "workshops" / "result.json").exists()


def test_importing_cobo_is_light():
    heavy = "transformers flwr tensorboard wandb matplotlib plotly"
    code = f"import sys, cobo; print([m for m in {heavy.split()!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
