"""Simulated time: what waiting costs, and CoBo that does not wait."""

import json
import os
import signal

import numpy as np
import plain
import pytest
import tomli_w
import torch
from conftest import Point, blobs, point_client, quadratic, started
from safetensors.torch import load_file
from test_training import Poison, people, same, small
from torch import nn

import cobo
from cobo import draws
from cobo.collaboration import mixing
from cobo.engines import Clocks, NonBlocking
from cobo.engines.clocks import Times
from cobo.errors import CheckpointError, ConfigError, Interrupted
from cobo.experiments import EXPERIMENTS, load_experiment
from cobo.experiments.runner import run
from cobo.methods import METHODS
from cobo.models import mlp
from cobo.report.summary import summarise
from cobo.report.table import markdown

NAMES = ["north", "east", "south", "west"]


def times(names=NAMES, seed=0, k=0, **settings):
    return Times(Clocks(**settings), names, seed).of(np.arange(len(names)), np.full(len(names), k))


def trace(path, text):
    path.write_text(text)
    return {"times": "trace", "trace": path}


# How long clients take


def test_times_are_what_the_settings_say():
    assert times(seconds=2.5).tolist() == [2.5] * 4
    assert times(times="straggler", stragglers=["south"], seconds=2).tolist() == [2, 2, 20, 2]
    assert times(times="straggler", stragglers=["south", "west"], factor=3).tolist() == [1, 1, 3, 3]


def test_without_names_one_straggler_is_drawn_by_seed():
    drawn = [times(times="straggler", seed=seed).tolist() for seed in range(20)]
    assert all(sorted(row) == [1, 1, 1, 10] for row in drawn)
    assert {row.index(10) for row in drawn} == {0, 1, 2, 3}


def test_speeds_are_log_normal_and_follow_seed_and_name_alone():
    many = times([f"c{k}" for k in range(4000)], times="log-normal", spread=0.5, seconds=3)
    assert np.log(many / 3).mean() == pytest.approx(0, abs=0.03)
    assert np.log(many / 3).std() == pytest.approx(0.5, abs=0.03)
    some = times(["c7", "c2"], times="log-normal", spread=0.5, seconds=3)
    assert some.tolist() == many[[7, 2]].tolist()
    assert times(times="log-normal", k=5).tolist() == times(times="log-normal", k=0).tolist()
    assert times(times="log-normal", seed=1).tolist() != times(times="log-normal").tolist()


def test_jitter_is_anew_in_every_round():
    rounds = np.array([times(jitter=0.3, k=k) for k in range(1000)])
    assert np.log(rounds).std() == pytest.approx(0.3, abs=0.02)
    assert abs(np.corrcoef(rounds[:, 0], rounds[:, 1])[0, 1]) < 0.1
    assert np.array_equal(rounds[17], times(jitter=0.3, k=17))


def test_a_trace_is_followed_and_begun_again(tmp_path):
    settings = trace(tmp_path / "times.csv", "client,seconds\na,1\nb,5\na,2.5\n")
    assert [times(["a", "b"], k=k, **settings).tolist() for k in range(4)] == [[1, 5], [2.5, 5], [1, 5], [2.5, 5]]


# Everyone waits


def four(**options):
    return [point_client(name, [float(k)], group=k % 2, **options) for k, name in enumerate(NAMES)]


def waited(method, clocks, rounds=6, clients=None):
    """The time after each round."""
    result = cobo.fit(
        clients or four(), model=Point([5.0]), objective=quadratic, method=method, rounds=rounds, evaluate_every=1,
        clocks=clocks, lr=0.1,
    )  # fmt: skip
    return [line["time"] for line in result.history]


SLOW = {"times": "straggler", "stragglers": ["west"]}


def test_a_round_ends_with_the_slowest_and_a_delay():
    assert waited(cobo.FedAvg(), SLOW) == [0, 10, 20, 30, 40, 50, 60]
    assert waited(cobo.FedAvg(), {**SLOW, "delay": 2}, 2) == [0, 12, 24]
    assert waited(cobo.Oracle(), {**SLOW, "delay": 2}, 2) == [0, 12, 24]
    assert waited(cobo.Local(), {**SLOW, "delay": 2}, 2) == [0, 10, 20]  # sends nothing


