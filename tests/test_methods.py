"""The baselines: by hand, against their plain-Python versions, and by the property that defines each."""

import os
import signal

import numpy as np
import pytest
import torch
from conftest import Point, blobs, play, point_client, quadratic, started
from plain import PlainDitto, PlainFC, PlainFedAvg, PlainIFCA
from torch import nn

import cobo
from cobo.errors import ConfigError, Interrupted, RunError
from cobo.federation import Federation
from cobo.methods import IFCA, METHODS, Ditto, FedAvg, FederatedClustering, FineTunedFedAvg, Local, Oracle, State
from cobo.methods.base import participants
from cobo.models import mlp


def parties(count=5, group=None):
    """Two kinds of labels, different amounts of data."""
    return [
        blobs(n, seed=k, flip=k % 2 == 1, samples=20 + 10 * k, group=(k % 2 if group is None else group))
        for k, n in enumerate("abcdefgh"[:count])
    ]


def net():
    torch.manual_seed(0)
    return mlp(2, [8], 2)


def personal(method, federation, state):
    return method.personal(state, federation).clone()


def same_as_plain(method, plain, rounds=30, model=None, **options):
    """Holds the fast path against the plain one, round by round; gives both at the end."""
    model = net() if model is None else model
    federation, state = started(parties(), model, method, lr=0.1, batch_size=6, seed=3, rounds=rounds, **options)
    start = net() if callable(model) and not isinstance(model, nn.Module) else model
    slow = plain(start, federation, state)
    for t in range(rounds):
        play(method, federation, state, 1)
        slow.round(t)
        flat = torch.stack([torch.cat([p.flatten() for p in x]) for x in slow.x])
        assert torch.allclose(personal(method, federation, state), flat, atol=1e-4), t
    assert not torch.allclose(flat, federation.start, atol=1e-2)  # the run did something
    return state, slow


COMMON = {"loss": nn.functional.cross_entropy, "lr": 0.1, "batch_size": 6, "seed": 3}


# FedAvg


@pytest.mark.parametrize("settings", [{}, {"local_steps": 4}, {"participation": 0.4}], ids=str)
def test_fedavg_agrees_with_plain_python(settings):
    same_as_plain(FedAvg(**settings), lambda model, *_: PlainFedAvg(parties(), model, **COMMON, **settings))


def test_fedavg_round_by_hand():
    # f = (x - 1)^2 / 2 with 2 samples and f = 3 (x + 1)^2 / 2 with 6, at x = 0: gradients -1 and 3.
    few, many = point_client("few", [1.0]), point_client("many", [-1.0], a=3.0, samples=6)
    for weighting, expected in (("samples", -0.1 * (2 * -1 + 6 * 3) / 8), ("equal", -0.1 * (-1 + 3) / 2)):
        method = FedAvg(weighting=weighting)
        federation, state = started([few, many], Point([0.0]), method, objective=quadratic)
        play(method, federation, state, 1)
        assert state.X.tolist() == [[pytest.approx(expected)]]
        assert state.sent == 4  # the model to two clients and back
    # Two local steps: x -> x - 0.1 a (x - mu), twice, then the mean.
    method = FedAvg(local_steps=2, weighting="equal")
    federation, state = started([few, many], Point([0.0]), method, objective=quadratic)
    play(method, federation, state, 1)
    assert state.X.item() == pytest.approx(((1 - 0.9**2) * 1 + (1 - 0.7**2) * -1) / 2)


def test_participants_are_as_many_as_asked_differ_by_round_and_leave_nobody_out():
    federation = Federation(parties(8), net(), batch_size=4)
    drawn = [participants(federation, t, 0.25).tolist() for t in range(400)]
    assert {len(d) for d in drawn} == {2}
    counts = np.bincount(np.concatenate(drawn), minlength=8)
    assert counts.min() > 60
    assert counts.max() < 140
    assert participants(federation, 0, 1.0).tolist() == list(range(8))
    assert len(participants(federation, 0, 0.01)) == 1


def test_who_does_not_take_part_computes_nothing():
    method = FedAvg(participation=0.4)
    federation, state = started(parties(), net(), method, batch_size=4)
    play(method, federation, state, 10)
    assert federation.computed == 20
    assert state.sent == 40


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_oracle_with_one_group_is_fedavg(momentum):
    one, other = Oracle(), FedAvg()
    models = []
    for method in (one, other):
        federation, state = started(parties(group=0), net(), method, batch_size=6, momentum=momentum)
        play(method, federation, state, 25)
        models.append(personal(method, federation, state))
    assert torch.allclose(*models, atol=1e-5)


