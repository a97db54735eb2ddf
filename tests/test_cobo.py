"""CoBo's mathematics: closed forms, autograd, the plain-Python version, and the properties that define it."""

import math

import numpy as np
import pytest
import torch
from conftest import Point, blobs, play, point_client, quadratic, started
from plain import PlainCoBo
from torch import nn

import cobo
from cobo.compute.task import Task
from cobo.errors import ConfigError
from cobo.federation import Federation
from cobo.methods import METHODS, CoBo, Local
from cobo.models import mlp


def everyone(n):
    """W when all are connected."""
    return torch.ones(n, n)


def test_one_round_of_two_clients_by_hand():
    # f_1 = (x - 1)^2 / 2, f_2 = (x + 1)^2 / 2, both at x = 0.5: gradients -0.5 and 1.5, so their product is -0.75.
    method = CoBo.paper(rho=0.3, gamma=0.2, sampling="every")
    people = [point_client("one", [1.0]), point_client("two", [-1.0])]
    federation, state = started(people, Point([0.5]), method, objective=quadratic)
    play(method, federation, state, 1)
    w = 1 - 0.2 * 0.75
    assert state.weights[0, 1].item() == pytest.approx(w)
    assert state.weights[1, 0].item() == pytest.approx(w)
    assert state.X.flatten().tolist() == pytest.approx([0.5 + 0.1 * 0.5, 0.5 - 0.1 * 1.5])
    # Second round, from x_1 = 0.55 and x_2 = 0.35: midpoint 0.45, product (0.45 - 1)(0.45 + 1).
    play(method, federation, state, 1)
    w += 0.2 * (0.45 - 1) * (0.45 + 1)
    assert state.weights[0, 1].item() == pytest.approx(w)
    x1 = 0.55 - 0.1 * ((0.55 - 1) + 0.3 * w * (0.55 - 0.35))
    x2 = 0.35 - 0.1 * ((0.35 + 1) + 0.3 * w * (0.35 - 0.55))
    assert state.X.flatten().tolist() == pytest.approx([x1, x2], abs=1e-7)


@pytest.mark.parametrize("mixing", ["explicit", "implicit", "coupled"])
def test_two_clients_with_fixed_weights_reach_the_minimum_of_the_outer_problem(mixing):
    # Stationary: a_i (x_i - mu_i) + rho (x_i - x_j) = 0 for both, a linear system.
    rho, a, mu = 0.7, (1.0, 3.0), (2.0, -1.0)
    method = CoBo.paper(rho=rho, gamma=0.0, sampling="every", mixing=mixing)
    people = [point_client("one", [mu[0]], a[0]), point_client("two", [mu[1]], a[1])]
    federation, state = started(people, Point([5.0]), method, objective=quadratic, lr=0.1)
    play(method, federation, state, 400)
    A = np.array([[a[0] + rho, -rho], [-rho, a[1] + rho]])
    expected = np.linalg.solve(A, [a[0] * mu[0], a[1] * mu[1]])
    if mixing == "implicit":  # the proximal step's fixed point: x = M (x - eta g)
        L = np.array([[1.0, -1], [-1, 1]])
        step = np.eye(2) + 0.1 * rho * L
        expected = np.linalg.solve(step - np.eye(2) + 0.1 * np.diag(a), 0.1 * np.array([a[0] * mu[0], a[1] * mu[1]]))
    assert state.X.flatten().numpy() == pytest.approx(expected, abs=1e-6)
    assert (state.weights == 1).all()


def test_a_coupled_pull_is_part_of_the_gradient_that_the_optimiser_sees():
    # Models at 5 and 4, gradients 3 and 15; W is 1, so the pull adds 0.7 and -0.7.
    method = CoBo.paper(rho=0.7, gamma=0.0, sampling="every", mixing="coupled")
    people = [point_client("one", [2.0], 1.0), point_client("two", [-1.0], 3.0)]
    federation, state = started(people, Point([5.0]), method, objective=quadratic, lr=0.1)
    state.X.data[1] = 4.0
    seen = []
    state.descend = lambda rows: seen.append(rows.clone())
    play(method, federation, state, 1)
    assert seen[0].flatten().tolist() == pytest.approx([3.0 + 0.7, 15.0 - 0.7])
    assert state.X.flatten().tolist() == [5.0, 4.0]  # what moves them is the optimiser alone