def test_only_those_that_take_part_are_waited_for():
    expected = [0.0]
    for t in range(6):
        drawn = [float(draws.uniform(draws.combine(draws.key(0, "participation", n), t), 1)[0]) for n in NAMES]
        there = sorted(range(4), key=lambda k: drawn[k])[:2]
        expected.append(expected[-1] + (10 if 3 in there else 1))
    assert 1 in np.diff(expected)
    assert 10 in np.diff(expected)
    assert waited(cobo.FedAvg(participation=0.5), SLOW) == expected


def test_each_gradient_costs_when_gradients_are_counted():
    assert waited(cobo.Ditto(), {"count": "gradients"}, 2) == [0, 2, 4]
    assert waited(cobo.Ditto(), {"count": "rounds"}, 2) == [0, 1, 2]
    assert waited(cobo.FedAvg(local_steps=3), {"count": "gradients"}, 2) == [0, 3, 6]
    assert waited(cobo.FederatedClustering(), {"count": "gradients"}, 1) == [0, 4]
    # West's round is 10 s for each of its own gradient and its pairs'; the others have at most 1 + 2 * 3 gradients.
    expected = [0.0]
    for t in range(6):
        keys = [draws.key(0, "pair", n) for n in NAMES]
        asked = [
            (i, j)
            for i in range(4)
            for j in range(4)
            if i != j and float(draws.uniform(draws.combine(keys[i], keys[j], t), 1)[0]) < 1 / 4
        ]
        expected.append(expected[-1] + 10 * (1 + sum(3 in pair for pair in asked)))
    assert waited(cobo.CoBo.paper(), {**SLOW, "count": "gradients"}) == expected
    assert waited(cobo.CoBo.paper(), SLOW) == [0, 10, 20, 30, 40, 50, 60]


def test_who_exchanges_nothing_waits_for_nobody():
    clocks = {"jitter": 1.0}
    rounds = np.array([times(k=k, **clocks) for k in range(6)])
    assert waited(cobo.Local(), clocks)[1:] == pytest.approx(rounds.cumsum(0).max(1))
    assert waited(cobo.FedAvg(), clocks)[1:] == pytest.approx(rounds.max(1).cumsum())


def test_waiting_changes_no_model():
    without = small(method=cobo.CoBo())
    with_clocks = small(method=cobo.CoBo(), clocks={"times": "log-normal"})
    assert "time" not in without.history[-1]
    assert with_clocks.history[-1].pop("time") > 0
    assert with_clocks.history[-1] == {**without.history[-1], "seconds": with_clocks.history[-1]["seconds"]}
    for p, q in zip(without.models["c0"].parameters(), with_clocks.models["c0"].parameters(), strict=True):
        assert torch.equal(p, q)


# Nobody waits


def prepared(method, clients, clocks, *, rounds, lrs=None, start=5.0, lr=0.1):
    federation, state = started(clients, Point([start]), method, rounds=rounds, objective=quadratic, lr=lr)
    rates = [{"lr": x, "momentum": 0.0} for x in (lrs or [lr] * rounds)]
    return state, NonBlocking(federation, method, Clocks(blocking=False, **clocks), rates)


def advance(engine, state):
    engine.round(state)
    state.round += 1
    return engine.report()


def test_two_clients_of_speed_1_and_3_by_hand():
    clients = [point_client("fast", [1.0]), point_client("slow", [-1.0])]
    method = cobo.CoBo(rho=0.5, gamma=0.0, pull="mean")
    clocks = {"times": "straggler", "stragglers": ["slow"], "factor": 3, "copies": "always"}
    state, engine = prepared(method, clients, clocks, rounds=20)
    # 1 s: 5 - 0.1 * 4. 2 s: 4.6 + 0.05 * (5 - 4.6) - 0.1 * 3.6. Two steps are a round of the engine.
    assert advance(engine, state) == {"time": 2, "staleness": {"mean": 0.5, "max": 1, "left_out": 0}}
    assert state.X[:, 0].tolist() == pytest.approx([4.26, 5.0])
    # 3 s, both: fast 4.26 + 0.05 * (5 - 4.26) - 0.1 * 3.26; slow 5 + 0.05 * (4.26 - 5) - 0.1 * 6, on the copy of 2 s.
    assert advance(engine, state) == {"time": 3, "staleness": {"mean": 1.0, "max": 2, "left_out": 0}}
    assert state.X[:, 0].tolist() == pytest.approx([3.971, 4.363])