# Fine-tuned FedAvg


def test_fine_tuning_is_fedavg_and_then_local_from_its_model():
    method = FineTunedFedAvg(share=0.6)
    federation, state = started(parties(), net(), method, batch_size=6, rounds=20, momentum=0.9)
    play(method, federation, state, 12)
    same, theirs = started(parties(), net(), FedAvg(), batch_size=6, momentum=0.9)
    play(FedAvg(), same, theirs, 12)
    assert torch.equal(personal(method, federation, state), theirs.X.expand(5, -1))
    sent = state.sent
    play(method, federation, state, 8)
    alone, last = started(parties(), net(), Local(), batch_size=6, momentum=0.9)
    last.X.copy_(theirs.X.expand(5, -1))
    last.round = 12
    play(Local(), alone, last, 8)
    assert torch.equal(personal(method, federation, state), last.X)
    assert state.sent == sent == 12 * 10


@pytest.mark.parametrize(("share", "same"), [(1.0, FedAvg()), (0.0, Local())], ids=["all", "none"])
def test_fine_tuning_at_its_ends(share, same):
    one = cobo.fit(parties(), model=net(), method=FineTunedFedAvg(share=share), rounds=15)
    other = cobo.fit(parties(), model=net(), method=same, rounds=15)
    assert one.history[-1]["client_loss"] == other.history[-1]["client_loss"]


# Ditto


@pytest.mark.parametrize("settings", [{}, {"local_steps": 3}, {"participation": 0.6}], ids=str)
def test_ditto_agrees_with_plain_python(settings):
    method = Ditto(lam=0.7, **settings)
    state, slow = same_as_plain(method, lambda model, *_: PlainDitto(parties(), model, **COMMON, lam=0.7, **settings))
    assert torch.allclose(state.X[-1], torch.cat([p.flatten() for p in slow.w]), atol=1e-4)


def test_ditto_round_by_hand():
    # Both at x = w = 0, targets 1 and -1 with slopes 1 and 3: gradients -1 and 3. Then each x_k is pulled to the old w.
    people = [point_client("one", [1.0]), point_client("two", [-1.0], a=3.0)]
    method = Ditto(lam=0.5)
    federation, state = started(people, Point([0.0]), method, objective=quadratic)
    play(method, federation, state, 1)
    assert state.X.flatten().tolist() == pytest.approx([0.1, -0.3, -0.1])
    play(method, federation, state, 1)
    x1 = 0.1 - 0.1 * ((0.1 - 1) + 0.5 * (0.1 + 0.1))
    x2 = -0.3 - 0.1 * (3 * (-0.3 + 1) + 0.5 * (-0.3 + 0.1))
    w = -0.1 - 0.1 * ((-0.1 - 1) + 3 * (-0.1 + 1)) / 2  # gradients at w, not at x_1 and x_2
    assert state.X.flatten().tolist() == pytest.approx([x1, x2, w])


def test_ditto_without_pull_is_local_and_its_shared_model_is_fedavg():
    run = {"batch_size": 6, "momentum": 0.9}
    method = Ditto(lam=0.0)
    federation, state = started(parties(), net(), method, **run)
    play(method, federation, state, 20)
    for other, mine in ((Local(), state.X[:-1]), (FedAvg(), state.X[-1:])):
        their_federation, theirs = started(parties(), net(), other, **run)
        play(other, their_federation, theirs, 20)
        assert torch.equal(mine, theirs.X)


def test_a_strong_pull_brings_personal_models_to_the_shared_one():
    apart = {}
    for lam in (0.1, 10.0):
        federation, state = started(parties(), net(), Ditto(lam=lam), batch_size=6)
        play(Ditto(lam=lam), federation, state, 100)
        apart[lam] = (state.X[:-1] - state.X[-1]).norm().item()
    assert apart[10.0] < 0.1 * apart[0.1]


# IFCA


def centres_of(federation, count):
    rows = [federation.blueprint.start, *(federation.blueprint.another_start(k) for k in range(1, count))]
    return [[p[0] for p in federation.blueprint.split(row[None])] for row in rows]


