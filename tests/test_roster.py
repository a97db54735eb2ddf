"""Parties join and leave: who comes and goes changes nothing for the others but whom they can learn from."""

import json
import os
import signal

import numpy as np
import pytest
import torch
from conftest import blobs
from safetensors.torch import load_file
from torch import nn

import cobo
from cobo.errors import CheckpointError, ConfigError, Interrupted
from cobo.experiments import EXPERIMENTS, load_experiment
from cobo.experiments.runner import run
from cobo.federation import Federation
from cobo.methods import METHODS
from cobo.models import mlp
from cobo.report.summary import summarise
from cobo.training.membership import Membership


def people(count: int = 4):
    return [blobs(f"c{k}", seed=k, flip=k % 2 == 1, group=k % 2) for k in range(count)]


def changes(*events):
    return [dict(zip(("round", verb), (round, name), strict=True)) for round, verb, name in events]


def small(clients=None, *events, roster=None, **options):
    settings = {"model": lambda: mlp(2, [6], 2), "rounds": 30, "batch_size": 5, "lr": 0.1, "evaluate_every": 5}
    roster = cobo.Roster(**{"changes": changes(*events), **(roster or {})})
    return cobo.fit(clients or people(), roster=roster, **{**settings, **options})


def weights_of(result, name):
    return torch.cat([t.reshape(-1) for t in result.states[name].values()])


def rounds_of(result, name):
    k = result.names.index(name)
    return [line["round"] for line in result.history if line["client_loss"][k] is not None]


# The roster itself


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([(10, "leave", "nobody")], "there is no client 'nobody'; there are: c0, c1, c2, c3"),
        ([(10, "join", "c1"), (5, "leave", "c1")], "'c1' leaves at round 5, before it joins at round 10"),
        ([(5, "leave", "c1"), (20, "leave", "c1")], "'c1' leaves at round 20, but it is not there then"),
        ([(5, "join", "c1"), (20, "join", "c1")], "'c1' joins at round 20, but it is already there"),
        ([(30, "leave", "c1")], "'c1' leaves at round 30, but the run has only rounds 0 to 29"),
        ([(9, "leave", f"c{k}") for k in range(4)], "nobody is there from round 9 on"),
        ([(9, "join", f"c{k}") for k in range(4)], "nobody is there from round 0 on"),
        ([(9, "leave", "c1"), (9, "join", "c1")], "'c1' changes twice at round 9"),
        ([(-3, "leave", "c1")], "round = -3 is not allowed; it should be greater than or equal to 1"),
        ([(0, "join", "c1")], "round = 0 is not allowed"),
    ],
)
def test_a_roster_that_cannot_be_followed_is_refused_in_one_line(tmp_path, events, message):
    with pytest.raises(ConfigError, match=message) as caught:
        small(None, *events, out=tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("roster", "message"),
    [
        ({"changes": [{"round": 3}]}, "either join or leave"),
        ({"changes": [{"round": 3, "join": "a", "leave": "b"}]}, "either join or leave"),
        ({"changes": {"round": 3, "join": "a"}}, "a list such as"),
        ({"changes": "soon"}, "a list such as"),
        ({"changes": [{"round": "soon", "join": "a"}]}, "changes.0: Change: round = 'soon' is not allowed"),
        ({"start": "peers", "weights": "one"}, "start = 'peers' needs weights = 'probe'"),
        ({"start": "zero"}, "start = 'zero' is not allowed"),
        ({"models": {"a": "a.safetensors"}}, "models are used with start = 'own' only"),
    ],
)
def test_a_malformed_roster_is_refused_in_one_line(roster, message):
    with pytest.raises(ConfigError, match=message) as caught:
        cobo.Roster(**roster)
    assert "\n" not in str(caught.value)