def test_a_copy_that_is_behind_pulls_once_and_one_that_is_not_always():
    clients = [point_client("fast", [1.0]), point_client("slow", [-1.0])]
    clocks = {"times": "straggler", "stragglers": ["slow"], "factor": 3}
    state, engine = prepared(cobo.CoBo(rho=0.5, gamma=0.0), clients, clocks, rounds=4)
    advance(engine, state)  # 2 s: 4.6 - 0.1 * 3.6, without a pull: slow's first copy has been used at 1 s
    assert state.X[:, 0].tolist() == pytest.approx([4.24, 5.0])
    assert advance(engine, state)["staleness"] == {"mean": 0.0, "max": 0, "left_out": 1}
    assert state.X[:, 0].tolist() == pytest.approx([4.24 - 0.324, 5 + 0.05 * (4.24 - 5) - 0.6])
    fast, slow = state.X[:, 0].tolist()
    # 4 s: the copy of 3 s is new to fast, which now has done all. From 6 s on slow is alone, and always pulled.
    fast = fast + 0.05 * (slow - fast) - 0.1 * (fast - 1)
    for _ in range(3):
        slow = slow + 0.05 * (fast - slow) - 0.1 * (slow + 1)
    advance(engine, state)
    advance(engine, state)
    assert state.X[:, 0].tolist() == pytest.approx([fast, slow])


CASES = {
    "plain": {},
    "delay": {"delay": 2},
    "long delay": {"delay": 7},
    "bound": {"staleness": 1},
    "bound 0 and delay": {"staleness": 0, "delay": 1},
    "gradients": {"count": "gradients"},
    "gradients and delay": {"count": "gradients", "delay": 1},
    "no catching up": {"catch_up": False},
    "copies for always": {"copies": "always"},
    "bound and copies for always": {"copies": "always", "staleness": 2, "delay": 1},
}


