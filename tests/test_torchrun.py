"""Torchrun: the same run, however many processes share it, killed, stopped and gone on with. Real processes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import ranked
import torch
from conftest import blobs
from safetensors.torch import load_file

from cobo.engines import Clocks, Sharded, check, ranks
from cobo.engines.sharded import balanced
from cobo.errors import CheckpointError, ConfigError
from cobo.experiments import EXPERIMENTS, load_experiment, runner
from cobo.federation import Roster
from cobo.methods import Local
from cobo.models import mlp

PATIENCE = 300  # seconds
RANKED = str(Path(ranked.__file__))


@pytest.fixture
def torchrun(tmp_path):
    """Starts the command; what it says goes to a pipe. In the end nothing that it has started is left."""
    mark, started = f"MARK={tmp_path}", []

    def start(processes, *what, restarts=0):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", processes]
        command = [str(c) for c in [*command, "--max-restarts", restarts, *what]]
        env = {**os.environ, "MARK": str(tmp_path)}
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    def left():
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if mark in environment(pid)]

    yield start
    try:
        wait_for(lambda: all(process.poll() is not None for process in started) and not left(), seconds=20)
    finally:
        for pid in left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in started:
            process.communicate()


def environment(pid):
    try:
        return Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
    except OSError:  # it has ended
        return []


def finished(process):
    """What it said, when it has ended well."""
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, out + err
    return out, err


def failed(process):
    """Cobo's own lines of what was said by a process that has failed; torchrun has a report of its own."""
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    assert "cobo: " not in out
    return [line for line in err.splitlines() if "cobo: " in line]


def wait_for(condition, process=None, seconds=PATIENCE):
    begun = time.monotonic()
    while not condition():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < begun + seconds
        time.sleep(0.01)


def evaluations(folder):
    path = folder / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def workers(process):
    """The processes that torchrun has started, by rank."""
    found = {}
    for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        told = dict(line.partition("=")[::2] for line in environment(pid))
        if "RANK" in told:
            found[int(told["RANK"])] = int(pid)
    return found