def test_own_models_are_asked_for_before_the_run_starts(tmp_path):
    def refused(match, **roster):
        with pytest.raises(ConfigError, match=match):
            small(None, (10, "join", "c3"), roster={"start": "own", **roster}, out=tmp_path / "run")

    refused("'c3' brings no model; name one in roster.models")
    refused("c3.safetensors, cannot be read as safetensors", models={"c3": tmp_path / "c3.safetensors"})
    refused("the model of 'c3' has nothing for '1.weight'", models={"c3": {"a": torch.zeros(2)}})
    refused("is a list; it should be a module, a state_dict or the path", models={"c3": [1, 2]})
    good = mlp(2, [6], 2).state_dict()
    refused("has a list for '1.weight', not a tensor", models={"c3": {**good, "1.weight": [1.0]}})
    bad = {**good, "1.weight": torch.full((6, 2), torch.nan)}
    refused("the model of 'c3' has values that are not finite", models={"c3": bad})
    refused("has whole numbers for '1.weight'", models={"c3": {**good, "1.weight": good["1.weight"].int()}})
    refused(r"has \[5, 2\] for '1.weight'; it should be of shape \[6, 2\]", models={"c3": mlp(2, [5], 2)})
    refused("there is no client 'c9'", models={"c9": mlp(2, [6], 2)})
    assert not (tmp_path / "run").exists()


def test_what_grows_unstable_with_a_newcomer_is_refused_before_the_start():
    method = cobo.CoBo(pull="sum", rho=5.5)  # eta rho n < 2 holds for three clients only
    small(people(3), method=method)
    with pytest.raises(ConfigError, match="and 4 clients: mixing = 'explicit' needs"):
        small(None, (10, "join", "c3"), method=method)


# Those who stay


@pytest.mark.parametrize("method", [cobo.Local(), cobo.CoBo(rho=0.0), cobo.CoBo.paper(rho=0.0)])
def test_others_train_as_if_nobody_came_or_went(method):
    """Without a pull, models, batches and randomness of those who stay are those of a run without the others."""
    model = {"model": lambda: nn.Sequential(nn.Linear(2, 5), nn.BatchNorm1d(5), nn.Dropout(0.2), nn.Linear(5, 2))}
    quiet = small(people(2), method=method, momentum=0.9, **model)
    busy = small(
        None, (7, "join", "c2"), (11, "leave", "c2"), (13, "join", "c3"), (20, "join", "c2"),
        method=method, momentum=0.9, **model,
    )  # fmt: skip
    for name in ("c0", "c1"):
        assert torch.allclose(weights_of(quiet, name), weights_of(busy, name), atol=1e-6)


def test_pairs_of_those_who_stay_are_drawn_as_before():
    drawn = {}
    for events in ((), ((7, "join", "c2"), (13, "join", "c3"))):
        asked = drawn.setdefault(bool(events), {})
        original = Federation.gradients

        def spy(self, models, clients=None, round=0, *, pairs=None, asked=asked, original=original, **options):
            names = self.names
            asked[round] = {frozenset((names[i], names[j])) for i, j in pairs if {names[i], names[j]} == {"c0", "c1"}}
            return original(self, models, clients, round, pairs=pairs, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Federation, "gradients", spy)
            small(people() if events else people(2), *events, method=cobo.CoBo(sampling="time", time_rate=5.0))
    assert drawn[False] == drawn[True]
    assert 0 < sum(map(bool, drawn[True].values())) < 30


def test_a_pair_is_as_old_as_its_younger_client():
    """Time-dependent sampling asks a newcomer often at first, however late it comes."""
    asked = []
    original = Federation.gradients

    def spy(self, models, clients=None, round=0, *, pairs=None, **options):
        asked.append((round, {self.names[k] for k in pairs.ravel()}))
        return original(self, models, clients, round, pairs=pairs, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Federation, "gradients", spy)
        small(None, (200, "join", "c3"), method=cobo.CoBo(sampling="time"), rounds=220, evaluate_every=50)
    assert all("c3" in who for round, who in asked if 200 <= round < 202)
    assert sum(bool(who - {"c3"}) for round, who in asked if 100 <= round < 200) < 20


# Those who come


@pytest.mark.parametrize("start", ["common", "mean", "own", "peers"])
def test_a_newcomer_begins_where_the_roster_says(start):
    begun, own = {}, mlp(2, [6], 2)
    original = cobo.Local.round

    def spy(self, state, federation):
        begun[state.round] = (state.X.clone(), list(federation.names))
        return original(self, state, federation)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cobo.Local, "round", spy)
        models = {"models": {"c1": own}} if start == "own" else {}
        small(None, (10, "join", "c1"), (10, "leave", "c3"), method=cobo.Local(), roster={"start": start, **models})
    (first, _), (before, _), (X, names) = begun[0], begun[9], begun[10]
    assert names == ["c0", "c1", "c2"]
    expected = {
        "common": first[0],
        "peers": first[0],  # Local has none
        "mean": X[[0, 2]].mean(0),  # without the one that leaves at the same time
        "own": torch.cat([p.detach().reshape(-1) for p in own.parameters()]),
    }[start]
    assert torch.allclose(X[1], expected, atol=1e-6)
    assert not torch.equal(before[0], X[0])