@pytest.mark.parametrize("sampling", ["constant", "every"])
@pytest.mark.parametrize("changes", CASES.values(), ids=CASES.keys())
def test_the_engine_does_what_the_slow_plain_simulation_does(tmp_path, sampling, changes):
    mus, speeds, rounds, lrs = [1.0, -1.0, 1.5], [[1], [3, 4], [2, 1, 5]], 25, np.linspace(0.1, 0.02, 25).tolist()
    clients = [point_client(name, [mu]) for name, mu in zip("abc", mus, strict=True)]
    rows = "".join(f"{c},{s}\n" for c, row in zip("abc", speeds, strict=True) for s in row)
    clocks = {**trace(tmp_path / "times.csv", "client,seconds\n" + rows), **changes}
    method = cobo.CoBo.paper(rho=0.4, gamma=0.15, sampling=sampling)
    state, engine = prepared(method, clients, clocks, rounds=rounds, lrs=lrs, start=0.3)
    keys = [draws.key(0, "pair", name) for name in "abc"]

    def asked(i, j, t):
        return sampling == "every" or float(draws.uniform(draws.combine(keys[i], keys[j], t), 1)[0]) < 1 / 3

    settings = {k: changes[k] for k in ("delay", "staleness", "catch_up") if k in changes}
    told = plain.nonblocking(
        mus, speeds, asked, start=0.3, rounds=rounds, lrs=lrs, rho=0.4, gamma=0.15,
        each=changes.get("count") == "gradients", once=changes.get("copies") != "always", **settings,
    )  # fmt: skip
    looked, compared, moved = [], 0, 0
    for now, steps, x, W, seen in told:
        looked += seen
        if steps < 3 * (state.round + 1):
            continue
        line = advance(engine, state)
        used = [age for age, was_used in looked if was_used]
        assert line["time"] == now
        assert state.X[:, 0].tolist() == pytest.approx(x, abs=1e-6)  # W is single precision
        off = ~np.eye(3, dtype=bool)
        assert state.tensors["weights"].numpy()[off] == pytest.approx(np.array(W)[off], abs=1e-6)
        assert line["staleness"]["mean"] == (pytest.approx(np.mean(used)) if used else None)
        assert line["staleness"]["max"] == (max(used) if used else None)
        assert line["staleness"]["left_out"] == len(looked) - len(used)
        looked, compared, moved = [], compared + 1, moved + bool((np.array(W) != 1).any())
    assert compared == rounds
    assert moved > 10


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        (load_experiment("digits", EXPERIMENTS).method("cobo"), {}),
        (cobo.CoBo.paper(rho=0.1), {"lr": 0.05, "schedule": "cosine"}),
        (cobo.CoBo(domain="simplex", self_weight=True), {"lr": 0.05, "rounds": 30}),
        (cobo.CoBo(ask="all", sampling="every"), {"rounds": 5}),
        (cobo.CoBo(gamma=2.0, switch=0.2, time_rate=1e-3), {}),
    ],
    ids=["default", "paper", "simplex", "all samples", "parted asked rarely"],
)
def test_clients_of_equal_speed_take_the_steps_of_the_run_without_clocks(method, changes):
    experiment = load_experiment("digits", EXPERIMENTS)
    parts = experiment.build(100)
    options = {**experiment.training("cobo", 100), "rounds": 60, "evaluate_every": 30, **changes}
    waits, does_not = (
        cobo.fit(parts.clients, model=lambda: parts.model().double(), method=method, **{**options, "clocks": clocks})
        for clocks in (None, {"blocking": False})
    )
    for name in waits.names:
        for p, q in zip(waits.models[name].parameters(), does_not.models[name].parameters(), strict=True):
            assert torch.allclose(p, q, rtol=0, atol=1e-5)  # W is single precision
    assert np.allclose(waits.weights, does_not.weights, atol=1e-5)
    assert (waits.weights != waits.weights[0, 1]).any()
    assert [line["time"] for line in does_not.history] == [line["round"] for line in waits.history]
    for what in ("gradients", "bytes"):
        assert waits.history[-1][what] == does_not.history[-1][what]


def test_running_statistics_are_those_of_the_run_without_clocks():
    model = lambda: nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()  # noqa: E731
    one, other = (small(model=model, momentum=0.9, clocks=c) for c in (None, {"blocking": False}))
    for name in one.names:
        for p, q in zip(one.models[name].state_dict().values(), other.models[name].state_dict().values(), strict=True):
            assert torch.allclose(p, q, rtol=0, atol=1e-6)


def test_everyone_does_all_rounds_and_the_same_pairs_are_asked():
    waits, does_not = (small(clocks={**SLOWEST, "blocking": b}, momentum=0.9) for b in (True, False))
    assert does_not.history[-1]["gradients"] == waits.history[-1]["gradients"]
    assert does_not.history[-1]["bytes"] == waits.history[-1]["bytes"]
    assert does_not.history[-1]["time"] == waits.history[-1]["time"] == 300
    assert [line["round"] for line in does_not.history] == [0, 5, 10, 15, 20, 25, 30]
    assert does_not.history[3]["time"] < waits.history[3]["time"] / 5


SLOWEST = {"times": "straggler", "stragglers": ["c1"]}
UNEVEN = {"blocking": False, "times": "log-normal", "jitter": 0.2, "delay": 1.3, "count": "gradients", "staleness": 9}


def test_same_seed_same_run_and_another_seed_another_run():
    one = small(clocks=UNEVEN, seed=1)
    assert same(one, small(clocks=UNEVEN, seed=1))
    assert not same(one, small(clocks=UNEVEN, seed=2))


def test_a_run_does_not_depend_on_the_order_of_clients():
    clients = [blobs(f"c{k}", seed=k, flip=k % 2 == 1) for k in range(4)]
    options = {"model": lambda: mlp(2, [6], 2).double(), "rounds": 30, "batch_size": 5, "clocks": UNEVEN}
    one, other = (cobo.fit(order, **options) for order in (clients, clients[::-1]))
    for name in one.names:
        for p, q in zip(one.models[name].parameters(), other.models[name].parameters(), strict=True):
            assert torch.allclose(p, q, rtol=0, atol=1e-6)
    assert one.history[-1]["time"] == other.history[-1]["time"]