@pytest.mark.parametrize("settings", [{}, {"participation": 0.6}, {"compare": "all"}], ids=str)
def test_ifca_agrees_with_plain_python(settings):
    method = IFCA(k=3, initialisations=1, **settings)

    def plain(model, federation, state):
        return PlainIFCA(parties(), model, **COMMON, centres=centres_of(federation, 3), rounds=30, **settings)

    state, slow = same_as_plain(method, plain, model=lambda: mlp(2, [8], 2))
    assert state.tensors["choice"][0].tolist() == slow.choice
    assert len(set(slow.choice)) > 1


def test_ifca_with_one_centre_is_fedavg():
    run = {"batch_size": 6, "momentum": 0.9}
    method = IFCA(k=1, initialisations=1)
    federation, state = started(parties(), net(), method, **run)
    play(method, federation, state, 20)
    same, theirs = started(parties(), net(), FedAvg(), **run)
    play(FedAvg(), same, theirs, 20)
    assert torch.allclose(state.X, theirs.X, atol=1e-5)


def test_ifca_compares_all_centres_on_the_same_data():
    federation = Federation(parties(), lambda: mlp(2, [8], 2), batch_size=4)
    rows = torch.stack([federation.start[0], federation.start[0], federation.blueprint.another_start(1)])
    losses = federation.losses(rows, round=7)
    assert losses.shape == (3, 5)
    assert torch.equal(losses[0], losses[1])  # the same model twice: the same loss, so the same batch
    assert not torch.equal(losses[0], losses[2])
    # And it is the batch of the gradient.
    assert torch.allclose(losses[0], federation.gradients(federation.start, round=7).losses)
    assert federation.compared == 15


def test_ifca_keeps_the_best_of_its_initialisations():
    # Two groups at +5 and -5. From (0, 100) both choose 0, where they pull evenly, and stay; from (1, 2) they part.
    people = [point_client(f"{s}{k}", [5.0 if s == "p" else -5.0], group=s) for s in "pm" for k in range(2)]
    numbers = [0.0, 100.0, 0.0, 200.0, 1.0, 2.0, 0.0, 300.0]
    starts = iter(numbers)
    method = IFCA(initialisations=4, trial=0.2)
    federation, state = started(people, lambda: Point([next(starts)]), method, objective=quadratic, rounds=100)
    assert state.X.flatten().tolist() == numbers
    play(method, federation, state, 20)
    assert len(state.X) == 8
    play(method, federation, state, 80)
    assert len(state.X) == 2  # one set went on
    assert sorted(personal(method, federation, state).flatten().tolist()) == pytest.approx([-5, -5, 5, 5], abs=0.1)
    assert torch.equal(state.weights, torch.block_diag(torch.ones(2, 2), torch.ones(2, 2)).float())
    assert federation.computed == 20 * 4 * 4 + 80 * 4
    assert federation.compared == 20 * 8 * 4 + 80 * 2 * 4


def test_a_client_with_broken_data_has_no_say_in_which_initialisation_is_best():
    people = [point_client("p", [5.0]), point_client("m", [-5.0]), point_client("sick", [float("nan")])]
    starts = iter([0.0, 100.0, 1.0, 2.0])
    method = IFCA(k=2, initialisations=2, trial=0.2)
    federation, state = started(people, lambda: Point([next(starts)]), method, objective=quadratic, rounds=50)
    play(method, federation, state, 50)
    assert sorted(state.X.flatten().tolist()) == pytest.approx([-5, 5], abs=0.1)


def test_a_centre_that_nobody_chose_stays():
    people = [point_client(n, [1.0]) for n in "ab"]
    starts = iter([0.9, 50.0])
    method = IFCA(k=2, initialisations=1)
    federation, state = started(
        people, lambda: Point([next(starts)]), method, objective=quadratic, momentum=0.9, rounds=50
    )
    play(method, federation, state, 20)
    assert state.X[1].item() == 50.0
    assert state.X[0].item() != pytest.approx(0.9)


def test_ifca_says_what_it_needs():
    strangers = [blobs("a", seed=0), blobs("b", seed=1)]
    with pytest.raises(ConfigError, match="set k"):
        cobo.fit(strangers, model=net, method=IFCA(), rounds=1)
    with pytest.raises(ConfigError, match="function or class that makes a new one"):
        cobo.fit(strangers, model=net(), method=IFCA(k=2), rounds=1)
    with pytest.raises(ConfigError, match="makes the same one each time"):
        cobo.fit(strangers, model=net, method=IFCA(k=2), rounds=1)  # `net` seeds itself