def opposed():
    """Two groups that have learned for a while when the newcomer of the first one comes."""
    return [
        blobs(name, seed=k, flip=name.startswith("b"), group=name[0]) for k, name in enumerate(("a1", "a2", "b1", "a3"))
    ]


@pytest.mark.parametrize("pairs", ["symmetric", "ordered"])
def test_one_probing_round_tells_friend_from_foe(pairs):
    method = cobo.CoBo(gamma=0.1, pairs=pairs)
    result = small(opposed(), (200, "join", "a3"), method=method, rounds=201, evaluate_every=201)
    friend, foe = result.weights[3, [0, 1]], result.weights[[2, 3], [3, 2]]
    assert (friend > 0.9).all()
    assert (result.weights[[0, 1], 3] > 0.9).all()
    assert (foe < 0.1).all()
    assert result.history[-1]["client_accuracy"][3] > 95  # it begins at the mean of its peers
    one = small(
        opposed(), (200, "join", "a3"), method=method.replace(sampling="time", time_rate=1e-9), rounds=201,
        evaluate_every=201, roster={"start": "common", "weights": "one"},
    )  # fmt: skip
    assert (np.delete(one.weights[3], 3) == 1).all()
    assert (np.delete(one.weights[:, 3], 3) == 1).all()


@pytest.mark.parametrize("pairs", ["symmetric", "ordered"])
def test_a_newcomer_takes_nothing_from_the_simplex_of_others(pairs):
    method = cobo.CoBo(domain="simplex", gamma=0.5, sampling="time", time_rate=1e-9, pairs=pairs)
    result = small(None, (10, "join", "c3"), method=method, evaluate_every=1)
    before, after = (dict(result.snapshots)[r] for r in (10, 11))
    assert np.allclose(after[:3, :3], before[:3, :3])
    assert np.allclose(after.sum(1), 1)
    assert (after[:3, 3] == 0).all()


def test_newcomers_buffers_are_those_of_their_peers():
    model = {"model": lambda: nn.Sequential(nn.Linear(2, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))}
    result = small(opposed(), (25, "join", "a3"), method=cobo.CoBo(), rounds=26, **model)
    counts = [int(result.states[name]["1.num_batches_tracked"]) for name in ("a1", "a3")]
    assert counts[1] >= 25  # not one, as it would have by itself
    assert counts[0] == 26


@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_goes_on_when_clients_come_and_go(tmp_path, name):
    method = METHODS[name]() if name != "fc" else cobo.FederatedClustering(client_momentum=0.5)
    events = ((7, "join", "c3"), (9, "leave", "c0"), (16, "leave", "c1"), (16, "leave", "c2"), (22, "join", "c1"))
    options = {"method": method, "momentum": 0.9}
    whole = small(None, *events, out=tmp_path / "whole", **options)
    assert whole.present == ["c1", "c3"]
    assert rounds_of(whole, "c0") == [0, 5]
    assert rounds_of(whole, "c3") == [10, 15, 20, 25, 30]
    assert rounds_of(whole, "c1") == [0, 5, 10, 15, 25, 30]
    assert set(whole.models) == {"c0", "c1", "c2", "c3"}
    assert sorted(n for group in whole.groups() for n in group) == ["c1", "c3"]
    # Stopped while few are there, and gone on with: the same run, bit for bit.

    def stop(event):
        if event["event"] == "round" and event["round"] == 18:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        small(None, *events, out=tmp_path / "parts", listeners=[stop], **options)
    resumed = small(None, *events, out=tmp_path / "parts", resume=True, **options)
    for client in whole.names:
        assert torch.equal(weights_of(whole, client), weights_of(resumed, client))
    assert (whole.weights is None) or np.array_equal(whole.weights, resumed.weights)
    assert [r for r, _ in whole.snapshots] == [r for r, _ in resumed.snapshots]
    again = cobo.load(tmp_path / "parts")
    assert again.present == ["c1", "c3"]
    assert again.changes[:2] == [{"round": 7, "joined": ["c3"]}, {"round": 9, "left": ["c0"]}]
    assert again.groups() == whole.groups()