@pytest.mark.parametrize(
    "changes",
    [
        {"clocks": UNEVEN, "momentum": 0.9, "schedule": "cosine"},
        {"clocks": {**SLOWEST, "blocking": False}, "schedule": lambda o: torch.optim.lr_scheduler.OneCycleLR(
            o, 0.2, total_steps=31), "momentum": 0.9},
        {"clocks": UNEVEN, "model": lambda: nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))},
        {"clocks": {"times": "log-normal", "jitter": 0.3, "delay": 1}, "method": cobo.FedAvg(participation=0.5)},
    ],
    ids=["uneven", "straggler and one cycle", "buffers", "waiting"],
)  # fmt: skip
def test_a_stopped_and_resumed_run_is_the_same_run(tmp_path, changes):
    whole = small(out=tmp_path / "whole", **changes)
    assert "time" in json.loads((tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()[-1])

    def stop(event):
        if event["event"] == "round" and event["round"] == 17:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted, match="after round 17"):
        small(out=tmp_path / "parts", listeners=[stop], **changes)
    assert same(whole, small(out=tmp_path / "parts", resume=True, **changes))


def test_a_step_whose_gradient_is_not_finite_is_left_out_and_the_client_named():
    poison = Poison()
    clients = [cobo.Client("sick", train=poison), *(blobs(n, seed=k) for k, n in enumerate("ab"))]
    events = []

    def listen(event):
        if event["event"] == "round":
            poison.bad = event["round"] in (3, 4)
        if event["event"] == "set aside":
            events.append(event["clients"])

    result = cobo.fit(
        clients, model=lambda: mlp(2, [4], 2), rounds=12, momentum=0.9, batch_size=3, listeners=[listen], lr=0.05,
        clocks={"blocking": False, "times": "straggler", "stragglers": ["a"], "factor": 3},
    )  # fmt: skip
    assert events
    assert all(names == ["sick"] for names in events)
    assert all(torch.isfinite(p).all() for model in result.models.values() for p in model.parameters())


def test_who_is_set_aside_neither_moves_nor_pulls():
    clients = [point_client("sick", [float("nan")]), point_client("well", [1.0]), point_client("too", [1.0])]
    state, engine = prepared(cobo.CoBo(rho=0.5, gamma=0.0), clients, {}, rounds=5)
    assert engine.round(state) == ["sick"]
    state.round += 1
    assert engine.round(state) == ["sick"]
    assert state.X[0].item() == 5.0
    assert state.X[1:, 0].tolist() == pytest.approx([1 + 4 * 0.81] * 2)  # as if they were two


def test_the_optimisers_step_of_some_rows_is_that_of_a_step_of_all():
    torch.manual_seed(0)
    _, state = started(four(), Point([1.0, 2.0]), cobo.Local(), objective=quadratic, momentum=0.9)
    _, whole = started(four(), Point([1.0, 2.0]), cobo.Local(), objective=quadratic, momentum=0.9)
    for _ in range(3):
        G = torch.randn(4, 2, dtype=torch.float64)
        whole.descend(G.clone())
        for rows in ([2, 0], [3], [1]):
            state.descend_some(torch.tensor(rows), G[rows])
    assert torch.equal(state.X, whole.X)


def test_a_pull_of_some_rows_is_that_of_the_pull_of_all():
    torch.manual_seed(0)
    X, W = torch.randn(5, 3, dtype=torch.float64), torch.rand(5, 5).fill_diagonal_(0)
    for pull in ("mean", "sum"):
        all_of_them = X.clone()
        mixing.pull_together(all_of_them, W, 0.1, pull=pull, step="explicit")
        assert torch.allclose(mixing.pulled_toward(X[[4, 1]], X, W[[4, 1]], 0.1, pull=pull), all_of_them[[4, 1]])


# Settings