def test_a_coupled_pull_makes_no_steps_of_adamw_out_of_rounding():
    """Inputs are 0, so the first layer has no gradient: what moves it at all moves it by the learning rate."""
    people = [cobo.Client(str(k), train=(torch.zeros(8, 3), torch.arange(8) % 2)) for k in range(7)]
    torch.manual_seed(0)
    method = CoBo(mixing="coupled", rho=1.0, gamma=0.0)
    result = cobo.fit(people, model=mlp(3, [4], 2), method=method, optimizer="adamw", lr=0.01, rounds=20)
    torch.manual_seed(0)
    start = mlp(3, [4], 2)
    for model in result.models.values():
        assert torch.equal(next(model.parameters()), next(start.parameters()))
    assert not torch.equal(list(model.parameters())[-1], list(start.parameters())[-1])


@pytest.mark.parametrize("method", [CoBo.paper(rho=0.5, gamma=0.5, sampling="every"), CoBo(gamma=0.2, rho=1.0)])
def test_two_groups_of_quadratics_are_told_apart_and_reach_their_centres(method):
    people = [point_client(f"p{k}", [1.0, 0.0], a=1 + 0.1 * k, group="plus") for k in range(3)]
    people += [point_client(f"m{k}", [-1.0, 0.5], a=1 + 0.1 * k, group="minus") for k in range(3)]
    federation, state = started(people, Point([0.3, 0.4]), method, objective=quadratic)
    play(method, federation, state, 600)
    expected = torch.tensor([[1.0, 0.0]] * 3 + [[-1.0, 0.5]] * 3, dtype=torch.float64)
    assert torch.allclose(state.X, expected, atol=1e-4)
    block = torch.block_diag(torch.ones(3, 3), torch.ones(3, 3))
    assert torch.allclose(state.weights, block, atol=1e-3)


def test_far_away_clients_collaborate_although_their_minima_differ():
    # Point A of the paper's Figure 1: far from both minima, descent directions agree and w stays 1.
    method = CoBo.paper(rho=0.1, gamma=0.5, sampling="every")
    people = [point_client("one", [1.0]), point_client("two", [-1.0])]
    federation, state = started(people, Point([50.0]), method, objective=quadratic)
    play(method, federation, state, 5)
    assert (state.weights == 1).all()


def test_one_step_is_the_autograd_gradient_of_the_outer_objective():
    people = [blobs(n, seed=k, flip=k > 1) for k, n in enumerate("abcd")]
    method = CoBo.paper(rho=0.6, gamma=0.0, sampling="every")
    federation, state = started(people, mlp(2, [5], 2), method, batch_size=None, lr=0.05)
    generator = torch.Generator().manual_seed(0)
    X = (state.X + 0.3 * torch.randn(state.X.shape, generator=generator)).clone()
    W = torch.rand(4, 4, generator=generator)
    W = (W + W.T) / 2
    state.X.copy_(X)
    state.tensors |= {"weights": W.clone(), "evidence": W.clone()}
    play(method, federation, state, 1)

    rows = X.clone().requires_grad_()
    total = torch.zeros(())
    for i, client in enumerate(people):
        parts = federation.blueprint.split(rows[i : i + 1])
        parameters = {n: p[0] for n, p in zip(federation.blueprint.names, parts, strict=True)}
        inputs, targets = client.train.fields
        outputs = torch.func.functional_call(federation.blueprint.module, parameters, (inputs,))
        total = total + nn.functional.cross_entropy(outputs, targets)
        for j in range(i + 1, 4):
            total = total + 0.6 / 2 * W[i, j] * (rows[i] - rows[j]).square().sum()
    total.backward()
    assert torch.allclose(state.X, X - 0.05 * rows.grad, atol=1e-6)