def test_initialisations_are_judged_however_short_the_trial():
    people = [point_client("p", [5.0]), point_client("m", [-5.0])]
    starts = iter([0.0, 100.0, 1.0, 99.0, -4.0, 4.0])  # the second is for the check that starts differ
    method = IFCA(k=2, initialisations=2, trial=0.01)
    federation = started(people, lambda: Point([next(starts)]), Local(), objective=quadratic)[0]
    X = nn.Parameter(method.rows(federation))
    state = State(X, torch.optim.SGD([X], lr=0.1), 10, tensors=method.start(federation))
    assert state.X.flatten().tolist() == [0.0, 100.0, 1.0, 99.0]
    state.X[2:] = torch.tensor([[-4.0], [4.0]], dtype=state.X.dtype)
    play(method, federation, state, 2)
    assert len(state.X) == 2
    assert state.X[0].item() < 0 < state.X[1].item()


def test_shared_running_statistics_are_averaged_once_a_round_whatever_the_local_steps():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    federation = Federation(parties(3), model, batch_size=6, buffers="shared")
    before = [b.clone() for b in federation.buffers.values()]
    alone = Federation(parties(3), model, batch_size=6, buffers="local")
    for f in (federation, alone):
        f.local_steps(f.start, round=0, steps=3, lr=0.1)
    for name, rows in alone.buffers.items():
        mean = rows.float().mean(0)
        if rows.is_floating_point():
            assert torch.allclose(federation.buffers[name], mean.expand_as(rows), atol=1e-6)
    assert any(not torch.equal(a, b) for a, b in zip(before, federation.buffers.values(), strict=True))


# Federated Clustering


@pytest.mark.parametrize("settings", [{}, {"client_momentum": 0.8}], ids=str)
def test_fc_agrees_with_plain_python(settings):
    method = FederatedClustering(quantile=0.4, iterations=3, **settings)
    state, _ = same_as_plain(
        method, lambda model, *_: PlainFC(parties(), model, **COMMON, members=2, iterations=3, **settings)
    )
    assert state.weights.sum(1).tolist() == [2.0] * 5
    assert state.sent == 30 * 2 * 5 * 5


def test_fc_clips_by_hand():
    # Points 0 (its own), 1 and 10 in one dimension, threshold at the second nearest of three.
    method = FederatedClustering(quantile=2 / 3, iterations=2)
    points = torch.tensor([[[0.0], [1.0], [10.0]]])
    v, near = method.average(points, torch.ones(1, 3, dtype=torch.bool), torch.tensor([0]), torch.tensor([2]))
    first = (0 + 1 + 0) / 3  # the far point counts as the centre itself
    second = (0 + 1 + first) / 3
    assert v.item() == pytest.approx(second)
    assert near.tolist() == [[True, True, False]]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fc_with_an_infinite_threshold_averages_all_gradients(momentum):
    method = FederatedClustering(quantile=1.0)
    federation, state = started(parties(), net(), method, batch_size=6, momentum=momentum)
    play(method, federation, state, 20)
    equal = FedAvg(weighting="equal")
    same, theirs = started(parties(), net(), equal, batch_size=6, momentum=momentum)
    play(equal, same, theirs, 20)
    assert torch.allclose(state.X, theirs.X.expand(5, -1), atol=1e-5)


def test_fc_with_only_itself_within_the_threshold_is_local():
    method = FederatedClustering(quantile=0.01)
    federation, state = started(parties(), net(), method, batch_size=6)
    play(method, federation, state, 20)
    alone, theirs = started(parties(), net(), Local(), batch_size=6)
    play(Local(), alone, theirs, 20)
    assert torch.allclose(state.X, theirs.X, atol=1e-6)


def test_fc_takes_gradients_at_the_model_of_the_one_who_asks():
    # Client two's gradient at x_1 is a (x_1 - mu), whatever its own model is.
    people = [point_client("one", [1.0]), point_client("two", [-1.0])]
    method = FederatedClustering(quantile=1.0, iterations=1)
    federation, state = started(people, Point([0.0]), method, objective=quadratic)
    state.X[1] = 100.0
    play(method, federation, state, 1)
    assert state.X[0].item() == pytest.approx(0.0)  # (0 - 1) and (0 + 1) cancel
    assert state.X[1].item() == pytest.approx(100 - 0.1 * 100)


def test_fc_says_what_it_will_cost_before_it_starts_and_that_is_what_it_costs():
    events = []
    result = cobo.fit(
        parties(), model=net(), method=FederatedClustering(client_momentum=0.5), rounds=7, listeners=[events.append]
    )
    told = [e["message"] for e in events if e["event"] == "warning"]
    assert "25 a round and 175 in all" in told[0]
    assert "MB" in told[0]
    assert [e["event"] for e in events].index("warning") < [e["event"] for e in events].index("round")
    assert result.history[-1]["gradients"] == 175