def test_clocks_are_a_table_of_an_experiment_and_survive_being_written():
    changes = ['clocks={times="straggler", blocking=false}', "rounds=3"]
    experiment = load_experiment("digits", EXPERIMENTS, changes)
    assert experiment.clocks == Clocks(times="straggler", blocking=False)
    assert "clocks" not in load_experiment("digits", EXPERIMENTS).plain()
    assert "staleness" not in tomli_w.dumps(experiment.plain())
    assert type(experiment)(**experiment.plain()).clocks == experiment.clocks
    assert experiment.replace(rounds=4).clocks == experiment.clocks


def test_resuming_with_other_clocks_is_refused_by_name(tmp_path):
    small(out=tmp_path, clocks=UNEVEN)
    with pytest.raises(cobo.errors.CheckpointError, match=r"was run with clocks\.staleness = 9, not 8"):
        small(out=tmp_path, resume=True, clocks={**UNEVEN, "staleness": 8})


@pytest.mark.parametrize(
    ("clocks", "changes", "words"),
    [
        ({"times": "sundial"}, {}, "times = 'sundial'"),
        ({"seconds": 0}, {}, "seconds = 0 is not allowed; it should be greater than"),
        ({"seconds": float("nan")}, {}, "seconds = nan"),
        ({"seconds": float("inf")}, {}, "seconds = inf"),
        ({"spread": -1}, {}, "spread = -1"),
        ({"jitter": -0.1}, {}, "jitter = -0.1"),
        ({"factor": 0}, {}, "factor = 0"),
        ({"delay": -2}, {}, "delay = -2"),
        ({"count": "words"}, {}, "count = 'words'"),
        ({"blocking": False, "staleness": -1}, {}, "staleness = -1"),
        ({"staleness": 5}, {}, "staleness has a meaning only with blocking = false"),
        ({"speed": 5}, {}, "no setting 'speed'"),
        (7, {}, "clocks = 7"),
        ({"stragglers": ["c1"]}, {}, "only with times = 'straggler'"),
        ({"times": "straggler", "stragglers": ["c9"]}, {}, "client 'c9' is not known"),
        ({"times": "trace"}, {}, "need each other"),
        ({"trace": "x.csv"}, {}, "need each other"),
        ({"times": "trace", "trace": "not/there.csv"}, {}, "cannot be read"),
        ({"times": "log-normal", "spread": 1000}, {}, "spread = 1000"),
        ({"seconds": 1e308}, {}, "seconds = 1e+308"),
        ({"times": "trace", "trace": "a\0b"}, {}, "cannot be read"),
        ({"times": "trace", "trace": ""}, {}, "cannot be read"),
        ({"blocking": False}, {"roster": {"changes": [{"round": 3, "leave": "c1"}]}}, "a roster"),
        ({"blocking": False}, {"method": cobo.CoBo(mixing="implicit")}, "mixing = 'implicit'"),
        ({"blocking": False}, {"method": cobo.CoBo(mixing="coupled")}, "mixing = 'coupled'"),
        ({"blocking": False}, {"method": cobo.CoBo(output="uniform")}, "output = 'uniform'"),
        ({"blocking": False}, {"optimizer": "adamw"}, "optimizer = 'adamw'"),
        ({"blocking": False}, {"buffers": "shared"}, "buffers = 'shared'"),
        (
            {"blocking": False},
            {"method": cobo.CoBo(rho=5.0), "schedule": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda t: 1 + t)},
            "cannot be stable",
        ),
    ],
)
def test_wrong_clocks_get_one_clear_line(tmp_path, clocks, changes, words):
    with pytest.raises(ConfigError) as caught:
        small(clocks=clocks, **changes)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "should begin with the line: client,seconds"),
        ("client,seconds\n", "no row for client 'a'"),
        ("name,time\na,1\n", "should begin with the line: client,seconds"),
        ("client,seconds\na,1\n", "no row for client 'b'"),
        ("client,seconds\na,1\nb,1\nz,1\n", "line 4: client 'z' is not known"),
        ("client,seconds\na,1\nb,-1\n", "line 3: seconds = '-1'"),
        ("client,seconds\na,nan\nb,1\n", "line 2: seconds = 'nan'"),
        ("client,seconds\na,inf\nb,1\n", "line 2: seconds = 'inf'"),
        ("client,seconds\na,soon\nb,1\n", "line 2: seconds = 'soon'"),
        ("client,seconds\na\nb,1\n", "line 2: seconds = None"),
        (b"\xff\xfe\x00", "cannot be read"),
    ],
)
def test_a_trace_that_is_not_sound_is_refused_by_line(tmp_path, text, words):
    path = tmp_path / "times.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        times(["a", "b"], times="trace", trace=path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"clocks": {"blocking": False}, "method": cobo.CoBo(mixing="implicit")},
        {
            "clocks": {"blocking": False},
            "method": cobo.CoBo(rho=5.0),
            "schedule": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda t: 1 + t),
        },
    ],
    ids=["implicit", "a schedule that ends unstable"],
)
def test_refused_clocks_leave_no_folder_behind(tmp_path, changes):
    with pytest.raises(ConfigError):
        small(out=tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", [name for name in METHODS if name != "cobo"])
def test_other_methods_wait_under_the_clocks_of_a_cobo_that_does_not(name):
    waiting, other = (small(clocks={**SLOWEST, "blocking": b}, method=METHODS[name]()) for b in (True, False))
    assert [line["time"] for line in waiting.history] == [line["time"] for line in other.history]
    assert waiting.history[-1]["time"] > 30


def test_equal_speeds_follow_a_schedule_of_learning_rate_and_momentum():
    options = {"momentum": 0.9, "schedule": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.2, total_steps=31)}
    one, other = (small(clocks=c, **options) for c in (None, {"blocking": False}))
    for name in one.names:
        for p, q in zip(one.states[name].values(), other.states[name].values(), strict=True):
            assert torch.allclose(p, q, atol=1e-5)