def test_the_oracle_gives_a_newcomer_its_groups_model():
    result = small(None, (10, "join", "c2"), method=cobo.Oracle(), momentum=0.9)
    assert torch.equal(weights_of(result, "c0"), weights_of(result, "c2"))


# Those who go


def test_a_leaver_keeps_its_model_on_disk_and_can_come_back_to_it(tmp_path):
    gone = small(None, (10, "leave", "c1"), method=cobo.Local(), out=tmp_path / "run")
    short = small(method=cobo.Local(), rounds=10, evaluate_every=5)
    file = load_file(tmp_path / "run" / "models" / "c1.safetensors")
    assert all(torch.equal(file[key], value) for key, value in gone.states["c1"].items())
    assert torch.allclose(weights_of(gone, "c1"), weights_of(short, "c1"))
    assert gone.present == ["c0", "c2", "c3"]
    # With its own model and no momentum to lose, ten rounds away are ten rounds of training less, and no more.
    back = small(None, (10, "leave", "c1"), (20, "join", "c1"), method=cobo.Local(), roster={"start": "own"})
    assert not torch.equal(weights_of(back, "c1"), weights_of(gone, "c1"))
    k = back.names.index("c1")
    losses = {line["round"]: line["client_loss"][k] for line in back.history}
    assert losses[15] is None
    assert losses[25] < losses[10]


def test_the_file_of_a_leaver_is_there_while_the_run_goes_on(tmp_path):
    found = {}

    def look(event):
        if event["event"] == "left":
            found[event["round"]] = (event["clients"], (tmp_path / "run" / "models" / "c1.safetensors").exists())

    small(None, (10, "leave", "c1"), out=tmp_path / "run", listeners=[look])
    assert found == {10: (["c1"], True)}


def test_checkpoints_hold_the_roster(tmp_path):
    small(None, (10, "join", "c3"), (20, "leave", "c0"), out=tmp_path / "run")
    newest = max((tmp_path / "run" / "checkpoint").glob("round-*"))
    facts = json.loads((newest / "state.json").read_text())["facts"]
    assert facts["present"] == ["c1", "c2", "c3"]
    assert facts["since"] == [0, 0, 10]
    assert facts["changes"] == [{"round": 10, "joined": ["c3"]}, {"round": 20, "left": ["c0"]}]
    assert facts["roster"]["changes"][0] == {"round": 10, "join": "c3", "leave": None}
    assert "left/c0/1.weight" in load_file(newest / "state.safetensors")


def test_leaving_leaves_weights_among_the_others_alone():
    result = small(
        None, (10, "leave", "c3"), method=cobo.CoBo(sampling="time", time_rate=1e-9, gamma=1.0), evaluate_every=1,
    )  # fmt: skip
    before, after = (dict(result.snapshots)[r] for r in (10, 11))
    assert np.array_equal(before[:3, :3], after[:3, :3])
    assert (after[3] == 0).all()
    assert (after[:, 3] == 0).all()


def test_uniform_output_and_a_roster_do_not_go_together():
    with pytest.raises(ConfigError, match="output = 'uniform'"):
        small(None, (10, "leave", "c1"), method=cobo.CoBo(output="uniform"))


def test_a_simplex_without_self_weight_needs_two():
    events = [(10, "leave", f"c{k}") for k in range(3)]
    with pytest.raises(ConfigError, match="one alone has no peer"):
        small(None, *events, method=cobo.CoBo(domain="simplex"))
    small(None, *events, method=cobo.CoBo(domain="simplex", self_weight=True))


# Between two starts of a run


def stopped(tmp_path, clients, round=12, **options):
    def stop(event):
        if event["event"] == "round" and event["round"] == round:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        small(clients, out=tmp_path / "run", listeners=[stop], **options)


@pytest.mark.parametrize("name", list(METHODS))
def test_a_run_goes_on_with_a_client_more_and_a_client_less(tmp_path, name):
    options = {"method": METHODS[name](), "momentum": 0.9}
    stopped(tmp_path, people(3), **options)
    seen = []
    later = [people()[3], people()[2], people()[0]]  # c1 is gone, c3 is new, and the order is another
    result = small(later, out=tmp_path / "run", resume=True, listeners=[seen.append], **options)
    assert result.names == result.present == ["c3", "c2", "c0"]
    events = [(e["event"], e["round"], e["clients"]) for e in seen if e["event"] in ("joined", "left")]
    assert events == [("left", 12, ["c1"]), ("joined", 12, ["c3"])]
    assert rounds_of(result, "c3") == [15, 20, 25, 30]
    assert rounds_of(result, "c0") == [0, 5, 10, 15, 20, 25, 30]
    assert (tmp_path / "run" / "models" / "c1.safetensors").exists()
    assert result.weights is None or result.weights.shape == (3, 3)
    assert cobo.load(tmp_path / "run").names == ["c3", "c2", "c0"]


