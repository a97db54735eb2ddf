"""What is said before a run: gradients a round, memory, time; and that finding it out changes nothing."""

import os
import re

import pytest
import tomli_w
import torch
from conftest import blobs, play, started
from test_compare import Silent
from torch import nn

import cobo
from cobo.compute.task import Task
from cobo.errors import CheckpointError
from cobo.experiments import EXPERIMENTS, load_experiment, outlook, runner
from cobo.experiments import tune as search
from cobo.experiments.job import Job
from cobo.experiments.runner import compare, prepare
from cobo.experiments.runner import run as run_one
from cobo.experiments.vary import Variation, load_values
from cobo.federation import Federation
from cobo.methods import METHODS
from cobo.training import estimate
from cobo.training.settings import Training

SAMPLES, BATCH = 8, 3  # all samples are three batches


def parties(n: int = 6) -> list[cobo.Client]:
    return [blobs(f"c{k}", seed=k, samples=SAMPLES, group=k % 2) for k in range(n)]


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))


@pytest.mark.parametrize(
    "method",
    [
        cobo.Local(),
        cobo.Oracle(),
        cobo.FedAvg(),
        cobo.FedAvg(participation=0.5, local_steps=3),
        cobo.FineTunedFedAvg(participation=0.34, share=0.3),
        cobo.Ditto(),
        cobo.Ditto(participation=0.5, local_steps=2),
        cobo.IFCA(),
        cobo.IFCA(initialisations=2, participation=0.5, compare="all"),
        cobo.FederatedClustering(),
        cobo.CoBo(),
        cobo.CoBo(sampling="every", pairs="ordered"),
        cobo.CoBo(sampling="constant", ask="all"),
        cobo.CoBo.paper(sampling="time"),
        cobo.CoBo(domain="simplex", self_weight=True, sampling="constant"),
    ],
    ids=lambda method: f"{method.name}",
)
def test_gradients_a_round_are_those_that_are_counted(method):
    rounds = 40
    federation, state = started(parties(), model, method, batch_size=BATCH, rounds=rounds)
    play(method, federation, state, rounds)
    said = rounds * method.gradients_per_round(federation, rounds)
    counted = federation.computed + federation.compared / 3
    drawn = isinstance(method, cobo.CoBo) and method.sampling != "every"
    assert said == pytest.approx(counted, rel=0.12 if drawn else 1e-9)
    assert method.trained(federation) in (len(method.rows(federation)), len(state.X))


@pytest.mark.parametrize("pairs", ["symmetric", "ordered"])
@pytest.mark.parametrize("known", [True, False])
def test_pairs_of_known_groups_count_as_those_who_are_asked_on(pairs, known):
    """After the burst who is connected is asked far more than who is parted; without groups, all may be connected."""
    method = cobo.CoBo(pairs=pairs, turns="even", switch=0.1, rate=1.2, time_rate=0.001)
    people = [blobs(f"c{k}", seed=k, samples=SAMPLES, group=k % 3 if known else None) for k in range(9)]
    federation, _ = started(people, model, method, batch_size=BATCH, rounds=500)
    same = torch.tensor([[float(not known or i % 3 == j % 3) for j in range(9)] for i in range(9)])
    asked = sum(len(method.draw(federation, same, t, 500)) for t in range(500))
    assert method.gradients_per_round(federation, 500) == pytest.approx(9 + 2 * asked / 500, rel=0.03)


@pytest.mark.parametrize(("rounds", "settings", "said"), [(3, {}, True), (300, {}, False), (3, {"gamma": 0.0}, False)])
def test_who_hardly_asks_anybody_is_told_so(rounds, settings, said):
    events = []
    method = cobo.CoBo(sampling="constant", rate=0.5, **settings)
    cobo.fit(parties(), model=model, method=method, rounds=rounds, listeners=[events.append])
    told = [e["message"] for e in events if e["event"] == "warning" and "asks a pair" in e["message"]]
    assert bool(told) == said
    if said:  # twice 0.5 / 6, as pairs are symmetric, in three rounds
        assert "asks a pair 0.5 times in all 3 rounds" in told[0]


def test_every_method_is_held_to_what_it_says():
    tried = {mark.name for mark in test_gradients_a_round_are_those_that_are_counted.pytestmark[0].args[1]}
    assert tried == set(METHODS)