def test_fast_path_agrees_with_plain_python_over_50_rounds():
    people = [blobs(n, seed=k, flip=k % 2 == 1) for k, n in enumerate("abcde")]
    torch.manual_seed(0)
    model = mlp(2, [8], 2)
    settings = {"rho": 0.2, "gamma": 0.3}
    method = CoBo.paper(**settings)
    federation, state = started(people, model, method, lr=0.1, batch_size=6, seed=3)
    slow = PlainCoBo(people, model, nn.functional.cross_entropy, **settings, lr=0.1, batch_size=6, seed=3)
    for t in range(50):
        play(method, federation, state, 1)
        slow.round(t)
        flat = torch.stack([torch.cat([p.flatten() for p in x]) for x in slow.x])
        assert torch.allclose(state.X, flat, atol=1e-4), t
        assert torch.allclose(state.weights, torch.tensor(slow.W), atol=1e-4), t
    assert state.weights.min() < 0.5  # the run did something


def test_both_clients_data_are_used_for_a_pair():
    def product(first, second):
        federation = Federation([first, second], mlp(2, [4], 2), batch_size=None)
        return federation.gradients(federation.start, pairs=np.array([[0, 1]])).products.inner.item()

    a, b, other = blobs("a", seed=0), blobs("b", seed=1), blobs("b", seed=1, flip=True)
    other_a = blobs("a", seed=0, flip=True)
    assert product(a, b) != pytest.approx(product(a, other), rel=1e-3)
    assert product(a, b) != pytest.approx(product(other_a, b), rel=1e-3)


def test_pair_gradients_are_taken_at_the_midpoint():
    people = [point_client("one", [1.0]), point_client("two", [-1.0])]
    federation = Federation(people, Point([0.0]), task=Task(objective=quadratic))
    X = torch.tensor([[4.0], [2.0]], dtype=torch.float64)
    products = federation.gradients(X, pairs=np.array([[0, 1]])).products
    assert products.inner.item() == pytest.approx((3 - 1) * (3 + 1))
    assert products.norm_i.item() == pytest.approx(2)
    assert products.norm_j.item() == pytest.approx(4)


@pytest.mark.parametrize("mixing", ["explicit", "implicit", "coupled"])
def test_zero_weights_equal_local(mixing):
    people = [blobs(n, seed=k) for k, n in enumerate("abc")]
    torch.manual_seed(0)
    model = mlp(2, [4], 2)
    method = CoBo(gamma=0.0, rho=1.0, mixing=mixing)
    federation, state = started(people, model, method, batch_size=4)
    state.tensors |= {"weights": torch.zeros(3, 3), "evidence": torch.zeros(3, 3)}
    alone = METHODS["local"]()
    their, theirs = started(people, model, alone, batch_size=4)
    play(method, federation, state, 30)
    play(alone, their, theirs, 30)
    assert torch.equal(state.X, theirs.X)


@pytest.mark.parametrize(
    "method",
    [
        CoBo(gamma=0.3),
        CoBo.paper(gamma=0.3),
        CoBo(domain="simplex", gamma=0.3),
        CoBo(domain="simplex", gamma=0.3, pairs="ordered"),
        CoBo(domain="simplex", self_weight=True, solver="frank-wolfe", gamma=0.3),
        CoBo(sampling="mixed", signal="cosine", solver="projected"),
    ],
    ids=lambda m: f"{m.domain}-{m.solver}-{m.pairs}",
)
def test_permuting_clients_permutes_the_result_and_nothing_else(method):
    people = [blobs(n, seed=k, flip=k % 2 == 1) for k, n in enumerate("abcde")]
    order = [3, 0, 4, 2, 1]
    options = {"model": nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 2)), "rounds": 40, "batch_size": 5}
    one = cobo.fit(people, method=method, **options)
    other = cobo.fit([people[k] for k in order], method=method, **options)
    assert other.names == [one.names[k] for k in order]
    assert np.allclose(other.weights, one.weights[np.ix_(order, order)], atol=1e-4)
    for name in one.names:
        for a, b in zip(one.models[name].parameters(), other.models[name].parameters(), strict=True):
            assert torch.allclose(a, b, atol=1e-4)
    assert not np.allclose(one.weights, one.weights[np.ix_(order, order)], atol=1e-3)