def assert_same_run(folder, other):
    """Models and W to 1e-4, and the same work."""
    one, two = (json.loads((f / "result.json").read_text()) for f in (folder, other))
    assert one["names"] == two["names"]
    for name in one["names"]:
        mine, theirs = (load_file(f / "models" / f"{name}.safetensors") for f in (folder, other))
        for key, tensor in mine.items():
            assert (tensor.double() - theirs[key].double()).abs().max() < 1e-4, (folder.name, name, key)
    if one["weights"] is not None:
        np.testing.assert_allclose(one["weights"], two["weights"], atol=1e-4)
    for a, b in zip(one["history"], two["history"], strict=True):
        for key in ("round", "gradients", "comparisons", "bytes"):
            assert a[key] == b[key], (folder.name, key)
        assert a["client_loss"] == pytest.approx(b["client_loss"], abs=1e-4)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A folder with all cases, run in this process."""
    folder = tmp_path_factory.mktemp("alone")
    for case in ranked.CASES:
        ranked.run(case, folder, rounds=50)
    return folder


METHODS = [case for case in ranked.CASES if "," not in case]


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "cases"), [(1, METHODS), (2, METHODS), (3, list(ranked.CASES))], ids=[1, 2, 3])
def test_every_method_gives_the_same_run_on_any_number_of_processes(torchrun, processes, cases, alone, tmp_path):
    finished(torchrun(processes, RANKED, tmp_path, 50, *cases))
    for case in cases:
        assert_same_run(alone / case, tmp_path / case)


@pytest.mark.slow
def test_every_method_stopped_on_three_processes_goes_on_with_two(torchrun, alone, tmp_path):
    cases = [*METHODS, "fc, momentum", "ditto, some", "cobo, implicit", "cobo, coupled"]
    finished(torchrun(3, RANKED, "--stop", 25, tmp_path, 50, *cases))
    assert [evaluations(tmp_path / case) for case in cases] == [2] * len(cases)  # of rounds 0 and 20
    finished(torchrun(2, RANKED, "--resume", tmp_path, 50, *cases))
    for case in cases:
        assert_same_run(alone / case, tmp_path / case)


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    """A run that lasts long enough to be killed, run in this process."""
    folder = tmp_path_factory.mktemp("long")
    ranked.run("cobo", folder, rounds=300)
    return folder / "cobo"


@pytest.mark.slow
@pytest.mark.parametrize("restarts", [0, 1])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_run_whose_process_is_killed_goes_on_from_its_checkpoint(torchrun, long, tmp_path, rank, restarts):
    process = torchrun(2, RANKED, tmp_path, 300, "cobo", restarts=restarts)
    wait_for(lambda: evaluations(tmp_path / "cobo") > 2, process)
    os.kill(workers(process)[rank], signal.SIGKILL)
    if restarts:
        finished(process)
    else:
        assert len(failed(process)) <= 1
        ranked.run("cobo", tmp_path, rounds=300, resume=True)
    assert_same_run(long, tmp_path / "cobo")
    events = [json.loads(line) for line in (tmp_path / "cobo" / "events.jsonl").read_text().splitlines()]
    first, again = (event["round"] for event in events if event["event"] == "started")
    assert first == 0
    assert 0 < again < 300


@pytest.mark.slow
def test_ctrl_c_leaves_a_checkpoint_from_which_another_number_of_processes_goes_on(torchrun, tmp_path):
    out, rounds = tmp_path / "shared", 300
    command = ["-m", "cobo", "run", "quadratic", "--rounds", rounds, "--out", out]
    process = torchrun(2, *command)
    wait_for(lambda: evaluations(out / "cobo" / "seed-0") > 2, process)
    process.send_signal(signal.SIGINT)
    (line,) = failed(process)
    assert "stopped by the user after round" in line
    assert not (out / "cobo" / "seed-0" / "result.json").exists()
    finished(torchrun(3, *command, "--resume"))
    experiment = load_experiment("quadratic", EXPERIMENTS, [f"rounds={rounds}"])
    runner.run(experiment, "cobo", 0, tmp_path / "alone", resume=False, progress=False)
    assert_same_run(tmp_path / "alone" / "cobo" / "seed-0", out / "cobo" / "seed-0")


@pytest.mark.slow
def test_compare_says_everything_once_and_an_error_is_one_line(torchrun, tmp_path):
    command = ["-m", "cobo", "compare", "quadratic", "--methods", "local,cobo", "--rounds", 20, "--out", tmp_path]
    out, err = finished(torchrun(2, *command))
    assert out.count("written to") == 1
    assert err.count("cobo seed 0") == 1
    assert set(json.loads((tmp_path / "results.json").read_text())["methods"]) == {"local", "cobo"}
    kept = (tmp_path / "results.json").read_bytes()
    lines = failed(torchrun(2, *command, restarts=1))  # which is refused again, not gone on with
    assert len(lines) == 2
    assert all("already holds a run" in line for line in lines)
    assert (tmp_path / "results.json").read_bytes() == kept


# Without processes


@pytest.mark.parametrize("processes", [1, 2, 3, 8])
def test_blocks_of_clients_are_even_in_cost_and_none_is_empty(processes):
    random = np.random.default_rng(0)
    for n in (processes, processes + 1, 20, 100):
        for costs in (np.ones(n), random.lognormal(size=n), np.arange(1, n + 1), np.array([100.0] + [1.0] * (n - 1))):
            homes = balanced(costs, processes)
            assert (np.diff(homes) >= 0).all()
            assert set(homes) == set(range(processes))
            loads = np.bincount(homes, costs)
            assert loads.max() <= costs.sum() / processes + costs.max()
        equal = np.bincount(balanced(np.ones(n), processes))
        assert equal.max() - equal.min() <= 1


def test_a_start_meets_under_a_new_name_whatever_an_earlier_one_has_left():
    store = torch.distributed.HashStore()
    store.set("cobo/asks/2", "of one that was killed before it had an answer")
    with ThreadPoolExecutor(3) as pool:
        first, again = ([*pool.map(lambda rank: ranks._meet(store, rank, 3), range(3))] for _ in range(2))
    assert len(set(first)) == len(set(again)) == 1
    assert first != again


def test_a_restart_goes_on_with_what_the_same_torchrun_has_begun_and_with_nothing_else(tmp_path, monkeypatch):
    ranked.run("local", tmp_path, rounds=3)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "ours")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    store = torch.distributed.HashStore()

    def start(name, *cases):
        process = ranks.Alone()
        process._lasting, process._start = store, name
        monkeypatch.setattr("cobo.training.fit.join", lambda: process)
        for case in cases:
            ranked.run(case, tmp_path, rounds=3)

    for name in ("first", "killed before it had begun"):
        with pytest.raises(CheckpointError, match="already holds a run"):
            start(name, "local")
    with pytest.raises(CheckpointError, match="already holds a run"):
        start("second", "cobo", "cobo")
    start("third", "cobo")
    with pytest.raises(CheckpointError, match="local already holds a run"):
        start("fourth", "cobo", "local")


class Two(ranks.Ranks):
    """The first of two processes, as long as nothing needs to be said."""

    def __init__(self):
        self.rank, self.size = 0, 2


def test_each_process_holds_the_rows_and_samples_of_its_clients_only():
    clients = [blobs(name, seed=k, samples=10 * (k + 1)) for k, name in enumerate("abcde")]
    federation = Sharded(clients, mlp(2, [4], 2), ranks=Two(), batch_size=4)
    assert federation.mine.tolist() == [0, 1]
    assert len(federation.start) == 2
    assert len(federation._train._pool._fields[0]) == 10 + 20
    by_samples = Sharded(clients, mlp(2, [4], 2), ranks=Two(), batch_size=None)
    assert by_samples.mine.tolist() == [0, 1, 2]  # 60 samples of 150, nearer to half than 100


def test_what_torchrun_cannot_do_is_refused_in_one_line(monkeypatch, tmp_path):
    clients = [blobs(name, seed=k) for k, name in enumerate("abc")]
    federation = Sharded(clients, mlp(2, [4], 2), ranks=Two())
    rest = (federation, Local(), "sgd")
    with pytest.raises(ConfigError, match="clocks cannot be had under torchrun"):
        check(Clocks(), *rest, Roster(), list)
    with pytest.raises(ConfigError, match="roster cannot be had under torchrun"):
        check(None, *rest, Roster(changes=[{"round": 3, "join": "a"}]), list)
    few = Two()
    few.size = 4
    with pytest.raises(ConfigError, match="4 processes for 3 clients"):
        Sharded(clients, mlp(2, [4], 2), ranks=few)
    monkeypatch.setattr(runner, "join", Two)
    with pytest.raises(ConfigError, match="--jobs cannot be had under torchrun"):
        runner.run_all([], resume=False, watch=None, at_once=2)