class Noisy(nn.Module):
    """Running statistics and random numbers: whatever could be moved."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))

    def forward(self, x):
        return self.layers(x)


@pytest.mark.parametrize("make", [Noisy, model])
def test_a_run_is_the_same_whether_or_not_it_was_estimated(make):
    rows = []
    for ask in (False, True):
        method = cobo.CoBo(sampling="every")
        federation, state = started(parties(), make, method, batch_size=4)
        generators = torch.get_rng_state()
        buffers = {name: b.clone() for name, b in federation.buffers.items()}
        if ask:
            settings = Training(batch_size=4, momentum=0.9)
            assert estimate.pace(federation).gradient > 0
            assert estimate.memory(federation, method, settings) > 0
        assert torch.equal(torch.get_rng_state(), generators)
        assert all(torch.equal(b, buffers[name]) for name, b in federation.buffers.items())
        assert (federation.computed, federation.compared, federation.work.sum()) == (0, 0, 0)
        play(method, federation, state, 3)
        rows.append((state.X.clone(), federation.evaluate(state.X), federation.computed))
    assert torch.equal(rows[0][0], rows[1][0])
    assert rows[0][1:] == rows[1][1:]


def test_time_is_gradients_and_evaluations():
    federation = Federation(parties(4), model, task=Task(), batch_size=4)
    speed = estimate.Pace(gradient=2.0, sample=0.5)
    settings = Training(rounds=100, evaluate_every=30)
    # 4 gradients a round; before the first round and after 30, 60, 90 and 100: 4 clients of 8 test samples.
    assert estimate.seconds(federation, cobo.Local(), settings, speed) == 100 * 4 * 2 + 5 * 32 * 0.5
    assert estimate.seconds(federation, cobo.Local(), settings, speed, done=60) == 40 * 4 * 2 + 2 * 32 * 0.5


def test_memory_counts_rows_and_samples():
    federation = Federation(parties(4), model, task=Task(), batch_size=4)
    d = federation.blueprint.size
    samples = 4 * SAMPLES * (2 * 4 + 8)  # two floats and a class number
    plain, heavy, adam = (
        estimate.memory(federation, cobo.Local(), Training(**changes)) - 2 * federation.activations() - estimate.PROGRAM
        for changes in ({}, {"momentum": 0.9}, {"optimizer": "adamw"})
    )
    assert plain == 3 * 4 * d * 4 + 3 * samples  # to train on, once more behind one index, and to judge by
    assert heavy - plain == 4 * d * 4
    assert adam - plain == 2 * 4 * d * 4


def test_memory_counts_the_points_of_fc_and_their_momenta():
    federation = Federation(parties(6), model, task=Task(), batch_size=4, models_at_once=6)
    settings, row = Training(), federation.blueprint.size * 4
    local, fc, momenta = (
        estimate.memory(federation, method, settings)
        for method in (cobo.Local(), cobo.FederatedClustering(), cobo.FederatedClustering(client_momentum=0.9))
    )
    assert fc - local == (4 * 6 - 6) * row
    assert momenta - fc == (6 * 6 + 2 * 6) * row


@pytest.mark.parametrize("executor", ["looped", "vectorised"])
def test_memory_counts_the_batches_of_a_question(executor):
    federation = Federation(parties(6), model, task=Task(), batch_size=2, executor=executor)
    assert SAMPLES == 4 * 2
    one, four, whole = (estimate.memory(federation, cobo.CoBo(ask=a), Training()) for a in (1, 4, "all"))
    together = 6 if executor == "vectorised" else 1
    assert four - one == 2 * 3 * federation.activations()
    assert whole == four
    few = Federation(parties(6), model, task=Task(), batch_size=2, executor=executor, models_at_once=6)
    # One question of four batches at a time: less than six own gradients, if those go together.
    assert few.activations(4) == few.activations() * max(1, 4 / together)


def test_activations_are_what_autograd_keeps():
    layers = nn.Sequential(nn.Linear(2, 50), nn.ReLU(), nn.Linear(50, 2))
    federation = Federation(parties(2), layers, executor="looped", batch_size=4)
    # The result of the ReLU [4, 50]; of the log-softmax and its gather [4, 2] and [4, 1] (int64).
    assert 4 * 50 * 4 <= federation.activations() <= 4 * 50 * 4 + 200
    twice = Federation(parties(2), layers, executor="vectorised", batch_size=4)
    assert twice.activations() == 2 * federation.activations()


def short(*changes: str):
    return load_experiment("digits", EXPERIMENTS, ["rounds=8", "samples=20", "evaluate_every=4", *changes])


def said(experiment, runs, folder, *, resume=False, at_once=1) -> list[str]:
    lines: list[str] = []
    jobs = [Job(experiment, method, seed, folder, method) for method, seed in runs]
    prepare(jobs, resume=resume, at_once=at_once, say=lines.append)
    return lines


@pytest.fixture
def slow(monkeypatch):
    """A gradient takes 100 seconds."""
    monkeypatch.setattr(outlook, "pace", lambda federation: estimate.Pace(100.0, 0.0))


RUNS = [(method, seed) for seed in (0, 1) for method in ("cobo", "local")]


def test_short_runs_are_not_announced(tmp_path):
    assert said(short(), RUNS, tmp_path) == []


@pytest.mark.usefixtures("slow")
def test_long_runs_are_announced(tmp_path, monkeypatch):
    (line,) = said(short(), RUNS[1:2], tmp_path)
    assert line.startswith("digits, local: 8 clients x 4,810 parameters, about 0.3 GB; one gradient takes 1e+02 s here")
    assert line.endswith(": 8 rounds about 1.8 h")
    (line,) = said(short(), RUNS, tmp_path)
    assert line.startswith("digits, 2 methods, 4 runs: ")
    assert ": 32 rounds about " in line
    (side_by_side,) = said(short(), RUNS, tmp_path, at_once=8)
    assert side_by_side.startswith("digits, 2 methods, 4 runs, 4 at once: ")
    run_one(short(), "local", 0, tmp_path, resume=False, progress=False)
    (line,) = said(short(), RUNS, tmp_path, resume=True)
    assert line.startswith("digits, 2 methods, 3 runs: ")
    assert ": 24 rounds about " in line
    assert said(short(), RUNS[1:2], tmp_path, resume=True) == []
    monkeypatch.setattr(outlook, "at_hand", lambda device: 1000)
    line, warning = said(short(), RUNS[:1], tmp_path)
    assert re.search(r"needs about 0\.3 GB, but cpu has 0\.0 GB: take a smaller model", warning)


@pytest.mark.parametrize(
    ("cores", "threads", "at_once", "time"),
    [(8, 1, 1, "8.0 h"), (8, 1, 4, "2.0 h"), (2, 1, 4, "4.0 h"), (8, 4, 4, "4.0 h"), (2, 4, 4, "8.0 h")],
)
def test_several_at_once_are_faster_only_with_a_core_for_each(monkeypatch, tmp_path, cores, threads, at_once, time):
    monkeypatch.setattr(outlook.os, "cpu_count", lambda: cores)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    jobs = [Job(short(), "local", seed, tmp_path, "local") for seed in range(4)]
    each = outlook.Expected("small", torch.device("cpu"), 1.0, 4 * 3600.0, 8, 1)
    (line,) = outlook.outlook(jobs, [each, each], at_once)
    assert line.endswith(f": 16 rounds about {time}")


def test_several_gpus_share_the_runs(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(outlook, "at_hand", lambda device: 16e9)
    jobs = [Job(short(), "local", seed, tmp_path, "local") for seed in range(8)]
    each = outlook.Expected("large", torch.device("cuda"), 1.0, 8 * 3600.0, 8, 10**10)
    (line,) = outlook.outlook(jobs, [each], 4)
    assert line.endswith(": 8 rounds about 2.0 h")
    _, warning = outlook.outlook(jobs, [each], 8)
    assert "needs about 20.0 GB, but cuda has 16.0 GB" in warning


@pytest.mark.usefixtures("slow")
def test_what_is_left_of_a_stopped_run(tmp_path):
    run_one(short(), "local", 0, tmp_path, resume=False, progress=False)
    (tmp_path / "local" / "seed-0" / "result.json").unlink()
    (line,) = said(short("rounds=20"), [("local", 0)], tmp_path, resume=True)
    assert ": 12 rounds about " in line


@pytest.mark.usefixtures("slow")
def test_a_variation_and_a_search_are_announced(tmp_path):
    lines: list[str] = []
    changes = ["rounds=2", "samples=20"]
    key, values = load_values("digits", EXPERIMENTS, "groups=2,3", tmp_path / "vary", changes)
    Variation(key, values, ["local"]).run([0, 1], resume=False, watch=Silent(), say=lines.append)
    # 4 or 6 clients, 2 rounds, 2 seeds, 100 s a gradient
    assert re.fullmatch(r"digits, local, 4 runs: 6 clients x .*: 8 rounds about 67 min", lines.pop())
    experiment = load_experiment("digits", EXPERIMENTS, changes)
    for trials, left in ((1, 2), (3, 4)):  # the first are not run again
        search.tune(experiment, ["local"], trials, 2, tmp_path / "tune", Silent(), say=lines.append)
        (line,) = lines
        assert line.startswith(f"digits, local, {left} runs: 8 clients")
        lines.clear()


def test_a_folder_that_is_taken_is_refused_before_anything_is_tried(tmp_path, monkeypatch):
    for module, name in ((outlook, "pace"), (runner, "federate")):
        monkeypatch.setattr(module, name, lambda *_: pytest.fail("it has begun"))
    place = tmp_path / "local" / "seed-0"
    place.mkdir(parents=True)
    (place / "metrics.jsonl").touch()
    with pytest.raises(CheckpointError, match="already holds a run"):
        compare(short(), ["local"], [0], tmp_path, resume=False, watch=Silent(), say=pytest.fail)
    with pytest.raises(CheckpointError, match="already holds a run"):
        run_one(short(), "local", 0, tmp_path, resume=False, say=pytest.fail)
    (tmp_path / "experiment.toml").write_text(tomli_w.dumps(short().plain()))
    with pytest.raises(CheckpointError, match="rounds = 8, not 9"):
        compare(short("rounds=9"), ["local"], [0], tmp_path, resume=True, watch=Silent(), say=pytest.fail)


def test_a_comparison_is_prepared_with_one_federation(tmp_path, monkeypatch):
    made, federate = [], runner.federate

    def counted(*arguments):
        made.append(arguments)
        return federate(*arguments)

    monkeypatch.setattr(runner, "federate", counted)
    compare(short(), ["local", "oracle"], [0], tmp_path, resume=False, watch=Silent(), say=pytest.fail)
    assert len(made) == 1


def test_the_machines_memory_is_known():
    assert estimate.at_hand(torch.device("cpu")) == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