@pytest.mark.parametrize("pairs", ["ordered", "symmetric"])
def test_expected_number_of_gradients_per_round(pairs):
    n, rounds = 10, 300
    people = [point_client(f"c{k}", [float(k)]) for k in range(n)]
    method = CoBo(pairs=pairs, sampling="constant")
    federation, state = started(people, Point([0.0]), method, objective=quadratic, batch_size=1)
    play(method, federation, state, rounds)
    # n own gradients, and two for each of the n (n - 1) / n pairs expected.
    expected = n + 2 * (n - 1)
    assert federation.computed / rounds == pytest.approx(expected, rel=0.03)


def test_simplex_rows_stay_on_the_simplex_and_favour_the_ally():
    people = [point_client("a", [1.0, 0.0]), point_client("b", [1.0, 0.2]), point_client("c", [-1.0, 0.0])]
    method = CoBo(domain="simplex", gamma=0.1, rho=0.2, sampling="every")
    federation, state = started(people, Point([0.0, 0.0]), method, objective=quadratic)
    assert state.weights[0].tolist() == pytest.approx([0.0, 0.5, 0.5])
    play(method, federation, state, 300)
    assert torch.allclose(state.weights.sum(1), torch.ones(3), atol=1e-5)
    assert (state.weights.diagonal() == 0).all()
    assert state.weights[0, 1] > 0.99
    assert state.weights[1, 0] > 0.99


@pytest.mark.parametrize("self_weight", [False, True])
def test_on_the_simplex_one_answer_moves_the_rows_of_both(self_weight):
    people = [blobs(name, seed=k) for k, name in enumerate("abcd")]
    both = CoBo(domain="simplex", gamma=1.0, sampling="every", self_weight=self_weight)
    federation, state = started(people, nn.Linear(2, 2), both, batch_size=5)
    pairs = both.draw(federation, everyone(4), 0, 1)
    assert {frozenset(pair) for pair in pairs.tolist()} == {
        frozenset((i, j)) for i in range(4) for j in range(4) if i != j or self_weight
    }
    assert len(pairs) == 6 + 4 * self_weight  # each once
    play(both, federation, state, 1)
    S = state.tensors["signals"]
    assert torch.equal(S, S.T)
    assert torch.allclose(state.weights, both._domain.project(both._domain.start(4) + S), atol=1e-6)
    assert not torch.allclose(state.weights, state.weights.T, atol=1e-3)  # but each row sums to one
    assert torch.allclose(state.weights.sum(1), torch.ones(4), atol=1e-6)


def test_frank_wolfe_on_the_simplex_finds_the_best_peer_when_pairs_are_sampled():
    people = [point_client("a", [1.0, 0.0]), point_client("b", [1.0, 0.1]), point_client("c", [0.2, 1.0])]
    method = CoBo(domain="simplex", solver="frank-wolfe", gamma=0.1, rho=0.0, signal="inner", sampling="constant")
    federation, state = started(people, Point([0.0, 0.0]), method, objective=quadratic, lr=1e-6)
    play(method, federation, state, 300)  # models hardly move: a agrees with b (1.0) more than with c (0.2)
    assert state.weights[0, 1] > 0.95


def test_batches_of_a_pair_of_a_step_and_of_rounds_are_drawn_apart():
    client = blobs("a", seed=0, samples=500)
    federation = Federation([client, blobs("b", seed=1)], nn.Linear(2, 2), batch_size=8)
    seen = []
    inside = federation._train.draw

    def spy(clients, keys, size):
        fields = inside(clients, keys, size)
        seen.extend(fields[0][np.asarray(clients) == 0])
        return fields

    federation._train.draw = spy
    federation.gradients(federation.start, round=0, pairs=np.array([[0, 1], [1, 0]]))
    federation.gradients(federation.start, round=1)
    federation.local_steps(federation.start, round=2, steps=2, lr=0.1)
    assert len(seen) == 6
    assert all(not torch.equal(a, b) for k, a in enumerate(seen) for b in seen[:k])


