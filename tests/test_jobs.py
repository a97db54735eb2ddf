"""Runs side by side: the same results, whatever ends them, and nothing left that `--resume` cannot finish."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from test_cli import run, start
from test_compare import Silent, plain_results, tiny

from cobo.errors import CheckpointError, ConfigError, RunError
from cobo.experiments.job import Job
from cobo.experiments.runner import compare, run_all
from cobo.experiments.side_by_side import environment
from cobo.report import summary
from cobo.training import checkpoint
from cobo.training.lock import only_one


def numbers(folder: Path) -> dict:
    """What the runs in a folder say, without the wall clock."""
    methods = summary.summarise(folder, "digits", 20.0)["methods"]
    return {name: {k: v for k, v in m.items() if k != "seconds"} for name, m in methods.items()}


@pytest.mark.slow
def test_side_by_side_gives_the_same_results_and_events_as_in_turn(tmp_path):
    one, two, again = Silent(), Silent(), Silent()
    for watch, at_once in ((one, 1), (two, 2)):
        folder = tmp_path / str(at_once)
        compare(tiny(), ["local", "cobo", "oracle"], [0], folder, resume=False, watch=watch, at_once=at_once)
    assert numbers(tmp_path / "1") == numbers(tmp_path / "2")
    assert two.begun == one.begun
    assert two.ended == one.ended == 3
    quiet = ("round", "weights")  # processes tell some of the former, and none of the latter, which is in a file
    told = [sorted((e["event"], e["round"]) for e in w.events if e["event"] not in quiet) for w in (one, two)]
    assert told[0] == told[1]
    compare(tiny(), ["local", "cobo", "ditto"], [0], tmp_path / "2", resume=True, watch=again, at_once=2)
    assert (again.skipped, again.begun) == (2, ["ditto seed 0"])


@pytest.mark.slow
def test_a_run_that_diverges_side_by_side_is_named_at_the_end_and_the_others_are_in_the_table(tmp_path):
    code, out, err = run(
        "compare", "digits", "--rounds", "6", "--set", "samples=20", "--methods", "fedavg,local,oracle", "--jobs", "2",
        "--set", "fedavg.lr=1e30", "--out", str(tmp_path),
    )  # fmt: skip
    assert code == 1
    assert "fedavg seed 0 failed: round" in err.splitlines()[-1]
    assert err.splitlines()[-1].endswith(f"(what was written before stays in {tmp_path})")
    assert [line[:5] for line in err.splitlines()[-4:-1]] == ["[1/3]", "[2/3]", "[3/3]"]
    assert out.count("method") == 1  # one table, not one for each run
    assert list(json.loads((tmp_path / "results.json").read_text())["methods"]) == ["local", "oracle"]


@pytest.mark.slow
def test_a_run_whose_folder_is_taken_ends_the_others_with_their_checkpoints(tmp_path):
    place, other = tmp_path / "local" / "seed-0", tmp_path / "ditto" / "seed-0"

    class Late(Silent):
        def begin(self, label):
            deadline = time.monotonic() + 300
            while label == "local seed 0" and not checkpoint.newest(other / "checkpoint"):
                assert time.monotonic() < deadline
                time.sleep(0.02)
            return super().begin(label)

    experiment = tiny("rounds=100000", "evaluate_every=5")
    place.mkdir(parents=True)
    with only_one(place), pytest.raises(ConfigError, match="another process is at work") as caught:
        compare(experiment, ["ditto", "local"], [0], tmp_path, resume=True, watch=Late(), at_once=2)
    assert "\n" not in str(caught.value)
    last = json.loads((other / "events.jsonl").read_text().splitlines()[-1])
    assert last["event"] == "interrupted"
    assert last["round"] == checkpoint.newest(other / "checkpoint")


def process_of(place: Path) -> int:
    """The child that is at work in a run's folder."""
    for child in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split():
        if any(os.readlink(file) == str(place / ".lock") for file in Path(f"/proc/{child}/fd").iterdir()):
            return int(child)
    raise AssertionError(f"nobody is at work in {place}")


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_its_own_run_only(tmp_path):
    class Killer(Silent):
        def __call__(self, event):
            if event["event"] == "started" and event["method"] == "fc":
                os.kill(process_of(jobs[0].place), signal.SIGKILL)

    jobs = [Job(tiny("rounds=60"), m, 0, tmp_path, m) for m in ("fc", "local", "oracle")]
    with pytest.raises(RunError, match=r"^fc failed: its process ended with signal 9$"):
        run_all(jobs, resume=True, watch=Killer(), at_once=2)
    assert [job.finished for job in jobs] == [False, True, True]
    run_all(jobs, resume=True, watch=Silent(), at_once=2)
    assert set(numbers(tmp_path)) == {"fc", "local", "oracle"}


@pytest.mark.slow
def test_the_last_words_of_a_worker_that_dies_before_its_run_begins_are_kept(tmp_path, monkeypatch):
    dies = "import os\nos.write(2, b'Traceback\\nOSError: no disk\\n')\nos._exit(1)\n"
    (tmp_path / "sitecustomize.py").write_text(dies)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    path = tmp_path / "runs" / "stderr.txt"
    with pytest.raises(RunError) as caught:
        run_all([Job(tiny(), "local", 0, path.parent, "local")], resume=False, watch=Silent(), at_once=2)
    how = "its process ended with exit code 1 (OSError: no disk)"
    assert str(caught.value) == f"local failed: {how}; all that it said is in {path}"
    assert path.read_text() == "Traceback\nOSError: no disk\n"


