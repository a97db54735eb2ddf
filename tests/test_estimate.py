"""What is said before a run: gradients a round, memory, time; and that finding it out changes nothing."""

import os
import re

import pytest
import torch
from conftest import blobs, play, started
from torch import nn

import cobo
from cobo.compute.task import Task
from cobo.experiments import EXPERIMENTS, load_experiment, outlook
from cobo.experiments.runner import run as run_one
from cobo.federation import Federation
from cobo.methods import METHODS
from cobo.training import estimate
from cobo.training.settings import Training

SAMPLES = 8  # as many as a batch has, so that all samples cost as much as a batch


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
    federation, state = started(parties(), model, method, batch_size=SAMPLES, rounds=rounds)
    play(method, federation, state, rounds)
    said = rounds * method.gradients_per_round(federation, rounds)
    counted = federation.computed + federation.compared / 3
    drawn = isinstance(method, cobo.CoBo) and method.sampling != "every"
    assert said == pytest.approx(counted, rel=0.12 if drawn else 1e-9)
    assert method.trained(federation) in (len(method.rows(federation)), len(state.X))


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


def test_activations_are_what_autograd_keeps():
    layers = nn.Sequential(nn.Linear(2, 50), nn.ReLU(), nn.Linear(50, 2))
    federation = Federation(parties(2), layers, executor="looped", batch_size=4)
    # The result of the ReLU [4, 50]; of the log-softmax and its gather [4, 2] and [4, 1] (int64).
    assert 4 * 50 * 4 <= federation.activations() <= 4 * 50 * 4 + 200
    twice = Federation(parties(2), layers, executor="vectorised", batch_size=4)
    assert twice.activations() == 2 * federation.activations()


def test_long_runs_are_announced_and_short_ones_are_not(tmp_path, monkeypatch):
    experiment = load_experiment("digits", EXPERIMENTS, ["rounds=8", "samples=20", "evaluate_every=4"])
    runs = [(method, seed) for seed in (0, 1) for method in ("cobo", "local")]
    assert outlook.outlook(experiment, runs, tmp_path, resume=False) == []
    monkeypatch.setattr(outlook, "pace", lambda federation: estimate.Pace(100.0, 0.0))
    (line,) = outlook.outlook(experiment, runs[1:2], tmp_path, resume=False)
    assert line.startswith("digits, local: 8 clients x 4,810 parameters, about 0.3 GB; one gradient takes 1e+02 s here")
    assert line.endswith(": 8 rounds about 1.8 h")
    (line,) = outlook.outlook(experiment, runs, tmp_path, resume=False)
    assert line.startswith("digits, 2 methods, 4 runs: ")
    assert ": 32 rounds about " in line
    (side_by_side,) = outlook.outlook(experiment, runs, tmp_path, resume=False, at_once=8)
    assert side_by_side.startswith("digits, 2 methods, 4 runs, 4 at once: ")
    run_one(experiment, "local", 0, tmp_path, resume=False, progress=False)
    (line,) = outlook.outlook(experiment, runs, tmp_path, resume=True)
    assert line.startswith("digits, 2 methods, 3 runs: ")
    assert ": 24 rounds about " in line
    assert outlook.outlook(experiment, runs[1:2], tmp_path, resume=True) == []
    monkeypatch.setattr(outlook, "at_hand", lambda device: 1000)
    line, warning = outlook.outlook(experiment, runs[:1], tmp_path, resume=False)
    assert re.search(r"needs about 0\.3 GB, but cpu has 0\.0 GB: take a smaller model", warning)


def test_what_is_left_of_a_stopped_run(tmp_path, monkeypatch):
    experiment = load_experiment("digits", EXPERIMENTS, ["rounds=8", "samples=20", "evaluate_every=4"])
    run_one(experiment, "local", 0, tmp_path, resume=False, progress=False)
    (tmp_path / "local" / "seed-0" / "result.json").unlink()
    longer = experiment.replace(rounds=20)
    monkeypatch.setattr(outlook, "pace", lambda federation: estimate.Pace(100.0, 0.0))
    (line,) = outlook.outlook(longer, [("local", 0)], tmp_path, resume=True)
    assert ": 12 rounds about " in line


def test_the_machines_memory_is_known():
    assert estimate.at_hand(torch.device("cpu")) == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