def test_self_weight_is_asked_with_two_independent_batches():
    people = [blobs(n, seed=k) for k, n in enumerate("ab")]
    federation = Federation(people, nn.Linear(2, 2), batch_size=3)
    products = federation.gradients(federation.start, pairs=np.array([[0, 0]])).products
    assert products.norm_i.item() != pytest.approx(products.norm_j.item(), rel=1e-3)


def test_unstable_explicit_steps_are_refused_with_the_largest_rho():
    people = [point_client(f"c{k}", [1.0]) for k in range(8)]
    run = {"model": Point([0.0]), "objective": quadratic, "rounds": 1, "lr": 0.3}
    with pytest.raises(ConfigError, match=r"needs rho < 0\.833333"):
        cobo.fit(people, method=CoBo.paper(rho=0.84), **run)
    cobo.fit(people, method=CoBo.paper(rho=0.83), **run)
    cobo.fit(people, method=CoBo(rho=1e6, mixing="implicit"), **run)
    with pytest.raises(ConfigError, match=r"needs rho < 3\.33333"):
        cobo.fit(people, method=CoBo(mixing="explicit", rho=3.4), **run)


def test_the_bound_on_rho_is_sharp():
    people = [point_client(f"c{k}", [0.0], a=1e-9) for k in range(8)]
    for rho, shrinks in ((0.82, True), (0.85, False)):
        method = CoBo.paper(rho=rho, gamma=0.0)
        federation, state = started(people, Point([0.0]), method, objective=quadratic, lr=0.3)
        state.X.copy_(torch.linspace(-1, 1, 8, dtype=torch.float64)[:, None])
        play(method, federation, state, 300)
        assert (state.X.abs().max() < 1) == shrinks


def test_oracle_is_fedavg_inside_the_groups():
    people = [blobs(n, seed=k, flip=k > 1, samples=20 * (k + 1), group=k > 1) for k, n in enumerate("abcd")]
    oracle = METHODS["oracle"]()
    federation, state = started(people, mlp(2, [4], 2), oracle, batch_size=5)
    G = federation.gradients(federation.start).rows
    start = federation.start[0]
    play(oracle, federation, state, 1)
    expected = start - 0.1 * (20 * G[0] + 40 * G[1]) / 60  # weighted by samples
    assert torch.allclose(state.X[0], expected, atol=1e-6)
    assert torch.equal(state.X[0], state.X[1])
    assert torch.allclose(state.X[2], start - 0.1 * (60 * G[2] + 80 * G[3]) / 140, atol=1e-6)


def test_oracle_without_groups_is_refused():
    with pytest.raises(ConfigError, match="group"):
        cobo.fit([blobs("a", seed=0), blobs("b", seed=1)], model=nn.Linear(2, 2), method=cobo.Oracle(), rounds=1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rho": -1.0}, "rho = -1.0"),
        ({"gamma": "fast"}, "gamma = 'fast'"),
        ({"sampling": "sometimes"}, "'constant', 'time', 'mixed' or 'every'"),
        ({"domain": "ball"}, "'box' or 'simplex'"),
        ({"rh0": 1.0}, "no setting 'rh0'"),
        ({"self_weight": True}, "domain = 'simplex'"),
    ],
)
def test_wrong_settings_name_the_field_the_value_and_what_is_allowed(settings, words):
    with pytest.raises(ConfigError) as caught:
        CoBo(**settings)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_paper_preset_is_algorithm_1():
    paper = CoBo.paper(rho=0.3)
    assert (paper.rho, paper.sampling, paper.rate, paper.pairs) == (0.3, "constant", 1.0, "ordered")
    assert (paper.domain, paper.solver, paper.signal) == ("box", "projected", "inner")
    assert (paper.pull, paper.mixing, paper.ramp) == ("sum", "explicit", 0.0)
    assert (paper.turns, paper.ask, paper.correction, paper.switch) == ("random", 1, 0.0, 0.002)
    assert set(CoBo.presets["paper"]) == set(CoBo.model_fields)  # whatever defaults become


