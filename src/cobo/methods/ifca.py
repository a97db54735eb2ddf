"""IFCA: as many models as there are groups, and each client trains the one that suits it (Ghosh et al. 2020, Alg. 1).

    j_i  <-  argmin_j f_i(c_j)                           every client compares all centres, on the same data
    c_j  <-  c_j - eta mean of g_i(c_j) over {i: j_i = j}

Symbols: C [k, d] the centres, j_i the choice of client i, R `initialisations`. The loss is not convex in the choices
and much depends on the start, so R sets of k random centres are trained side by side for a `trial` share of the rounds;
the set whose clients are served best (least mean loss at their own choice, on training data) goes on alone.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from cobo.errors import ConfigError
from cobo.federation import Federation, Roster
from cobo.methods.base import Method, State, Weighting, how_many, participants, set_aside, shares


class IFCA(Method):
    """`k` is the number of centres; without it, the number of true groups is told.

    `compare` says on what: the batch of the round's gradient, or all of a client's training samples. All clients
    compare in the first round and, on all samples, in the last; in others those that take part. A centre that
    nobody chose stays where it is.
    """

    name: ClassVar[str] = "ifca"
    told: ClassVar[str] = "the number of groups"
    search: ClassVar[dict[str, Any]] = {"compare": ["batch", "all"]}

    k: int | None = Field(default=None, ge=1)
    initialisations: int = Field(default=5, ge=1)
    trial: float = Field(default=0.1, gt=0, le=1)
    compare: Literal["batch", "all"] = "batch"
    participation: float = Field(default=1.0, gt=0, le=1)
    weighting: Weighting = "samples"

    def check(self, federation: Federation, lr: float) -> None:
        if self.k is None and None in [client.group for client in federation.clients]:
            raise ConfigError("ifca needs to know how many groups there are; set k, or group= on every client")
        blueprint = federation.blueprint
        if hasattr(blueprint.module, "peft_config"):
            raise ConfigError("ifca starts from models that differ, but adapters all start as their base; use cobo")
        if self.trained(federation) > 1 and torch.equal(blueprint.another_start(1), blueprint.start):
            raise ConfigError("ifca starts from several models, but model() makes the same one each time; let it draw")

    def rows(self, federation: Federation) -> Tensor:
        """The first centre of the first set is the start that all methods share."""
        count = self.trained(federation)
        others = [federation.blueprint.another_start(number) for number in range(1, count)]
        return torch.stack([federation.blueprint.start, *others])

    def trained(self, federation: Federation) -> int:
        return self.initialisations * self._k(federation)

    def gradients_per_round(self, federation: Federation, rounds: int) -> float:
        n, k, who = len(federation), self._k(federation), how_many(federation, self.participation)
        all_samples = float(federation.cost(federation.places, None).mean())
        gradients = compared = 0.0
        for t in range(rounds):
            sets = self.initialisations if t < self._trial_rounds(rounds) else 1
            first_or_last, whole = t in (0, rounds - 1), self.compare == "all" or t == rounds - 1
            batches = (n if first_or_last else who) * (all_samples if whole else 1)
            gradients += sets * who
            compared += sets * k * batches
        return (gradients + compared / 3) / rounds

    def start(self, federation: Federation) -> dict[str, Tensor]:
        n = len(federation)
        return {
            "choice": torch.zeros(self.initialisations, n, dtype=torch.int64),
            "score": torch.zeros(self.initialisations, dtype=torch.float64),
            "weights": torch.ones(n, n),
        }

    def personal(self, state: State, federation: Federation) -> Tensor:
        best = self._best(state)
        choice = federation.part(state.tensors["choice"][best])
        return state.X[self._centres(state) * best + choice.to(state.X.device)]

    def common(self, state: State) -> int:
        return len(state.X)

    def round(self, state: State, federation: Federation) -> list[str]:
        k, n = self._centres(state), len(federation)
        self._keep_best(state, k)
        who = participants(federation, state.round, self.participation)
        self._choose(state, federation, np.arange(n) if state.round in (0, state.rounds - 1) else who)
        p, G = shares(federation, who, self.weighting), state.gradient
        total, answered = torch.zeros_like(G[:, 0]), torch.zeros_like(p, dtype=torch.bool)
        here = federation.here(who)
        for number, choice in enumerate(state.tensors["choice"]):
            centres = (choice + number * k).to(G.device)
            track = number == self._best(state)
            answer = federation.gradients(state.X[centres[here]], here.tolist(), state.round, track=track)
            answer.rows[~answer.finite] = 0
            finite = federation.gather(answer.finite, who)
            M = torch.zeros(len(G), len(who), dtype=G.dtype, device=G.device)
            M[centres[who], torch.arange(len(who), device=G.device)] = p * finite
            mine = slice(number * k, (number + 1) * k)
            total[mine] = M[mine].sum(1)
            G[mine] = federation.combine(M[mine] / total[mine, None].clamp(min=1), answer.rows, who)
            answered |= finite
        with state.untouched(total == 0):
            state.descend(G)
        state.sent += len(who) * len(state.tensors["score"])
        best = state.tensors["choice"][self._best(state)]
        state.tensors["weights"] = (best[:, None] == best).float()
        return set_aside(state, federation, answered, who)

    def seat(
        self, state: State, federation: Federation, seats: Sequence[int | None], start: Tensor, roster: Roster
    ) -> None:
        """Newcomers choose among the centres; nobody has a model of its own to bring."""
        state.tensors["choice"] = state.tensors["choice"][:, [seat or 0 for seat in seats]]
        new = np.array([k for k, seat in enumerate(seats) if seat is None], dtype=np.int64)
        if len(new):
            self._compare(state, federation, new)
        best = state.tensors["choice"][self._best(state)]
        W = state.tensors["weights"] = (best[:, None] == best).float()
        for k in new.tolist():
            federation.inherit(k, [bool(W[k, j]) and seat is not None for j, seat in enumerate(seats)])

    def _choose(self, state: State, federation: Federation, asked: NDArray[np.int64]) -> None:
        """Clients compare the centres of every set; sets are judged by the second half of their trial."""
        least = self._compare(state, federation, asked)
        sound = torch.isfinite(least).any(0)  # a client whose data are broken has no say in which set is best
        if sound.any() and 2 * (state.round + 1) > self._trial_rounds(state.rounds):
            state.tensors["score"] += least[:, sound].mean(1)

    def _compare(self, state: State, federation: Federation, asked: NDArray[np.int64]) -> Tensor:
        """Clients choose their centre in every set; [sets, m] the least losses."""
        whole = self.compare == "all" or state.round == state.rounds - 1
        losses = federation.losses(state.X, federation.here(asked).tolist(), state.round, whole=whole)
        losses = federation.gather(losses.T, asked).T.cpu().double()
        sets = losses.nan_to_num(nan=torch.inf, posinf=torch.inf).view(-1, self._centres(state), len(asked))
        least, state.tensors["choice"][:, asked] = sets.min(1)
        state.sent += len(asked) * len(state.X)
        return least

    def _keep_best(self, state: State, k: int) -> None:
        """At the end of the trial one set goes on."""
        if len(state.X) > k and state.round >= self._trial_rounds(state.rounds):
            best = self._best(state)
            state.take(range(best * k, (best + 1) * k))
            for name in ("score", "choice"):
                state.tensors[name] = state.tensors[name][best : best + 1]

    def _best(self, state: State) -> int:
        return int(state.tensors["score"].argmin())

    def _trial_rounds(self, rounds: int) -> int:
        return max(1, round(self.trial * rounds))

    def _centres(self, state: State) -> int:
        """k, which stays what it was at the start, whoever joins or leaves."""
        return len(state.X) // len(state.tensors["score"])

    def _k(self, federation: Federation) -> int:
        return len({client.group for client in federation.clients}) if self.k is None else self.k
