"""Randomness is a function of (seed, purpose, name, round)."""

import numpy as np
from conftest import blobs
from scipy import stats
from torch import nn

from cobo import draws
from cobo.collaboration.sampling import SCHEDULES, Constants, draw_evenly, draw_pairs, expected
from cobo.federation import Federation


def keys_of(count: int, purpose: str = "pair") -> np.ndarray:
    return np.array([draws.key(0, purpose, f"client{k}") for k in range(count)])


def test_uniform_numbers_are_uniform_and_uncorrelated():
    u = draws.uniform(keys_of(50, "batch"), 400)
    assert u.min() >= 0
    assert u.max() < 1
    assert stats.kstest(u.ravel(), "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(u[:-1].ravel(), u[1:].ravel())[0, 1]) < 0.03
    assert abs(np.corrcoef(u[:, :-1].ravel(), u[:, 1:].ravel())[0, 1]) < 0.03


def test_integers_cover_their_range_evenly():
    counts = np.bincount(draws.integers(keys_of(100), np.full(100, 7), 700).ravel(), minlength=7)
    assert len(counts) == 7
    assert stats.chisquare(counts).pvalue > 1e-3


def test_every_part_of_a_key_matters():
    base = draws.key(0, "batch", "north")
    others = [draws.key(1, "batch", "north"), draws.key(0, "pair", "north"), draws.key(0, "batch", "south")]
    combined = [draws.combine(base, 3), draws.combine(base, 4), draws.combine(base, 3, 0), draws.combine(base, 0, 3)]
    assert len({int(k) for k in [base, *others, *combined]}) == 8


def test_pair_frequencies_follow_the_schedule():
    n, rounds = 6, 3000
    for symmetric, pairs, p in ((False, n * (n - 1), 1 / n), (True, n * (n - 1) // 2, 2 / n)):
        counts = np.zeros((n, n))
        for t in range(rounds):
            i, j = draw_pairs(keys_of(n), t, 1 / n, symmetric=symmetric).T
            counts[i, j] += 1
        seen = (counts + counts.T)[np.triu_indices(n, 1)] if symmetric else counts[~np.eye(n, dtype=bool)]
        assert counts.diagonal().sum() == 0
        assert len(seen) == pairs
        # Each pair is a binomial(rounds, p); their squared deviations are chi-square with `pairs` degrees.
        z = (seen - rounds * p) ** 2 / (rounds * p * (1 - p))
        assert 1e-3 < stats.chi2(pairs).cdf(z.sum()) < 1 - 1e-3


def test_schedules_have_the_stated_probabilities():
    c = Constants(rate=2.0, time_rate=3.0, switch=0.25)
    assert SCHEDULES["constant"](17, 100, 8, c) == 2 / 8
    assert SCHEDULES["time"](9, 100, 8, c) == 3 / 10
    assert SCHEDULES["time"](0, 100, 8, c) == 1
    assert SCHEDULES["mixed"](24, 100, 8, c) == 2 / 8
    assert SCHEDULES["mixed"](29, 100, 8, c) == 3 / 30
    assert SCHEDULES["every"](0, 100, 8, c) == 1
    smooth = Constants(rate=2.0, time_rate=None, switch=0.25)
    assert SCHEDULES["mixed"](24, 100, 8, smooth) == 2 / 8
    assert SCHEDULES["mixed"](49, 100, 8, smooth) == 2 / 8 * 25 / 50


def test_pairs_of_two_clients_do_not_depend_on_who_else_is_there():
    few, many = keys_of(4), keys_of(9)
    for t in range(50):
        of_few = {tuple(p) for p in draw_pairs(few, t, 0.3, symmetric=True)}
        of_many = {tuple(p) for p in draw_pairs(many, t, 0.3, symmetric=True) if p.max() < 4}
        assert all((j, i) not in of_few for i, j in of_few)
        assert of_few == of_many


def turns(keys: np.ndarray, asks: np.ndarray, symmetric: bool) -> list[set[tuple[int, int]]]:
    every = np.broadcast_to(asks, (len(keys), len(keys), len(asks)))
    drawn = (draw_evenly(keys, every[..., t], every[..., t + 1], symmetric=symmetric) for t in range(len(asks) - 1))
    return [{tuple(pair) for pair in pairs.tolist()} for pairs in drawn]


def test_even_turns_ask_every_pair_as_often_as_expected_and_let_none_wait():
    n, T = 12, 400
    for strategy, symmetric in (("constant", True), ("mixed", True), ("time", False), ("mixed", False)):
        asks = expected(strategy, T, n, Constants(rate=0.7, time_rate=None, switch=0.25), symmetric=symmetric)
        p = np.minimum(1, (1 + symmetric) * SCHEDULES[strategy](np.arange(T), T, n, Constants(0.7, None, 0.25)))
        assert np.allclose(np.diff(asks), p)
        rounds = turns(keys_of(n), asks, symmetric)
        pairs = set().union(*rounds)
        assert len(pairs) == (n * (n - 1) // 2 if symmetric else n * (n - 1))
        for pair in pairs:
            counted = np.cumsum([pair in asked for asked in rounds])
            assert np.abs(counted - asks[1:]).max() < 1 + 1e-9  # at every time, not only in the end
        # In one round pairs do not move together: their number spreads as if they were drawn one by one, or less.
        counts = np.array([len(asked) for asked in rounds])
        assert (np.abs(counts - len(pairs) * p) <= 5 * np.sqrt(len(pairs) * p * (1 - p)) + 1).all()


def test_all_pairs_have_had_a_turn_where_drawing_them_one_by_one_leaves_many_out():
    n, rounds = 80, 80
    asks = expected("constant", rounds, n, Constants(rate=0.5, time_rate=None, switch=0.5), symmetric=True)
    assert len(set().union(*turns(keys_of(n), asks, True))) == n * (n - 1) // 2
    alone = {tuple(p) for t in range(rounds) for p in draw_pairs(keys_of(n), t, 0.5 / n, symmetric=True).tolist()}
    assert len(alone) < 0.7 * n * (n - 1) // 2


def test_even_turns_of_two_clients_do_not_depend_on_who_else_is_there():
    asks = np.cumsum(np.full(61, 0.23)) - 0.23
    few, many = turns(keys_of(4), asks, True), turns(keys_of(9), asks, True)
    assert few == [{pair for pair in asked if max(pair) < 4} for asked in many]
    assert any(few)


def test_adding_a_client_does_not_change_anothers_gradients():
    clients = [blobs(name, seed=k) for k, name in enumerate(("a", "b", "c"))]
    model = nn.Linear(2, 2)
    few, many = Federation(clients[:2], model, batch_size=4), Federation(clients, model, batch_size=4)
    for t in range(3):
        two = few.gradients(few.start, round=t).rows
        three = many.gradients(many.start, round=t).rows
        assert (two == three[:2]).all()