def test_who_is_set_aside_by_fc_is_connected_to_nobody():
    people = [cobo.Client("sick", train=Sick()), *(blobs(n, seed=k) for k, n in enumerate("abcd"))]
    method = FederatedClustering(quantile=0.6)
    federation, state = started(people, lambda: mlp(2, [6], 2), method, batch_size=6)
    for _ in range(10):
        play(method, federation, state, 1)
        assert state.weights[0].tolist() == [1, 0, 0, 0, 0]
        assert state.weights[1:, 0].tolist() == [0, 0, 0, 0]


def test_fc_is_told_the_size_of_each_group():
    people = [
        point_client(n, [mu], group=int(mu > 0)) for n, mu in zip("abcde", (5.0, 5.1, -5.0, -5.1, -5.2), strict=True)
    ]
    method = FederatedClustering()
    federation, state = started(people, Point([0.0]), method, objective=quadratic)
    play(method, federation, state, 60)
    assert state.weights.sum(1).tolist() == [2, 2, 3, 3, 3]
    with pytest.raises(ConfigError, match="set quantile"):
        method.check(Federation([blobs("a", seed=0), blobs("b", seed=1)], net()), 0.1)


# What holds for all of them

EVERY = [
    Local(),
    FedAvg(participation=0.5, local_steps=2),
    FineTunedFedAvg(share=0.5),
    Ditto(lam=0.5, participation=0.5),
    IFCA(initialisations=3, trial=0.6),
    FederatedClustering(client_momentum=0.5),
    cobo.CoBo(gamma=0.3),
    Oracle(),
]
every_method = pytest.mark.parametrize("method", EVERY, ids=lambda m: m.name)


def test_settings_of_methods_and_of_training_have_different_names():
    """A method's table in a file may hold both."""
    for kind in METHODS.values():
        assert not set(kind.model_fields) & set(cobo.Training.model_fields), kind


def test_the_list_is_complete():
    assert [m.name for m in EVERY] == list(METHODS)
    assert all(getattr(cobo, type(m).__name__) is METHODS[m.name] for m in EVERY)


@every_method
def test_a_stopped_and_resumed_run_is_the_same_run(method, tmp_path):
    run = {"model": lambda: nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))}
    run |= {"method": method, "rounds": 20, "momentum": 0.9, "lr": 0.05, "batch_size": 5, "evaluate_every": 5}
    whole = cobo.fit(parties(), **run)
    for at in (9, 10, 13):  # before, at and after the switch of fine-tuning and the end of IFCA's trial

        def stop(event, at=at):
            if event["event"] == "round" and event["round"] == at:
                os.kill(os.getpid(), signal.SIGINT)

        with pytest.raises(Interrupted):
            cobo.fit(parties(), out=tmp_path / str(at), listeners=[stop], **run)
        resumed = cobo.fit(parties(), out=tmp_path / str(at), resume=True, **run)
        strip = [[{**line, "seconds": 0} for line in r.history] for r in (whole, resumed)]
        assert strip[0] == strip[1]
        for name in whole.names:
            for key, value in whole.states[name].items():
                assert torch.equal(value, resumed.states[name][key])


@every_method
def test_permuting_clients_permutes_the_result_and_nothing_else(method):
    order = [3, 0, 4, 2, 1]
    options = {"model": lambda: mlp(2, [6], 2), "rounds": 30, "batch_size": 5, "method": method}
    one, other = cobo.fit(parties(), **options), cobo.fit([parties()[k] for k in order], **options)
    for name in one.names:
        for a, b in zip(one.models[name].parameters(), other.models[name].parameters(), strict=True):
            assert torch.allclose(a, b, atol=1e-4)


@every_method
def test_models_are_as_good_as_reported_also_with_running_statistics(method):
    model = lambda: nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))  # noqa: E731
    for policy in ("local", "shared", "none"):
        result = cobo.fit(parties(), model=model, method=method, rounds=12, batch_size=8, buffers=policy)
        for k, client in enumerate(parties()):
            inputs, targets = client.test.fields
            loss = nn.functional.cross_entropy(result.models[client.name](inputs), targets).item()
            assert loss == pytest.approx(result.history[-1]["client_loss"][k], rel=1e-4)