def test_pair_gradients_can_be_taken_over_all_samples():
    """With noisy batches, `ask="all"` gives the products of the exact gradients; own gradients stay stochastic."""
    clients = [blobs(name, seed=k, samples=40) for k, name in enumerate("ab")]
    federation, state = started(clients, lambda: nn.Linear(2, 2), CoBo(), batch_size=4)
    pairs = np.array([[0, 1]])
    exact = Federation(clients, lambda: nn.Linear(2, 2), batch_size=None).products(state.X, pairs, 3)
    whole = federation.gradients(state.X, round=3, pairs=pairs, batches=None)
    assert torch.allclose(whole.products.inner, exact.inner)
    assert not torch.allclose(federation.products(state.X, pairs, 3).inner, exact.inner)
    assert torch.equal(whole.rows, federation.gradients(state.X, round=3).rows)
    assert federation.work.tolist() == [10 + 1 + 1 + 1] * 2  # 40 samples are ten batches of 4
    assert federation.computed == 26


@pytest.mark.parametrize("executor", ["looped", "vectorised"])
def test_pair_gradients_over_all_samples_are_exact_and_never_take_more_than_a_thousand_at_once(executor, monkeypatch):
    clients = [blobs(name, seed=k, samples=2500) for k, name in enumerate("ab")]
    module = nn.Linear(2, 2).double()
    federation = Federation(clients, module, batch_size=4, executor=executor)
    X = federation.start + torch.tensor([[0.3], [-0.1]])
    losses = (nn.functional.cross_entropy(module(x.double()), y) for x, y in (c.train.fields for c in clients))
    module.load_state_dict(federation.build(X.mean(0, keepdim=True).expand(2, -1))["a"].state_dict())
    g, h = (torch.cat([p.flatten() for p in torch.autograd.grad(loss, list(module.parameters()))]) for loss in losses)
    sizes, gradients = set(), federation.chosen.executor.gradients

    def watched(models, fields, *rest):
        sizes.add(fields[0].shape[1])
        return gradients(models, fields, *rest)

    monkeypatch.setattr(federation.chosen.executor, "gradients", watched)
    found = federation.products(X, np.array([[0, 1]]), 3, batches=None)
    torch.testing.assert_close(torch.stack([found.inner, found.norm_i, found.norm_j])[:, 0],
                               torch.stack([g @ h, g.norm(), h.norm()]))  # fmt: skip
    assert sizes == {833, 834}
    assert federation.computed == 2 * 625


def test_pair_gradients_of_several_batches_are_those_of_one_large_batch_and_cost_as_much():
    clients = [blobs(name, seed=k, samples=40) for k, name in enumerate("abc")]
    pairs = np.array([[0, 1], [2, 0]])
    small, large = (Federation(clients, lambda: nn.Linear(2, 2), batch_size=b) for b in (4, 12))
    X = small.start + 0.1 * torch.arange(3)[:, None]
    asked = small.gradients(X, round=3, pairs=pairs, batches=3)
    assert torch.allclose(asked.products.inner, large.products(X, pairs, 3).inner)
    assert torch.equal(asked.rows, small.gradients(X, round=3).rows)  # own gradients have one batch, as ever
    assert small.computed == 3 + 2 * 2 * 3 + 3
    assert small.work.tolist() == [2 + 6, 2 + 3, 2 + 3]
    exact = Federation(clients, lambda: nn.Linear(2, 2), batch_size=None)
    exact.gradients(X, round=3, pairs=pairs, batches=3)
    assert exact.computed == 3 + 2 * 2  # all samples are all samples


@pytest.mark.parametrize("ask", [0, -1, "some", 1.5, True])
def test_ask_is_a_number_of_batches_or_all(ask):
    with pytest.raises(ConfigError, match=r"CoBo: ask = .* it should be a number of batches, 1 or more, or 'all'"):
        CoBo(ask=ask)