def test_a_run_that_stops_just_before_someone_joins_counts_the_probe_all_the_same(tmp_path):
    joins = {"changes": changes((10, "join", "c1"))}
    stopped(tmp_path, people(), round=10, roster=joins)
    again = small(people(), out=tmp_path / "run", resume=True, roster=joins)
    whole = small(people(), roster=joins)
    assert [line["gradients"] for line in again.history] == [line["gradients"] for line in whole.history]


def test_those_who_stay_do_not_notice_a_change_between_starts(tmp_path):
    options = {"method": cobo.Local(), "momentum": 0.9}
    stopped(tmp_path, people(3), **options)
    changed = small([people()[0], people()[3]], out=tmp_path / "run", resume=True, **options)
    whole = small(people(3), **options)
    assert torch.allclose(weights_of(changed, "c0"), weights_of(whole, "c0"), atol=1e-6)


def test_weights_among_those_who_stay_go_on_in_another_order(tmp_path):
    quiet = cobo.CoBo(sampling="time", time_rate=1e-9)
    stopped(tmp_path, people(3), method=quiet)
    newest = max((tmp_path / "run" / "checkpoint").glob("round-*"))
    W = load_file(newest / "state.safetensors")["method/weights"]
    result = small([people()[2], people()[0]], out=tmp_path / "run", resume=True, method=quiet)
    assert result.weights[0, 1] == W[2, 0]
    assert all(w.shape == (2, 2) for _, w in result.snapshots)


def test_nobody_can_join_a_finished_run_and_a_run_of_strangers_is_not_resumed(tmp_path):
    small(people(3), out=tmp_path / "run")
    kept = ("result.json", "models/*", "checkpoint/*/*")
    before = {path: path.read_bytes() for kind in kept for path in (tmp_path / "run").glob(kind)}
    with pytest.raises(CheckpointError, match="finished, so 'c3' can no longer join"):
        small(people(4), out=tmp_path / "run", resume=True)
    with pytest.raises(CheckpointError, match="finished, so 'c2' can no longer leave"):
        small(people(2), out=tmp_path / "run", resume=True)
    assert before == {path: path.read_bytes() for kind in kept for path in (tmp_path / "run").glob(kind)}
    assert "left" not in (tmp_path / "run" / "events.jsonl").read_text()
    stopped(tmp_path / "other", people(3))
    with pytest.raises(CheckpointError, match="none of the clients of this run"):
        small([blobs("x", seed=1, group=0), blobs("y", seed=2, group=1)], out=tmp_path / "other" / "run", resume=True)


def test_who_was_to_come_and_go_before_the_run_got_there_is_refused(tmp_path):
    stopped(tmp_path, people(3))
    with pytest.raises(
        CheckpointError, match="'c3' was to take part before round 12, but the run got there without it"
    ):
        small(None, (5, "join", "c3"), (10, "leave", "c3"), out=tmp_path / "run", resume=True)


def test_uniform_output_is_not_lost_by_other_clients(tmp_path):
    method = cobo.CoBo(output="uniform")
    stopped(tmp_path, people(3), round=28, method=method)
    for others in (people(2), people(4), people(3)[::-1]):
        with pytest.raises(CheckpointError, match="output = 'uniform'"):
            small(others, out=tmp_path / "run", resume=True, method=method)
    small(people(3), out=tmp_path / "run", resume=True, method=method)


@pytest.mark.parametrize(("stop", "before", "after"), [(2, 2, 3), (12, 2, 3), (2, 3, 2), (12, 3, 2)])
def test_ifca_keeps_its_number_of_centres_when_groups_come_and_go(tmp_path, stop, before, after):
    def party(groups):
        return [blobs(f"c{k}", seed=k, flip=k == 1, group=k) for k in range(groups)] + [blobs("d", seed=9, group=0)]

    method = cobo.IFCA(trial=0.2)
    stopped(tmp_path, party(before), round=stop, method=method)
    result = small(party(after), out=tmp_path / "run", resume=True, method=method)
    assert len(result.models) == after + 1
    trained = max((tmp_path / "run" / "checkpoint").glob("round-*"))
    assert len(load_file(trained / "state.safetensors")["models"]) == before