@every_method
def test_executors_agree(method):
    options = {"model": lambda: mlp(2, [6], 2), "method": method, "rounds": 20, "batch_size": 5}
    one, other = (cobo.fit(parties(), executor=e, models_at_once=3, **options) for e in ("vectorised", "looped"))
    for name in one.names:
        for a, b in zip(one.models[name].parameters(), other.models[name].parameters(), strict=True):
            assert torch.allclose(a, b, atol=1e-4)


class Sick(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, k):
        return torch.tensor([float("nan"), 1.0]), k % 2


@every_method
def test_a_client_with_broken_data_does_not_break_the_others(method):
    people = [cobo.Client("sick", train=Sick(), group=0), *parties(4)]
    if isinstance(method, FederatedClustering):
        method = method.replace(quantile=0.4)
    events = []
    result = cobo.fit(people, model=lambda: mlp(2, [6], 2), method=method, rounds=25, listeners=[events.append])
    asides = [e["clients"] for e in events if e["event"] == "set aside"]
    assert asides
    assert all(names == ["sick"] for names in asides)
    for name in "abcd":
        assert all(torch.isfinite(p).all() for p in result.models[name].parameters())
    scores = [v for v in result.history[-1]["client_loss"] if v is not None]
    start = [v for v in result.history[0]["client_loss"] if v is not None]
    assert len(scores) == 4
    assert all(np.isfinite(scores))
    assert scores != start


@every_method
def test_when_everyone_is_broken_the_run_says_so(method):
    people = [cobo.Client(n, train=Sick(), group=0) for n in "abcde"]
    with pytest.raises(RunError, match="no client has a finite gradient"):
        cobo.fit(people, model=lambda: mlp(2, [6], 2), method=method, rounds=60)


@every_method
def test_a_run_that_diverges_is_never_a_success(method):
    with pytest.raises(RunError, match="diverged"):
        cobo.fit(parties(), model=lambda: mlp(2, [6], 2), method=method.replace(**calm(method)), lr=1e8, rounds=80)


def calm(method):
    """No pull, which would be refused at such a learning rate."""
    return {"rho": 0.0} if method.name == "cobo" else {"lam": 0.0} if method.name == "ditto" else {}


def test_one_broken_client_of_few_that_take_part_is_not_the_end():
    people = [cobo.Client("sick", train=Sick(), group=0), *parties(4)]
    for method in (FedAvg(participation=0.2), Ditto(participation=0.2), IFCA(participation=0.2, trial=1.0)):
        result = cobo.fit(people, model=lambda: mlp(2, [6], 2), method=method, rounds=60)
        assert result.history[-1]["round"] == 60


def test_what_would_be_sent():
    """In vectors of d numbers, n = 5, 10 rounds."""
    rounds, n, d = 10, 5, sum(p.numel() for p in net().parameters())
    expected = {
        Local(): 0,
        FedAvg(): rounds * 2 * n,
        FedAvg(participation=0.4, local_steps=3): rounds * 2 * 2,
        FineTunedFedAvg(share=0.5): rounds * n,
        Ditto(): rounds * 2 * n,
        IFCA(k=3, initialisations=1): rounds * (3 * n + n),
        FederatedClustering(quantile=0.4): rounds * 2 * n * n,
        Oracle(): rounds * 2 * n,
        cobo.CoBo(sampling="every"): rounds * (2 * n + 4 * n * (n - 1) // 2),
    }
    for method, vectors in expected.items():
        result = cobo.fit(parties(), model=lambda: mlp(2, [8], 2), method=method, rounds=rounds)
        assert result.history[-1]["bytes"] == vectors * d * 4, method


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: FedAvg(participation=0.0), "participation = 0.0"),
        (lambda: FedAvg(local_steps=0), "local_steps = 0"),
        (lambda: FedAvg(weighting="size"), "'samples' or 'equal'"),
        (lambda: FineTunedFedAvg(share=1.5), "share = 1.5"),
        (lambda: Ditto(lam=-1), "lam = -1"),
        (lambda: IFCA(k=0), "k = 0"),
        (lambda: IFCA(trial=0), "trial = 0"),
        (lambda: FederatedClustering(quantile=2), "quantile = 2"),
        (lambda: FederatedClustering(client_momentum=1.0), "client_momentum = 1.0"),
        (lambda: cobo.fit(parties(), model=net(), method=Ditto(lam=30), lr=0.1, rounds=1), "less than 20"),
    ],
)
def test_wrong_settings_get_one_clear_line(make, words):
    with pytest.raises(ConfigError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)