@pytest.mark.parametrize("settings", [{"turns": "even"}, {"turns": "even", "pairs": "ordered"}, {"ask": 3}])
def test_turns_and_larger_questions_learn_the_groups(settings):
    clients = [blobs("a", seed=0), blobs("b", seed=1), blobs("c", seed=2, flip=True), blobs("d", seed=3, flip=True)]
    result = cobo.fit(clients, model=lambda: nn.Linear(2, 2), method=CoBo(**settings), rounds=300, lr=0.1, batch_size=4)
    assert result.groups() == [["a", "b"], ["c", "d"]]


def test_even_turns_reach_the_rounds():
    """Each of 28 pairs is asked once in every four rounds; drawn one by one, some pair waits longer."""
    clients = [blobs(str(k), seed=k, samples=4) for k in range(8)]
    waited = {}
    for turns in ("even", "random"):
        method = CoBo(sampling="constant", turns=turns)
        federation, _ = started(clients, lambda: nn.Linear(2, 2), method)
        asked = [{tuple(pair) for pair in method.draw(federation, everyone(8), t, 40).tolist()} for t in range(40)]
        waited[turns] = all(len(set().union(*asked[t : t + 4])) == 28 for t in range(0, 40, 4))
    assert waited == {"even": True, "random": False}


def test_the_pull_grows_over_the_ramp():
    method = CoBo(rho=4.0, ramp=0.25)
    assert [method.strength(0.1, t, 80) for t in (0, 5, 10, 20, 79)] == pytest.approx([0, 0.1, 0.2, 0.4, 0.4])
    assert CoBo(rho=4.0).strength(0.1, 0, 80) == pytest.approx(0.4)


def test_with_a_ramp_the_first_round_is_that_of_everyone_alone():
    clients = [blobs("a", seed=0), blobs("b", seed=1), blobs("c", seed=2, flip=True)]
    moved = {}
    for method in (CoBo(rho=3.0, ramp=0.5), CoBo(rho=3.0), Local()):
        federation, state = started(clients, lambda: nn.Linear(2, 2), method, lr=0.1)
        state.X[1] += 1
        play(method, federation, state, 1)
        moved[method] = state.X
    ramped, pulled, alone = moved.values()
    assert torch.equal(ramped, alone)
    assert not torch.allclose(pulled, alone)


def test_asking_on_all_samples_reaches_selection():
    clients = [blobs("a", seed=0), blobs("b", seed=1), blobs("c", seed=2, flip=True)]
    settled = {}
    for ask in (1, "all"):
        method = CoBo(sampling="every", solver="frank-wolfe", gamma=1.0, correction=0.0, ask=ask)
        federation, state = started(clients, lambda: nn.Linear(2, 2), method, batch_size=1)
        flickers = 0
        for _ in range(30):
            before = state.tensors["weights"].clone()
            play(method, federation, state, 1)
            flickers += not torch.equal(before, state.tensors["weights"])
        settled[ask] = flickers
    assert settled["all"] < settled[1]


@pytest.mark.parametrize("turns", ["even", "random"])
def test_while_everyone_waits_nobody_is_asked_and_w_rests(turns):
    clients = [blobs(str(k), seed=k, samples=4, flip=k > 1) for k in range(4)]
    method = CoBo(sampling="constant", turns=turns, wait=0.3, gamma=1.0)
    federation, state = started(clients, lambda: nn.Linear(2, 2), method, rounds=40)
    play(method, federation, state, 12)
    assert federation.computed == 12 * 4
    assert torch.equal(state.tensors["weights"], torch.ones(4, 4))
    play(method, federation, state, 28)
    assert not torch.equal(state.tensors["weights"], torch.ones(4, 4))
    assert federation.computed / 40 == pytest.approx(method.gradients_per_round(federation, 40), rel=0.15)
    without = CoBo(sampling="constant", turns=turns, gamma=1.0)
    late = [method.draw(federation, everyone(4), t, 40).tolist() for t in range(12, 40)]
    assert late == [without.draw(federation, everyone(4), t, 40).tolist() for t in range(12, 40)]


