"""Domains, solvers, signals and mixing against brute force and closed forms."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from cobo.collaboration import graph, mixing
from cobo.collaboration.domain import Box, Simplex
from cobo.collaboration.signal import SIGNALS, overlook_sampling
from cobo.collaboration.solver import SOLVERS
from cobo.federation import Products

numbers = st.floats(-3, 3, allow_nan=False, width=32)


def matrices(n, numbers=numbers):
    return st.lists(st.lists(numbers, min_size=n, max_size=n), min_size=n, max_size=n).map(torch.tensor)


def nearest_on_simplex(y: np.ndarray) -> np.ndarray:
    """A general-purpose solver, to hold the exact projection against."""
    found = minimize(
        lambda w: ((w - y) ** 2).sum(),
        np.full(len(y), 1 / len(y)),
        jac=lambda w: 2 * (w - y),
        bounds=[(0, 1)] * len(y),
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": lambda w: np.ones_like(w)},
        options={"ftol": 1e-12},
    )
    return found.x


@settings(max_examples=60, deadline=None)
@given(matrices(4), st.booleans())
def test_simplex_projection_is_feasible_idempotent_and_optimal(Y, self_weight):
    domain = Simplex(self_weight=self_weight)
    W = domain.project(Y)
    assert (W >= 0).all()
    assert torch.allclose(W.sum(1), torch.ones(4), atol=1e-5)
    assert torch.allclose(domain.project(W), W, atol=1e-5)
    for k in range(4):
        kept = np.arange(4) if self_weight else np.delete(np.arange(4), k)
        if not self_weight:
            assert W[k, k] == 0
        assert np.allclose(W[k, kept], nearest_on_simplex(Y[k, kept].double().numpy()), atol=2e-3)


@settings(max_examples=200, deadline=None)
@given(matrices(4, st.floats(allow_nan=False, allow_infinity=False, width=32)), st.booleans())
def test_simplex_projection_of_any_finite_evidence_is_on_the_simplex(Y, self_weight):
    W = Simplex(self_weight=self_weight).project(Y)
    assert (W >= 0).all()
    assert torch.allclose(W.sum(1), torch.ones(4), atol=1e-5)


def test_simplex_projection_of_large_evidence_by_hand():
    Y = torch.tensor([[1.7e7, 0, 0], [1e8, 1e8, -3e38], [0, 1e30, 1.0]])
    assert Simplex(self_weight=True).project(Y).tolist() == [[1, 0, 0], [0.5, 0.5, 0], [0, 1, 0]]


@settings(max_examples=60, deadline=None)
@given(matrices(3))
def test_box_projection_is_feasible_idempotent_and_optimal(Y):
    W = Box().project(Y)
    assert (W >= 0).all()
    assert (W <= 1).all()
    assert (Box().project(W) == W).all()
    grid = torch.linspace(0, 1, 101)
    best = grid[(Y[..., None] - grid).abs().argmin(-1)]
    assert torch.allclose(W, best, atol=0.0051)


@settings(max_examples=60, deadline=None)
@given(matrices(4), matrices(4), st.booleans(), st.sampled_from(["projected", "frank-wolfe", "lazy"]))
def test_every_solver_stays_in_the_domain(start, S, box, solver):
    domain = Box() if box else Simplex(self_weight=False)
    Y = domain.project(start)
    asked = S > 0.5
    for _ in range(3):
        Y = SOLVERS[solver](Y, S * asked, asked, domain, 0.7, 0.5)
        W = domain.project(Y)
        assert (W >= 0).all()
        assert (W <= 1 + 1e-6).all()
        if not box:
            assert torch.allclose(W.sum(1), torch.ones(4), atol=1e-4)


def test_solvers_find_the_corner_of_the_linear_problem():
    S = torch.tensor([[0.0, 0.3, -0.2], [0.3, 0.0, 0.1], [-0.2, 0.1, 0.0]])
    asked = ~torch.eye(3, dtype=torch.bool)
    for solver in SOLVERS.values():
        Y = Box().start(3)
        for _ in range(200):
            Y = solver(Y, S, asked, Box(), 0.1, 1.0)
        expected = torch.tensor([[1.0, 1, 0], [1, 1, 1], [0, 1, 1]])
        assert torch.allclose(Box().project(Y), expected, atol=1e-6)
        rows = Simplex(self_weight=False)
        Y = rows.start(3)
        for _ in range(200):
            Y = solver(Y, S, asked, rows, 0.1, 1.0)
        assert torch.allclose(rows.project(Y), torch.tensor([[0.0, 1, 0], [1, 0, 0], [0, 1, 0]]), atol=1e-6)


def test_greedy_forgets_beyond_the_border_and_lazy_remembers_up_to_its_slack():
    asked = torch.tensor([[False, True], [True, False]])
    against, favour = -asked.float(), asked.float()
    for solver, expected in (("projected", 0.4), ("lazy", 0.0)):
        Y = Box().start(2)
        for _ in range(10):
            Y = SOLVERS[solver](Y, against, asked, Box(), 0.4, 1.0)
        Y = SOLVERS[solver](Y, favour, asked, Box(), 0.4, 1.0)
        assert Box().project(Y)[0, 1] == pytest.approx(expected)
    for _ in range(2):  # -1 + 3 * 0.4 = 0.2
        Y = SOLVERS["lazy"](Y, favour, asked, Box(), 0.4, 1.0)
    assert Box().project(Y)[0, 1] == pytest.approx(0.2)


def test_frank_wolfe_moves_a_share_toward_the_corner_and_leaves_others():
    W = torch.full((3, 3), 0.5)
    S = torch.zeros(3, 3)
    asked = torch.zeros(3, 3, dtype=torch.bool)
    S[0, 1], asked[0, 1] = 2.0, True
    S[0, 2], asked[0, 2] = -2.0, True
    moved = SOLVERS["frank-wolfe"](W, S, asked, Box(), 0.1, 1.0)
    assert moved[0].tolist() == pytest.approx([0.5, 0.55, 0.45])
    assert (moved[1:] == 0.5).all()


def test_signals_by_hand():
    pairs = torch.tensor([[0, 1], [1, 0]])
    products = Products(pairs, torch.tensor([6.0, -0.02]), torch.tensor([3.0, 0.1]), torch.tensor([4.0, 0.2]))
    assert SIGNALS["inner"](products, 1.0).tolist() == pytest.approx([6.0, -0.02])
    assert SIGNALS["cosine"](products, 1.0).tolist() == pytest.approx([0.5, -1.0])
    assert SIGNALS["clipped"](products, 1.0).tolist() == pytest.approx([0.5, -0.02])
    assert SIGNALS["clipped"](products, 2.0).tolist() == pytest.approx([2.0, -0.02])


def test_correction_is_the_cosine_that_sampling_alone_causes():
    """c clients of one distribution at the minimum of their joint loss, simulated: the corrected mean is zero."""
    c, m, b, d, trials = 3, 12, 4, 5, 4000
    generator = torch.Generator().manual_seed(0)
    corrected, raw = [], []
    for _ in range(trials):
        X = torch.randn(c, m, d, generator=generator)  # samples; f_i(x) = mean |x - sample|^2 / 2
        gradients = X.mean((0, 1)) - X  # per sample, at the joint minimum
        drawn = torch.randint(0, m, (2, b), generator=generator)
        g, h = gradients[0, drawn[0]].mean(0), gradients[1, drawn[1]].mean(0)
        products = Products(torch.tensor([[0, 1]]), (g @ h)[None], g.norm()[None], h.norm()[None])
        # By itself the square of the norm is what the derivation uses; its mean is compared here.
        square = Products(products.pairs, products.inner, (g @ g)[None], torch.ones(1))
        raw.append(products.inner.item())
        samples = torch.full((c,), m)
        corrected.append(overlook_sampling(square, torch.ones(c, c), samples, torch.tensor(b), 1.0).inner.item())
    error = 3 * np.std(corrected) / trials**0.5
    assert np.mean(raw) < -3 * np.std(raw) / trials**0.5
    assert abs(np.mean(corrected)) < error


def test_correction_forgives_connected_pairs_only_and_never_full_opposition():
    opposed = Products(torch.tensor([[0, 1]]), torch.tensor([-4.0]), torch.tensor([2.0]), torch.tensor([2.0]))
    samples, batch = torch.tensor([10, 10]), torch.tensor(10)
    together = overlook_sampling(opposed, torch.ones(2, 2), samples, batch, 1.5)
    apart = overlook_sampling(opposed, torch.eye(2), samples, batch, 1.5)
    myself = replace(opposed, pairs=torch.tensor([[0, 0]]))
    assert overlook_sampling(myself, torch.ones(2, 2), samples, batch, 1.5).inner.item() == -4
    assert together.inner.item() == pytest.approx(-4 + 4 * 1.5 * 0.5 / 1.5)
    assert apart.inner.item() == -4


def test_laplacian_is_the_penaltys_derivative():
    W = torch.rand(5, 5, generator=torch.Generator().manual_seed(0)).double()
    X = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    by_loops = torch.stack([sum(W[i, k] * (X[i] - X[k]) for k in range(5)) for i in range(5)])
    assert torch.allclose(mixing.laplacian(W, "sum") @ X, by_loops)
    degree = (W.sum(1) - W.diagonal()).clamp(min=1)
    assert torch.allclose(mixing.laplacian(W, "mean") @ X, by_loops / degree[:, None])


@pytest.mark.parametrize("step", ["explicit", "implicit"])
@pytest.mark.parametrize("d", [3, 1024, 9000])
def test_pulling_parts_apart_equals_the_dense_step(step, d):
    generator = torch.Generator().manual_seed(0)
    W = torch.zeros(7, 7)
    for part in ([0, 3, 5], [1, 6], [2], [4]):
        for i in part:
            for j in part:
                W[i, j] = torch.rand((), generator=generator) + 0.1
    X = torch.randn(7, d, generator=generator)
    L = mixing.laplacian(W, "sum")
    M = mixing.explicit(L, 0.2) if step == "explicit" else mixing.implicit(L, 0.2)
    expected = (M @ X.double()).float()
    alone = X[[2, 4]].clone()
    mixing.pull_together(X, W, 0.2, pull="sum", step=step)
    assert torch.allclose(X, expected, atol=1e-5)
    assert (X[[2, 4]] == alone).all()


def test_implicit_is_stable_for_any_strength_and_explicit_is_not():
    W = torch.ones(10, 10)
    for step, bounded in (("implicit", True), ("explicit", False)):
        X = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
        mean = X.mean(0)
        for _ in range(20):
            mixing.pull_together(X, W, 100.0, pull="sum", step=step)
        assert (X.abs().max() < 10) == bounded
        if bounded:
            assert torch.allclose(X, mean.expand_as(X), atol=1e-4)


def test_groups_and_scores_of_a_graph():
    W = graph.oracle(["a", "a", "b", "b", "c"])
    assert graph.components(W).tolist() == [0, 0, 1, 1, 2]
    assert graph.weights_error(W, ["a", "a", "b", "b", "c"]) == 0
    assert graph.groups_score(W, ["a", "a", "b", "b", "c"]) == 1
    W[0, 1] = W[1, 0] = 0.3  # below the threshold: the pair falls apart
    assert graph.components(W).tolist() == [0, 1, 2, 2, 3]
    assert graph.weights_error(W, ["a", "a", "b", "b", "c"]) == pytest.approx(2 * 0.7 / 20)
    assert graph.groups_score(W, ["a", "a", "b", "b", "c"]) < 1
    assert graph.settled(W, W) == 1
    weak = np.full((4, 4), 0.2)
    assert len(set(graph.components(weak))) == 4  # weak is weak on the box,
    assert len(set(graph.components(weak, relative=True))) == 1  # but equal shares on a simplex
    assert graph.settled(W, graph.oracle(["a", "a", "b", "b", "c"])) == pytest.approx(18 / 20)


def test_who_trusts_itself_alone_is_in_no_group():
    W = np.array([[0.97, 0.02, 0.01], [0.3, 0.7, 0.0], [0.0, 0.0, 1.0]])
    assert len(set(graph.components(W, relative=True).tolist())) == 3
    W[0] = [0.3, 0.7, 0.0]
    assert graph.components(W, relative=True).tolist() == [0, 0, 1]