def test_running_statistics_are_those_of_the_steps_taken():
    """Gradients of busy clients must not be computed ahead when that would move their statistics ahead of time."""
    model = {"model": lambda: nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))}
    federation, state = started(people(), model["model"], cobo.CoBo(), batch_size=5)
    engine = NonBlocking(federation, cobo.CoBo(), Clocks(times="straggler", blocking=False), [{"lr": 0.1}] * 30)
    for round in range(10):
        engine.round(state)
        state.round = round + 1
        done = engine.facts()["rounds"]
        assert federation.buffers["1.num_batches_tracked"].tolist() == done
    assert len(set(done)) > 1


def test_a_client_set_aside_moves_no_weights(tmp_path):
    broken = cobo.Client("x", train=(torch.full((8, 2), torch.nan), torch.zeros(8).long()), test=people()[0].test)
    method = cobo.CoBo(gamma=1.0, sampling="every")
    result = cobo.fit(
        [*people()[:2], broken], model=lambda: mlp(2, [6], 2), rounds=30, batch_size=5,
        clocks={"times": "straggler", "stragglers": ["c1"], "blocking": False}, method=method, out=tmp_path,
    )  # fmt: skip
    (newest,) = (tmp_path / "checkpoint").glob("*30/state.safetensors")
    W = load_file(newest)["method/weights"]
    assert (W[2] == 1).all()
    assert (W[:, 2] == 1).all()
    assert (result.weights[2] == 0).all()
    assert (result.weights[:, 2] == 0).all()
    assert torch.isfinite(torch.cat([t.reshape(-1) for t in result.states["c0"].values()])).all()


def test_symmetric_answers_move_both_directions_alike():
    result = small(clocks={"times": "log-normal", "spread": 1.5, "blocking": False}, method=cobo.CoBo(gamma=0.05))
    assert np.array_equal(result.weights, result.weights.T)


def test_one_answer_moves_a_weight_only_so_far():
    """Also when products are large, as the paper's are not bounded."""
    clocks = {"times": "straggler", "factor": 50.0, "blocking": False}
    method = cobo.CoBo.paper(gamma=0.01, sampling="every")
    result = small(clocks=clocks, method=method, evaluate_every=1)
    steps = [np.abs(b - a).max() for (_, a), (_, b) in zip(result.snapshots, result.snapshots[1:], strict=False)]
    assert max(steps) <= 0.5 + 1e-6