def test_however_long_the_wait_somebody_is_asked():
    clients = [blobs(str(k), seed=k, samples=4) for k in range(4)]
    method = CoBo(sampling="every", wait=0.99)
    federation, _ = started(clients, lambda: nn.Linear(2, 2), method)
    assert [len(method.draw(federation, everyone(4), t, 60)) for t in range(58, 60)] == [0, 6]


@pytest.mark.parametrize("turns", ["even", "random"])
def test_after_the_burst_pairs_that_are_connected_go_on_being_asked(turns):
    """With a small `time_rate` the parted ones hardly are; without one, or with a larger one, all are alike."""
    clients = [blobs(str(k), seed=k, samples=4) for k in range(8)]
    W = torch.kron(torch.eye(4), torch.ones(2, 2))  # four groups of two
    W[0, 2] = W[2, 0] = 0.3  # and a pair of strangers
    tied = {(0, 1), (2, 3), (4, 5), (6, 7), (0, 2)}

    def asked(W, first, last, **settings):
        method = CoBo(turns=turns, switch=0.1, rate=0.8, **settings)
        federation, _ = started(clients, lambda: nn.Linear(2, 2), method)
        pairs = [
            tuple(sorted(pair)) for t in range(first, last) for pair in method.draw(federation, W, t, 1000).tolist()
        ]
        return sum(pair in tied for pair in pairs) / 5, sum(pair not in tied for pair in pairs) / 23

    few = {"time_rate": 1e-6}
    assert asked(W, 0, 100, **few) == asked(everyone(8), 0, 100, **few)  # the burst asks everyone
    connected, parted = asked(W, 100, 1000, **few)
    assert parted == 0
    assert connected == pytest.approx(0.2 * 100 * math.log(10), rel=0.2)
    assert connected == asked(W, 100, 1000, time_rate=None)[0]
    assert asked(W / 200, 100, 1000, **few) == (0, 0)  # hardly connected
    assert asked(W, 100, 1000, time_rate=3.0)[1] == pytest.approx(2 * 3 * math.log(10), rel=0.2)
    for settings in ({"time_rate": None}, {"time_rate": 30.0}):
        assert asked(W, 100, 1000, **settings) == asked(everyone(8), 100, 1000, **settings)


@pytest.mark.parametrize("n", [4, 150])
def test_on_a_simplex_it_is_the_share_of_the_row_that_says_who_is_connected(n):
    """Of 150 clients even the dearest may have less than a hundredth of the weight."""
    clients = [blobs(str(k), seed=k, samples=4) for k in range(n)]
    method = CoBo(domain="simplex", turns="even", switch=0.1, rate=0.5, time_rate=1e-6)
    federation, state = started(clients, lambda: nn.Linear(2, 2), method)
    W = state.tensors["weights"]
    assert sum(len(method.draw(federation, W, t, 1000)) for t in range(100, 200)) > n
    only = torch.eye(n)[torch.arange(n) ^ 1]  # each has one other
    asked = {tuple(sorted(pair)) for t in range(100, 300) for pair in method.draw(federation, only, t, 1000).tolist()}
    assert asked <= {(k, k + 1) for k in range(0, n, 2)}
    assert len(asked) > n / 5


@pytest.mark.parametrize("turns", ["even", "random"])
def test_a_pair_that_an_answer_parts_is_not_asked_at_once_again(turns):
    """Each is parted by its first answer after the burst; then 2 * 0.5 * ln(1000 / t) questions are expected."""
    clients = [blobs(str(k), seed=k, samples=4) for k in range(12)]
    method = CoBo(turns=turns, switch=0.1, rate=0.6, time_rate=0.5)
    federation, _ = started(clients, lambda: nn.Linear(2, 2), method)
    W, again, due = everyone(12), 0, 0.0
    for t in range(100, 1000):
        for i, j in method.draw(federation, W, t, 1000).tolist():
            if W[i, j]:
                W[i, j] = W[j, i] = 0
                due += math.log(1000 / t)
            else:
                again += 1
    assert due > 50
    assert again == pytest.approx(due, rel=0.25)
