"""CoBo: collaborative learning via bilevel optimisation (Hashemi, He and Jaggi 2024).

    outer   min over X of  sum_i f_i(x_i) + rho/2 sum_{i<j} w_ij |x_i - x_j|^2
    inner   w_ij in argmax over [0, 1] of  w_ij <grad f_i(z_ij), grad f_j(z_ij)>,   z_ij = (x_i + x_j) / 2

Symbols: X [n, d] the personal models, W [n, n] who learns from whom, rho the pull, gamma the step of W,
eta the clients' learning rate, t the round of T. A round is Algorithm 1: first W at X^t, then X with the new W.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator
from torch import Tensor

from cobo.collaboration import mixing
from cobo.collaboration.domain import Box, Domain, Simplex
from cobo.collaboration.mixing import Step
from cobo.collaboration.sampling import SCHEDULES, Constants, draw_evenly, draw_pairs, expected, thin_out
from cobo.collaboration.signal import SIGNALS, overlook_sampling
from cobo.collaboration.solver import SOLVERS
from cobo.errors import ConfigError
from cobo.federation import Federation, Products, Roster
from cobo.methods.base import Method, State, keep_among, set_aside

# How far an answer that counts for many rounds may move w, if one that counts for one does not move it farther: it may
# come from a lucky batch. With 1 or no limit, Fashion-MNIST (tuned gamma 0.44) ended lower with a straggler.
FARTHEST = 0.5
# A pair with a larger weight (on a simplex, as a share of the largest in its row) is connected; Frank-Wolfe comes ever
# closer to 0 and never gets there.
TIED = 0.01


class CoBo(Method):
    """One personal model per client, and weights that say who should learn from whom.

    `CoBo.paper(...)` is Algorithm 1 literally; the defaults here depart from it where measured to be better over
    several seeds (results/digits-ablation.md): mixed sampling with a late switch, symmetric pairs, clipped gradients
    corrected for small samples, a lazy solver, and a pull toward the collaborators' mean. docs/methods.md says what
    each setting is, and when to change it: mostly `rho`, how strong the pull is, and `gamma`, how fast W moves.

    >>> CoBo(rho=0.5).sampling, CoBo.paper().sampling
    ('mixed', 'constant')
    """

    name: ClassVar[str] = "cobo"
    search: ClassVar[dict[str, Any]] = {"rho": (0.1, 30.0), "gamma": (0.003, 1.0)}
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {
            "rho": 0.05, "gamma": 0.01, "sampling": "constant", "rate": 1.0, "time_rate": None, "switch": 0.002,
            "wait": 0.0, "turns": "random", "pairs": "ordered", "domain": "box", "self_weight": False,
            "solver": "projected", "slack": 1.0, "signal": "inner", "clip": 1.0, "correction": 0.0, "ask": 1,
            "pull": "sum", "ramp": 0.0, "mixing": "explicit", "output": "last",
        }
    }  # fmt: skip

    rho: float = Field(default=0.5, ge=0)
    gamma: float = Field(default=0.05, ge=0)
    sampling: Literal["constant", "time", "mixed", "every"] = "mixed"
    rate: float = Field(default=1.0, gt=0)
    time_rate: float | None = Field(default=None, gt=0)
    switch: float = Field(default=0.5, ge=0, le=1)
    wait: float = Field(default=0.0, ge=0, lt=1)
    turns: Literal["random", "even"] = "random"
    pairs: Literal["symmetric", "ordered"] = "symmetric"
    domain: Literal["box", "simplex"] = "box"
    self_weight: bool = False
    solver: Literal["lazy", "projected", "frank-wolfe"] = "lazy"
    slack: float = Field(default=1.0, ge=0)
    signal: Literal["inner", "cosine", "clipped"] = "clipped"
    clip: float = Field(default=1.0, gt=0)
    correction: float = Field(default=1.5, ge=0)
    ask: int | Literal["all"] = 1
    pull: Literal["mean", "sum"] = "mean"
    ramp: float = Field(default=0.0, ge=0, le=1)
    mixing: Literal["explicit", "implicit", "coupled"] = "explicit"
    output: Literal["last", "uniform"] = "last"

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """Algorithm 1 literally: ordered pairs with probability 1/n, greedy projection onto the box, explicit step.

        The last iterate is returned, as in the paper's experiments; its theory draws one (`output="uniform"`).
        Its mixed strategy switches after 0.2 % of the rounds. rho and gamma are those of the published code.
        """
        return cls(**{**cls.presets["paper"], **changes})

    @field_validator("ask", mode="before")
    @classmethod
    def _is_a_number_or_all(cls, ask: Any) -> Any:
        if ask != "all" and (isinstance(ask, bool) or not isinstance(ask, int) or ask < 1):
            raise ValueError("a number of batches, 1 or more, or 'all'")
        return ask

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.self_weight and self.domain == "box":
            raise ValueError("self_weight = True has a meaning only with domain = 'simplex'")
        return self

    def check(self, federation: Federation, lr: float) -> None:
        if self.domain == "simplex" and not self.self_weight and len(federation) < 2:
            raise ConfigError("domain = 'simplex' needs two clients or self_weight = True: one alone has no peer")
        if self.mixing == "implicit":
            return
        row_sum = 1.0 if self.domain == "simplex" else float(len(federation))
        largest = mixing.largest_stable(self.pull, len(federation), lr, row_sum=row_sum)
        if self.rho >= largest:
            raise ConfigError(
                f"rho = {self.rho} cannot be stable with lr = {lr} and {len(federation)} clients: "
                f"mixing = {self.mixing!r} needs rho < {largest:.6g}; lower rho or lr, or set mixing = 'implicit'"
            )

    def start(self, federation: Federation) -> dict[str, Tensor]:
        W = self._domain.start(len(federation))
        return {"weights": W, "evidence": W.clone(), "signals": torch.zeros_like(W)}

    def gradients_per_round(self, federation: Federation, rounds: int) -> float:
        """One of each client, and two for every pair that is asked, as if W at once connected the known groups alone.

        Or everyone, if groups are not known.
        """
        n, groups = len(federation), federation.groups
        sizes = [n] if None in groups else Counter(groups).values()
        tied = sum(size * (size - 1) / 2 for size in sizes)  # pairs without order
        asked = tied * self._asked(rounds, n, tied=True) + (n * (n - 1) / 2 - tied) * self._asked(rounds, n)
        asked = asked * (1 + (self.pairs == "ordered")) + n * self.self_weight * self._asked(rounds, n, tied=True)
        return float(n + 2 * asked / rounds * federation.cost(federation.places, self.batches).mean())

    def warning(self, federation: Federation, rounds: int) -> str | None:
        asked = self._asked(rounds, len(federation))
        if asked >= 1 or not self.gamma or len(federation) < 2:
            return None
        return (
            f"cobo asks a pair {asked:.2g} times in all {rounds:,} rounds, so some will never be; to learn W, raise "
            "rate or time_rate, or give it more rounds"
        )

    def _asked(self, rounds: int, n: int, *, tied: bool = False) -> float:
        """How often a pair is asked in all, in expectation."""
        constants = self._constants(tied=tied)
        asks = expected(self.sampling, rounds, n, constants, symmetric=self.pairs == "symmetric")
        return float(asks[-1] - asks[self._first(rounds)])

    def seat(
        self, state: State, federation: Federation, seats: Sequence[int | None], start: Tensor, roster: Roster
    ) -> None:
        """Weights among those who stay are as they were; a newcomer's are 1, or what one probing round says.

        While all `wait` there is no such round. By `roster.start` = "peers" a newcomer whom the probe has connected
        goes to the mean of its peers.
        """
        state.seat(seats, start)
        new = np.array([seat is None for seat in seats])
        before, state.tensors = state.tensors, self.start(federation)
        if self.domain == "simplex":  # the weights of those who stay sum to one without the newcomer
            state.tensors["evidence"][~new] = 0
        keep_among(state.tensors, before, seats)
        settle = self._domain.shift if self.solver == "lazy" else self._domain.project  # without those who left
        state.tensors["evidence"] = settle(state.tensors["evidence"])
        if roster.weights == "probe" and state.round >= self._first(state.rounds):
            self._probe(state, federation, new)
        W = state.tensors["weights"] = self._domain.project(state.tensors["evidence"])
        for k in np.flatnonzero(new) if roster.start == "peers" else ():
            peers = ((W[k] > 0) & torch.from_numpy(~new)).numpy()
            if peers.any():
                share = (W[k] / W[k, peers].sum()).to(state.X)
                state.X[k] = share[peers] @ state.X[peers]
                federation.inherit(int(k), peers.tolist())

    def _probe(self, state: State, federation: Federation, new: NDArray[np.bool_]) -> None:
        """The inner problem solved once for the pairs of newcomers, on a simplex for their rows only.

        Who gives no answer is not connected.
        """
        rows = np.broadcast_to(new[:, None], (len(new), len(new))) & ~np.eye(len(new), dtype=bool)
        moved = torch.from_numpy(rows | rows.T if self.domain == "box" else rows)
        asked = rows | rows.T if self.domain == "box" or self.pairs == "symmetric" else rows
        pairs = self._drawn(federation, state.round, asked.astype(float))
        products = federation.products(state.X, pairs, state.round, batches=self.batches)
        state.sent += 4 * len(pairs)
        S, heard = self._hear(state, products, torch.zeros(len(new), dtype=torch.bool))
        silent = moved & (heard == 0)
        Y = state.tensors["evidence"].masked_fill(silent, 0)
        state.tensors["evidence"] = self._domain.vertex(S.masked_fill(silent, -torch.inf), Y, moved & (heard > 0))

    def round(self, state: State, federation: Federation) -> list[str]:
        pairs = self.draw(federation, state.tensors["weights"], state.round, state.rounds)
        answer = federation.gradients(state.X, round=state.round, pairs=pairs, batches=self.batches, out=state.gradient)
        aside = ~federation.gather(answer.finite)
        names = set_aside(state, federation, ~aside)
        answer.rows[~answer.finite] = 0
        self.select(state, federation, answer.products, aside)
        # Up: every model, and both gradients of a pair. Down: the sum of collaborators, and the midpoint to both.
        state.sent += 2 * len(federation) + 4 * len(pairs)
        with state.untouched(~answer.finite):
            if self.mixing == "explicit":  # x <- x - eta rho L x - eta g
                self._pull_together(state.X, "explicit", state, federation, aside, state.lr)
                state.descend(answer.rows)
            elif self.mixing == "implicit":  # x <- (I + eta rho L)^-1 (x - eta g)
                state.descend(answer.rows)
                self._pull_together(state.X, "implicit", state, federation, aside, state.lr)
            else:  # the optimiser's step along g + rho L x; L is blind to what all have in common, and rounding is not
                moved = state.X.detach() - federation.blueprint.start
                self._pull_together(moved, "gradient", state, federation, aside, 1.0)
                state.descend(answer.rows.add_(moved))
        return names

    def _pull_together(
        self, X: Tensor, step: Step, state: State, federation: Federation, aside: Tensor, lr: float
    ) -> None:
        """The outer problem's penalty; who is set aside neither is pulled nor pulls."""
        present = (~aside).cpu().float()
        W = state.tensors["weights"] * present * present[:, None]
        strength = self.strength(lr, state.round, state.rounds)
        mixing.pull_together(X, W, strength, pull=self.pull, step=step, mix=federation.mix)

    def beside(self, federation: Federation) -> int:
        return super().beside(federation) + (len(federation) if self.mixing == "coupled" else 0)

    def strength(self, lr: float, round: int, rounds: int) -> float:
        """eta rho, growing from 0 over the first share `ramp` of the rounds: who may be a stranger pulls less."""
        grown = min(1.0, round / (self.ramp * rounds)) if self.ramp else 1.0
        return lr * self.rho * grown

    def draw(self, federation: Federation, W: Tensor, round: int, rounds: int) -> NDArray[np.int64]:
        """The pairs asked in a round, none while all wait. The time of a pair is counted from when the later joined.

        Pairs that W has parted leave some of their turns out, if `time_rate` says so.
        """
        if round < self._first(rounds):
            return np.empty((0, 2), dtype=np.int64)
        since = np.maximum(federation.since[:, None], federation.since)
        age, n, symmetric = round - since, len(federation), self.pairs == "symmetric"
        tied, parted = (
            SCHEDULES[self.sampling](age, rounds, n, self._constants(tied=connected)) for connected in (True, False)
        )
        if self.turns == "even":
            asks = expected(self.sampling, rounds, n, self._constants(tied=True), symmetric=symmetric)
            keys = federation.keys("pair")
            pairs = draw_evenly(keys, asks[age], asks[age + 1], symmetric=symmetric, with_self=self.self_weight)
        else:
            pairs = self._drawn(federation, round, tied)
        rarer = np.minimum(1, (1 + symmetric) * parted) / np.minimum(1, (1 + symmetric) * tied)
        least = TIED * W.amax(1, keepdim=True) if self.domain == "simplex" else torch.tensor(TIED)
        connected = least < W
        share = np.where((connected | connected.T).numpy(), 1.0, rarer)
        return thin_out(pairs, federation.keys("parted pair"), round, share)

    def _constants(self, *, tied: bool = False) -> Constants:
        return Constants(self.rate, self.time_rate, self.switch, tied)

    def _first(self, rounds: int) -> int:
        """The round from which on pairs are asked; there is always one."""
        return int(self.wait * rounds)

    def _drawn(self, federation: Federation, round: int, probability: NDArray[np.float64]) -> NDArray[np.int64]:
        symmetric = self.pairs == "symmetric"
        return draw_pairs(federation.keys("pair"), round, probability, symmetric=symmetric, with_self=self.self_weight)

    def select(
        self, state: State, federation: Federation, products: Products, aside: Tensor, worth: Tensor | None = None
    ) -> None:
        """Client selection: W^{t+1} from the pairs asked at X^t. Pairs without a finite answer are left alone.

        `worth` [p] says for how many rounds an answer counts, if not for one.
        """
        if self.domain == "simplex" and aside.any():
            return  # rows sum to one, so no pair could move without moving those of a client set aside
        if self.correction and self.domain == "box":
            size = federation.pair_batch(self.batches)
            batch = federation.samples if size is None else torch.tensor(size)
            W = state.tensors["weights"]
            products = overlook_sampling(products, W, federation.samples, batch, self.correction)
        S, asked = self._hear(state, products, aside, worth)
        Y = SOLVERS[self.solver](state.tensors["evidence"], S, asked, self._domain, self.gamma, self.slack)
        state.tensors["evidence"] = Y
        state.tensors["weights"] = self._domain.project(Y)

    def _hear(
        self, state: State, products: Products, aside: Tensor, worth: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """What each pair said last [n, n] (Frank-Wolfe compares all of a row), and how much it counts just now."""
        signal = SIGNALS[self.signal](products, self.clip).float().cpu()
        i, j = products.pairs.unbind(1)
        good = torch.isfinite(signal) & ~aside.cpu()[i] & ~aside.cpu()[j]
        worth = torch.ones_like(signal) if worth is None else worth.to(signal)
        if self.gamma:
            farthest = FARTHEST / (self.gamma * signal.abs().clamp(min=1))
            worth = worth.minimum(farthest.clamp(min=1))
        i, j, signal, worth = i[good], j[good], signal[good], worth[good]
        S = state.tensors["signals"]
        asked = torch.zeros_like(S)
        S[i, j], asked[i, j] = signal, worth
        if self.pairs == "symmetric":
            S[j, i], asked[j, i] = signal, worth
        return S, asked

    @property
    def batches(self) -> int | None:
        """How many batches a pair gradient has; None for all samples, which is the theorem's selection."""
        return None if self.ask == "all" else self.ask

    @property
    def _domain(self) -> Domain:
        return Box() if self.domain == "box" else Simplex(self_weight=self.self_weight)