def test_one_of_two_on_a_simplex_is_replaced_between_starts(tmp_path):
    method = cobo.CoBo(domain="simplex")
    stopped(tmp_path, people(2), method=method)
    result = small([people()[0], people()[2], people()[3]], out=tmp_path / "run", resume=True, method=method)
    assert np.allclose(result.weights.sum(1), 1)


def test_statistics_come_back_with_a_client_that_missed_a_start(tmp_path):
    model = {"model": lambda: nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))}
    options = {"method": cobo.Local(), **model}
    stopped(tmp_path, people(3), round=10, **options)
    left = small(people(3), method=cobo.Local(), rounds=10, **model).states["c2"]

    def stop(event):
        if event["event"] == "round" and event["round"] == 20:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        small(people(2), out=tmp_path / "run", resume=True, listeners=[stop], **options)
    back = {}
    original = cobo.Local.round

    def spy(self, state, federation):
        back.setdefault(state.round, {name: rows.clone() for name, rows in federation.buffers.items()})
        return original(self, state, federation)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cobo.Local, "round", spy)
        small(people(3), out=tmp_path / "run", resume=True, roster={"start": "own"}, **options)
    for name, rows in back[20].items():
        assert torch.allclose(rows[2], left[name]), name


def test_a_client_with_other_data_is_not_taken_for_the_same(tmp_path):
    stopped(tmp_path, people(3))
    x, y = people()[1].train.fields
    changed = cobo.Client("c1", train=(x, 1 - y), test=people()[1].test, group=1)
    with pytest.raises(CheckpointError, match="client 'c1' has other training samples"):
        small([people()[0], changed, people()[2]], out=tmp_path / "run", resume=True)
    fewer = cobo.Client("c1", train=(x[:-1], y[:-1]), test=people()[1].test, group=1)
    with pytest.raises(CheckpointError, match="client 'c1' has other training samples"):
        small([people()[0], fewer, people()[2]], out=tmp_path / "run", resume=True)


def test_a_run_does_not_go_on_with_other_test_samples(tmp_path):
    """Or its history would mix two judgements."""
    stopped(tmp_path, people(3))
    one, other = people()[1], people()[2]
    for test in (other.test, None):
        changed = cobo.Client("c1", train=one.train, test=test, group=1)
        with pytest.raises(CheckpointError, match="client 'c1' has other test samples than when this run was started"):
            small([people()[0], changed, people()[2]], out=tmp_path / "run", resume=True)
    small(people(3), out=tmp_path / "run", resume=True)


def test_a_run_goes_on_from_a_checkpoint_that_says_nothing_of_test_samples(tmp_path, monkeypatch):
    write = Membership.facts
    with monkeypatch.context() as patch:
        patch.setattr(Membership, "facts", lambda self: {k: v for k, v in write(self).items() if k != "tests"})
        stopped(tmp_path, people(3))
    assert small(people(3), out=tmp_path / "run", resume=True).history[-1]["round"] == 30


# Broken clients, and what belongs to a model


@pytest.mark.parametrize("name", ["fedavg", "ifca", "finetune", "local", "cobo"])
def test_nobody_else_is_set_aside_when_someone_leaves(name):
    nothing = (torch.full((8, 2), torch.nan), torch.zeros(8).long())
    sound = blobs("b", seed=1, group=1)
    first, last = (cobo.Client(n, train=nothing, test=sound.test, group=0) for n in "ac")
    result = small([first, sound, last], (10, "leave", "c"), method=METHODS[name]())
    assert result.history[-1]["round"] == 30
    assert result.history[-1]["client_loss"][1] is not None


def test_a_leaver_whose_model_has_overflowed_does_not_cost_the_others_their_result():
    spoiled = []
    original = cobo.Local.round

    def spoil(self, state, federation):
        aside = original(self, state, federation)
        if state.round == 9:
            state.X[1] = torch.inf
            spoiled.append(federation.names[1])
        return aside

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cobo.Local, "round", spoil)
        result = small(None, (10, "leave", "c1"), method=cobo.Local())
    assert spoiled == ["c1"]
    assert result.present == ["c0", "c2", "c3"]
    assert not torch.isfinite(weights_of(result, "c1")).any()
    assert result.history[-1]["accuracy"] is not None