def test_a_trace_that_was_edited_is_another_run(tmp_path):
    path = tmp_path / "times.csv"
    path.write_text("client,seconds\n" + "".join(f"c{k},{k + 1}\n" for k in range(4)))
    options = {"clocks": {"times": "trace", "trace": path, "blocking": False}, "out": tmp_path / "run"}

    def stop(event):
        if event["event"] == "round" and event["round"] == 10:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        small(listeners=[stop], **options)
    path.write_text(path.read_text().replace("c0,1", "c0,9"))
    with pytest.raises(CheckpointError, match=r"was run with clocks\.trace ="):
        small(resume=True, **options)


def test_what_differs_between_clocks_is_named(tmp_path):
    small(clocks={"blocking": False, "staleness": 3}, out=tmp_path)
    with pytest.raises(CheckpointError, match=r"clocks\.staleness = 3, not 4"):
        small(clocks={"blocking": False, "staleness": 4}, out=tmp_path, resume=True)


def test_the_log_has_the_hour_and_the_simulated_time(tmp_path):
    small(clocks=SLOWEST, out=tmp_path)
    for line in map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines()):
        assert line["at"].startswith("20")
        assert isinstance(line.get("time", 0.0), float)


def test_a_newcomers_probe_takes_time_and_its_clock_starts_when_it_joins():
    roster = {"changes": [{"round": 4, "join": "c3"}]}
    times = {}
    for weights in ("probe", "one"):
        options = {"clocks": {"count": "gradients"}, "method": cobo.CoBo(sampling="time", time_rate=1e-9)}
        both = {"roster": {**roster, "weights": weights, "start": "common"}, "rounds": 6, "evaluate_every": 1}
        times[weights] = [line["time"] for line in small(**options, **both).history]
    assert times["one"] == [0, 1, 2, 3, 4, 5, 6]
    assert times["probe"] == [0, 1, 2, 3, 4, 8, 9]  # it answers with all three
    slow = {"times": "straggler", "stragglers": ["c3"]}
    local = small(clocks=slow, method=cobo.Local(), roster=roster, rounds=6, evaluate_every=1)
    assert [line["time"] for line in local.history] == [0, 1, 2, 3, 4, 14, 24]


def test_the_table_says_what_time_was_simulated(tmp_path):
    experiment = load_experiment("digits", EXPERIMENTS, ["rounds=6", "clocks.times=straggler", "target_accuracy=5"])
    run(experiment, "local", 0, tmp_path, resume=False, progress=False)
    results = summarise(tmp_path, "digits", 5.0)
    assert results["methods"]["local"]["time"] == 60
    assert results["methods"]["local"]["time_to_target"] == 0
    assert "Simulated time to target: local 0 of 60." in markdown(results)


def test_runs_under_other_clocks_need_another_folder_and_are_told_why(tmp_path):
    changes = ["rounds=2", "clocks.times=straggler"]
    run(load_experiment("digits", EXPERIMENTS, changes), "cobo", 0, tmp_path, resume=False, progress=False)
    other = load_experiment("digits", EXPERIMENTS, [*changes, "clocks.blocking=false"])
    with pytest.raises(CheckpointError, match=r"holds runs with clocks\.blocking = True, not False"):
        run(other, "cobo", 0, tmp_path, resume=True)


@pytest.mark.parametrize("blocking", [True, False])
def test_a_question_of_several_batches_takes_as_long_as_so_many_gradients(blocking):
    clients = [blobs(name, seed=k, samples=40) for k, name in enumerate(NAMES)]
    times = {}
    for ask in (1, 5, "all"):
        result = cobo.fit(
            clients, model=lambda: nn.Linear(2, 2), method=cobo.CoBo(sampling="every", ask=ask), rounds=10,
            batch_size=4, clocks={"count": "gradients", "blocking": blocking},
        )  # fmt: skip
        times[ask] = result.history[-1]["time"]
    others = len(NAMES) - 1
    assert times == {1: 10 * (1 + others), 5: 10 * (1 + 5 * others), "all": 10 * (1 + 10 * others)}