@pytest.mark.slow
def test_files_in_the_folder_one_is_in_are_not_taken_for_modules(tmp_path, monkeypatch):
    (tmp_path / "statistics.py").write_text("raise RuntimeError('not a module')\n")
    monkeypatch.chdir(tmp_path)
    job = Job(tiny(), "local", 0, tmp_path / "runs", "local")
    run_all([job], resume=False, watch=Silent(), at_once=2)
    assert job.finished


@pytest.mark.slow
def test_a_worker_can_be_stopped_although_ctrl_c_was_ignored_where_it_was_started(tmp_path):
    hears, tells = os.pipe()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    process = start("worker", str(tells), stdin=subprocess.PIPE, pass_fds=[tells])
    signal.signal(signal.SIGINT, before)
    os.close(tells)
    asked = {"settings": tiny().plain(), "method": "local", "seed": 0, "folder": str(tmp_path), "resume": False}
    process.stdin.write(json.dumps(asked) + "\n")
    process.stdin.flush()
    with open(hears) as told:
        assert any("ended" in line for line in told)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
    process.communicate()


@pytest.mark.slow
def test_what_a_library_prints_in_a_worker_does_no_harm_and_its_last_words_are_kept(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("print('a word before anything else')\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")

    class Killer(Silent):
        def __call__(self, event):
            if event["event"] == "started" and event["method"] == "fc":
                for child in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split():
                    os.kill(int(child), signal.SIGABRT)

    run_all([Job(tiny(), "local", 0, tmp_path, "local")], resume=False, watch=Silent(), at_once=2)
    with pytest.raises(RunError, match=r"signal 6 \(.*\); all that it said is in .*stderr.txt"):
        run_all([Job(tiny(), "fc", 0, tmp_path, "fc")], resume=False, watch=Killer(), at_once=2)
    assert "a word before" in (tmp_path / "fc" / "seed-0" / "stderr.txt").read_text()


STOPPED = (
    "compare", "digits", "--rounds", "300", "--set", "evaluate_every=10", "--methods", "ditto,cobo,local", "--jobs", "2"
)  # fmt: skip


def started(folder: Path, *more: str, **options):
    """A comparison of which two runs are on their way."""
    process = start(*STOPPED, "--out", str(folder), *more, **options)
    deadline = time.monotonic() + 300
    while len(list(folder.glob("*/seed-0/checkpoint/round-*"))) < 4 and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return process


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["parent", "group"])
def test_ctrl_c_side_by_side_writes_checkpoints_and_exits_130(tmp_path, whom):
    process = started(tmp_path, start_new_session=True)
    if whom == "parent":
        process.send_signal(signal.SIGINT)
    else:
        os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.splitlines()[-1].startswith("cobo: stopped by the user; go on with the same command and --resume")
    assert "Traceback" not in err
    for method in ("ditto", "cobo"):
        events = (tmp_path / method / "seed-0" / "events.jsonl").read_text().splitlines()
        assert json.loads(events[-1])["event"] == "interrupted"
        assert json.loads(events[-2])["event"] == "checkpoint"
    assert not (tmp_path / "local").exists()


@pytest.mark.slow
def test_kill_9_of_the_parent_ends_its_children_and_resume_gives_the_same_results(tmp_path):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = started(killed)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 120
    for method in ("ditto", "cobo"):
        while True:  # until its process is gone
            try:
                with only_one(killed / method / "seed-0"):
                    break
            except CheckpointError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
    assert not list(killed.glob("*/seed-0/result.json"))
    code, _, err = run(*STOPPED, "--out", str(killed), "--resume")
    assert code == 0, err
    assert run(*STOPPED[:-2], "--out", str(whole))[0] == 0
    assert plain_results(killed) == plain_results(whole)


def test_each_place_has_a_gpu_of_its_own(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [environment("cuda", k)["CUDA_VISIBLE_DEVICES"] for k in range(3)] == ["0", "1", "0"]
    assert "CUDA_VISIBLE_DEVICES" not in environment("cpu", 0)
    assert "CUDA_VISIBLE_DEVICES" not in environment("cuda:1", 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert [environment("cuda", k)["CUDA_VISIBLE_DEVICES"] for k in range(3)] == ["5", "7", "5"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert environment("cuda", 3)["CUDA_VISIBLE_DEVICES"] == "5,7"


@pytest.mark.parametrize("at_once", [1, 2])
def test_what_cannot_work_is_refused_before_anything_runs(tmp_path, at_once):
    watch = Silent()
    bad = tiny("cobo.mixing=explicit", "cobo.rho=1000")
    with pytest.raises(ConfigError, match="needs rho <"):
        compare(bad, ["local", "cobo"], [0], tmp_path / "a", resume=False, watch=watch, at_once=at_once)
    (tmp_path / "b" / "cobo" / "seed-1").mkdir(parents=True)
    (tmp_path / "b" / "cobo" / "seed-1" / "metrics.jsonl").touch()
    with pytest.raises(CheckpointError, match="seed-1 already holds a run"):
        compare(tiny(), ["local", "cobo"], [0, 1], tmp_path / "b", resume=False, watch=watch, at_once=at_once)
    assert watch.begun == []
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["metrics.jsonl"]
