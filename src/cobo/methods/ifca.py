"""IFCA: as many models as there are groups, and each client trains the one that suits it (Ghosh et al. 2020, Alg. 1).

    j_i  <-  argmin_j f_i(c_j)                           every client compares all centres, on the same data
    c_j  <-  c_j - eta mean of g_i(c_j) over {i: j_i = j}

Symbols: C [k, d] the centres, j_i the choice of client i, R `initialisations`. The loss is not convex in the choices
and much depends on the start, so R sets of k random centres are trained side by side for a `trial` share of the rounds;
the set whose clients are served best (least mean loss at their own choice, on training data) goes on alone.
"""

from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from cobo.errors import ConfigError
from cobo.federation import Federation
from cobo.methods.base import Method, State, Weighting, names_of, participants, set_aside, shares


class IFCA(Method):
    """`k` is the number of centres; without it, the number of true groups is told.

    All clients compare centres in the first and last round, in others those that take part. A centre that
    nobody chose stays where it is.
    """

    name: ClassVar[str] = "ifca"
    told: ClassVar[str] = "the number of groups"

    k: int | None = Field(default=None, ge=1)
    initialisations: int = Field(default=5, ge=1)
    trial: float = Field(default=0.1, gt=0, le=1)
    participation: float = Field(default=1.0, gt=0, le=1)
    weighting: Weighting = "samples"

    def check(self, federation: Federation, lr: float) -> None:
        if self.k is None and None in federation.groups:
            raise ConfigError("ifca needs to know how many groups there are; set k, or group= on every client")

    def rows(self, federation: Federation) -> Tensor:
        """The first centre of the first set is the start that all methods share."""
        count = self.initialisations * self._k(federation)
        others = [federation.blueprint.another_start(number) for number in range(1, count)]
        return torch.stack([federation.blueprint.start, *others])

    def start(self, federation: Federation) -> dict[str, Tensor]:
        n = len(federation)
        return {
            "choice": torch.zeros(n, dtype=torch.int64),
            "score": torch.zeros(self.initialisations, dtype=torch.float64),
            "weights": torch.ones(n, n),
        }

    def personal(self, state: State, federation: Federation) -> Tensor:
        best = int(state.tensors["score"].argmin()) * self._k(federation)
        return state.X[best + state.tensors["choice"].to(state.X.device)]

    def round(self, state: State, federation: Federation) -> list[str]:
        k, n = self._k(federation), len(federation)
        self._keep_best(state, k)
        sets = len(state.X) // k
        who = participants(federation, state.round, self.participation)
        asked = np.arange(n) if state.round in (0, state.rounds - 1) else who
        losses = federation.losses(state.X, asked.tolist(), state.round)
        sound = torch.isfinite(losses).any(0)  # a client whose data are broken has no say in which set is best
        least, choice = losses.nan_to_num(nan=torch.inf, posinf=torch.inf).view(sets, k, len(asked)).min(1)
        centres = choice + k * torch.arange(sets, device=choice.device)[:, None]  # [sets, asked], rows of X
        part = torch.from_numpy(np.isin(asked, who)).to(choice.device)
        chosen = centres[:, part].reshape(-1)
        answer = federation.gradients(state.X[chosen], np.tile(who, sets).tolist(), state.round, track=sets == 1)
        aside = set_aside(answer.rows, answer.finite, federation, state.round)
        self._step(state, answer.rows, chosen, shares(federation, np.tile(who, sets), self.weighting) * ~aside)
        state.sent += len(asked) * len(state.X) + len(who) * sets
        self._remember(state, asked, least[:, sound], choice.cpu())
        return names_of(aside.view(sets, -1).all(0), federation, who)

    def _step(self, state: State, G: Tensor, chosen: Tensor, p: Tensor) -> None:
        """Every centre follows the mean gradient of those that chose it."""
        M = torch.zeros(len(state.X), len(G), dtype=G.dtype, device=G.device)
        M[chosen, torch.arange(len(G), device=G.device)] = p
        total = M.sum(1, keepdim=True)
        with state.untouched(total[:, 0] == 0):
            state.descend(M / total.clamp(min=1) @ G)

    def _remember(self, state: State, asked: np.ndarray, least: Tensor, choice: Tensor) -> None:
        """The choices under the best set so far; sets are judged by the second half of their trial."""
        if 2 * state.round >= self._trial_rounds(state):
            state.tensors["score"] += least.double().mean(1).cpu()
        mine = state.tensors["choice"]
        mine[asked] = choice[int(state.tensors["score"].argmin())]
        state.tensors["weights"] = (mine[:, None] == mine).float()

    def _keep_best(self, state: State, k: int) -> None:
        sets = len(state.X) // k
        if sets > 1 and state.round >= self._trial_rounds(state):
            best = int(state.tensors["score"].argmin())
            state.take(range(best * k, (best + 1) * k))
            state.tensors["score"] = state.tensors["score"][best : best + 1]

    def _trial_rounds(self, state: State) -> int:
        return max(1, round(self.trial * state.rounds))

    def _k(self, federation: Federation) -> int:
        return len(set(federation.groups)) if self.k is None else self.k