def test_who_gives_no_answer_to_a_probe_is_not_connected():
    clients = opposed()
    broken = cobo.Client("a2", train=(torch.full((40, 2), torch.nan), torch.zeros(40).long()), test=clients[0].test)
    result = small([clients[0], broken, clients[3]], (25, "join", "a3"), method=cobo.CoBo(), rounds=26)
    assert result.weights[2, 1] == 0
    assert result.weights[2, 0] == 1
    assert torch.isfinite(weights_of(result, "a3")).all()


def test_newcomers_are_not_probed_while_all_wait():
    to_the_foe = {}
    for wait in (0.9, 0.4):
        method = cobo.CoBo(wait=wait, gamma=0.0)
        result = small(opposed(), (200, "join", "a3"), method=method, rounds=401, evaluate_every=401)
        to_the_foe[wait] = result.weights[result.names.index("a3"), result.names.index("b1")]
    assert to_the_foe == {0.9: 1, 0.4: 0}


@pytest.mark.parametrize("name", ["fedavg", "oracle", "ifca", "cobo"])
def test_a_newcomer_gets_the_statistics_that_belong_to_its_model(name):
    """Inputs are far from zero, so that a trained model with the initial statistics would guess."""

    def shifted(client):
        (x, y), (xt, yt) = client.train.fields, client.test.fields
        return cobo.Client(client.name, train=(x + 20, y), test=(xt + 20, yt), group=0)

    clients = [shifted(blobs(f"c{k}", seed=k)) for k in range(4)]
    model = {"model": lambda: nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))}
    result = small(clients, (60, "join", "c3"), method=METHODS[name](), rounds=61, evaluate_every=61, **model)
    assert result.history[-1]["client_accuracy"][3] > 85


@pytest.mark.parametrize("name", list(METHODS))
def test_everyone_is_replaced_at_once(name):
    model = {"model": lambda: nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))}
    events = [(10, "leave", "c0"), (10, "leave", "c1"), (10, "join", "c2"), (10, "join", "c3")]
    for start in ("mean", "peers"):
        result = small(None, *events, method=METHODS[name](), roster={"start": start}, **model)
        assert result.present == ["c2", "c3"]


@pytest.mark.parametrize("solver", ["lazy", "projected", "frank-wolfe"])
@pytest.mark.parametrize("self_weight", [False, True])
def test_rows_on_a_simplex_sum_to_one_through_all_changes(solver, self_weight):
    method = cobo.CoBo(domain="simplex", solver=solver, self_weight=self_weight, gamma=0.1)
    events = [(7, "leave", "c1"), (12, "join", "c3"), (20, "leave", "c0")]
    result = small(None, *events, method=method, evaluate_every=1)
    for (round, W), line in zip(result.snapshots, result.history, strict=True):
        here = [k for k, loss in enumerate(line["client_loss"]) if loss is not None]
        assert np.allclose(W[np.ix_(here, here)].sum(1), 1, atol=1e-5), round


@pytest.mark.parametrize("pairs", ["symmetric", "ordered"])
def test_a_probe_on_a_simplex_looks_for_others(pairs):
    method = cobo.CoBo(domain="simplex", self_weight=True, sampling="time", time_rate=1e-9, pairs=pairs)
    clients = [blobs(f"c{k}", seed=k) for k in range(4)]
    result = small(clients, (20, "join", "c3"), method=method, rounds=21, evaluate_every=21)
    assert result.weights[3, 3] < 1
    assert result.weights[3].sum() == pytest.approx(1)


def test_with_more_clients_a_pair_is_asked_more_rarely_but_at_no_other_time():
    """The draw of a pair is its own; what it is compared with, rate / n, is not."""
    asked = {}
    original = Federation.gradients

    for count in (2, 4):
        heard = asked.setdefault(count, set())

        def spy(self, models, clients=None, round=0, *, pairs=None, heard=heard, original=original, **options):
            if any({self.names[i], self.names[j]} == {"c0", "c1"} for i, j in pairs):
                heard.add(round)
            return original(self, models, clients, round, pairs=pairs, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Federation, "gradients", spy)
            small(people(count), method=cobo.CoBo(rate=0.5))
    assert asked[4] < asked[2]


# Experiments


