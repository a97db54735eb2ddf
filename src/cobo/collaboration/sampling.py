"""Which pairs are asked in a round: the sampling strategies of the paper's Table 1.

A schedule gives the probability with which an *ordered* pair is asked in round t = 0, 1, ... of T; t may be an array,
as not all pairs are of one age. When pairs are
symmetric, an unordered pair stands for two ordered ones and is asked with twice the probability (at most 1), so that
both settings compute the same expected number of gradients as long as that probability is at most one half.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cobo import draws


class Constants(NamedTuple):
    """rate / n while constant; time_rate / t while time-dependent; mixed switches after a share of the rounds.

    `tied` says that they are for pairs that W connects.
    """

    rate: float
    time_rate: float | None
    switch: float
    tied: bool = False


Times = NDArray[np.int64]
Probability = NDArray[np.float64]
Schedule = Callable[[Times, int, int, Constants], Probability]


def constant(t: Times, T: int, n: int, c: Constants) -> Probability:
    """O(1/n): n pairs a round in expectation, whatever n is."""
    return np.full(np.shape(t), min(1.0, c.rate / n))


def time(t: Times, T: int, n: int, c: Constants) -> Probability:
    """O(1/t): often at first, when W is learned, and ever more rarely."""
    rate = 1.0 if c.time_rate is None else c.time_rate
    return np.minimum(1.0, rate / (np.asarray(t) + 1))


def mixed(t: Times, T: int, n: int, c: Constants) -> Probability:
    """Constant for the first share of the rounds, then O(1/t), by default without a jump at the switch.

    A `time_rate` that asks more rarely than that is for pairs that are parted: who is still connected may only not have
    been parted yet. Their models are close, so their answers can be trusted; strangers that are far apart agree for no
    reason (docs/images.md).
    """
    turn = max(1, round(c.switch * T))
    before = constant(t, T, n, c)
    rate = before * turn
    if c.time_rate is not None:
        rate = np.maximum(rate, c.time_rate) if c.tied else np.full_like(rate, c.time_rate)
    return np.where(np.asarray(t) < turn, before, np.minimum(1.0, rate / (np.asarray(t) + 1)))


def every(t: Times, T: int, n: int, c: Constants) -> Probability:
    """All pairs in every round: the paper's non-sampling oracle, quadratic in n."""
    return np.ones(np.shape(t))


SCHEDULES: dict[str, Schedule] = {"constant": constant, "time": time, "mixed": mixed, "every": every}


@lru_cache(maxsize=64)
def expected(strategy: str, T: int, n: int, c: Constants, *, symmetric: bool) -> Probability:
    """How often a pair is asked, in expectation, before round 0, 1, ..., T."""
    probability = SCHEDULES[strategy](np.arange(T), T, n, c)
    return np.concatenate([[0.0], np.cumsum(np.minimum(1.0, (1 + symmetric) * probability))])


def possible_pairs(keys: draws.Keys, *, symmetric: bool, with_self: bool = False) -> NDArray[np.int64]:
    """[2, p]: all pairs of n clients. Who comes first in a symmetric one is not a matter of place.

    A client with itself is asked as often as any other entry of its row of W is moved.
    """
    n = len(keys)
    if symmetric:
        i, j = np.triu_indices(n, 0 if with_self else 1)
        return np.where(keys[i] < keys[j], (i, j), (j, i))
    return np.stack(np.nonzero(np.ones((n, n)) if with_self else ~np.eye(n, dtype=bool)))


def draw_pairs(
    keys: draws.Keys, round: int, probability: Probability | float, *, symmetric: bool, with_self: bool = False
) -> NDArray[np.int64]:
    """The pairs [p, 2] asked in a round, each by itself, with its probability [n, n] or all with one.

    They are drawn from both clients' keys, so not dependent on who else is there.
    """
    i, j = possible_pairs(keys, symmetric=symmetric, with_self=with_self)
    probability = (1 + symmetric) * np.broadcast_to(probability, (len(keys), len(keys)))
    asked = draws.uniform(draws.combine(keys[i], keys[j], round), 1)[:, 0] < probability[i, j]
    return np.stack([i[asked], j[asked]], axis=1)


def draw_evenly(
    keys: draws.Keys, before: Probability, after: Probability, *, symmetric: bool, with_self: bool = False
) -> NDArray[np.int64]:
    """The pairs [p, 2] whose turn it is, given how often each is expected to be asked before and after a round [n, n].

    Systematic sampling: a pair has the same probability in each round as with `draw_pairs`, but it is asked once
    in every stretch of rounds in which once is expected; none has to wait much longer than the others.
    """
    i, j = possible_pairs(keys, symmetric=symmetric, with_self=with_self)
    phase = draws.uniform(draws.combine(keys[i], keys[j]), 1)[:, 0]
    asked = np.floor(after[i, j] + phase) > np.floor(before[i, j] + phase)
    return np.stack([i[asked], j[asked]], axis=1)


def thin_out(pairs: NDArray[np.int64], keys: draws.Keys, round: int, share: Probability) -> NDArray[np.int64]:
    """Those of the pairs [p, 2] that are asked after all, each with its probability [n, n]."""
    i, j = pairs.T
    kept: NDArray[np.int64] = pairs[draws.uniform(draws.combine(keys[i], keys[j], round), 1)[:, 0] < share[i, j]]
    return kept