def test_an_experiment_file_has_a_roster_and_keeps_it(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        'experiment = "digits"\nrounds = 12\nevaluate_every = 4\n[roster]\nstart = "mean"\n'
        'changes = [{round = 4, join = "group0-client1"}, {round = 8, leave = "group3-client0"}]\n'
    )
    experiment = load_experiment(str(file), EXPERIMENTS)
    result = run(experiment, "cobo", 0, tmp_path / "out", resume=False, progress=False)
    assert rounds_of(result, "group0-client1") == [8, 12]
    assert rounds_of(result, "group3-client0") == [0, 4, 8]
    again = load_experiment(str(tmp_path / "out" / "experiment.toml"), EXPERIMENTS)
    assert again.roster == experiment.roster
    with pytest.raises(ConfigError, match="there is no client 'group9-client9'"):
        run(experiment.replace(roster={"changes": changes((3, "leave", "group9-client9"))}), "cobo", 0,
            tmp_path / "other", resume=False)  # fmt: skip


def test_clients_are_added_and_removed_in_the_configuration(tmp_path):
    def started(*settings, resume=True):
        experiment = load_experiment("digits", EXPERIMENTS, ["rounds=20", "evaluate_every=5", "groups=2", *settings])

        def stop(event):
            if event["event"] == "round" and event["round"] == 10 and not resume:
                os.kill(os.getpid(), signal.SIGINT)

        return run(experiment, "cobo", 0, tmp_path / "out", resume=resume, progress=False, listeners=[stop])

    with pytest.raises(Interrupted):
        started(resume=False)
    result = started('without=["group1-client0"]', "clients_per_group=3")
    assert "group1-client0" not in result.names
    assert rounds_of(result, "group0-client2") == [15, 20]
    assert rounds_of(result, "group0-client0") == [0, 5, 10, 15, 20]
    stored = (tmp_path / "out" / "experiment.toml").read_text()
    assert "clients_per_group = 3" in stored
    assert "group1-client0" in stored
    with pytest.raises(ConfigError, match="without: there is no client 'nobody'"):
        load_experiment("digits", EXPERIMENTS, ['without=["nobody"]']).parts(0)


def test_data_of_those_who_stay_are_the_same_with_more_clients():
    few = load_experiment("digits", EXPERIMENTS).parts(3).clients
    many = load_experiment("digits", EXPERIMENTS, ["clients_per_group=4", "groups=6"]).parts(3).clients
    theirs = {client.name: client for client in many}
    for client in few:
        for mine, other in zip(client.train.fields, theirs[client.name].train.fields, strict=True):
            assert torch.equal(mine, other)


def test_a_file_of_an_experiment_says_all_that_was_set_and_nothing_else():
    plain = load_experiment("digits", EXPERIMENTS, ["rounds=2", "hidden=[]"]).plain()
    assert plain["hidden"] == []
    assert "roster" not in plain
    assert "without" not in plain


def test_a_single_client_left_has_no_graph_to_judge(tmp_path):
    events = changes(*((2, "leave", f"group{g}-client{k}") for g in range(4) for k in range(2) if (g, k) != (0, 0)))
    experiment = load_experiment("digits", EXPERIMENTS, ["rounds=4"]).replace(roster={"changes": events})
    run(experiment, "cobo", 0, tmp_path / "out", resume=False, progress=False)
    found = summarise(tmp_path / "out", "digits", None)["methods"]["cobo"]
    assert found["weights_error"] is None
    assert found["groups_score"] is None


def test_the_file_of_a_finished_run_is_not_rewritten(tmp_path):
    experiment = load_experiment("digits", EXPERIMENTS, ["rounds=4"])
    run(experiment, "cobo", 0, tmp_path / "out", resume=False, progress=False)
    before = (tmp_path / "out" / "experiment.toml").read_text()
    later = experiment.replace(roster={"changes": changes((2, "leave", "group0-client0"))})
    with pytest.raises(CheckpointError, match="holds runs with roster"):
        run(later, "cobo", 0, tmp_path / "out", resume=True)
    assert (tmp_path / "out" / "experiment.toml").read_text() == before


def test_a_folder_of_several_runs_keeps_its_clients(tmp_path):
    experiment = load_experiment("digits", EXPERIMENTS, ["rounds=4"])
    for method in ("local", "cobo"):
        run(experiment, method, 0, tmp_path / "out", resume=False, progress=False)
    with pytest.raises(CheckpointError, match="holds runs with without"):
        run(experiment.replace(without=("group0-client0",)), "cobo", 0, tmp_path / "out", resume=True)
