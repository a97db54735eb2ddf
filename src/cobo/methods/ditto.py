"""Ditto: personal models pulled toward a shared one (Li, Hu, Beirami and Smith 2021, Algorithm 1).

    shared     w    minimises  sum_k p_k f_k(w): FedAvg, whose gradients are taken *at w*
    personal   x_k  minimises  f_k(x_k) + lambda/2 |x_k - w|^2

Symbols: X [n + 1, d], row k < n is x_k and the last row is w. A client that takes part in a round steps both models,
its personal one toward w as it was at the start of the round. w is FedAvg always; with lambda = 0, one local step and
everyone taking part, x_k is Local.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from cobo.errors import ConfigError
from cobo.federation import Federation, Roster
from cobo.methods.base import State, participants, set_aside
from cobo.methods.fedavg import FedAvg


class Ditto(FedAvg):
    """`lam` is the pull lambda; 1 is what its authors recommend. The other settings are FedAvg's."""

    name: ClassVar[str] = "ditto"
    search: ClassVar[dict[str, Any]] = {"lam": (0.001, 10.0)}

    lam: float = Field(default=1.0, ge=0)

    def check(self, federation: Federation, lr: float) -> None:
        if self.lam * lr >= 2:
            raise ConfigError(f"lam = {self.lam} cannot be stable with lr = {lr}: it should be less than {2 / lr:.6g}")

    def rows(self, federation: Federation) -> Tensor:
        return federation.blueprint.start.repeat(len(federation.mine) + 1, 1)

    def trained(self, federation: Federation) -> int:
        return len(federation) + 1

    def gradients_per_round(self, federation: Federation, rounds: int) -> float:
        return 2 * super().gradients_per_round(federation, rounds)

    def personal(self, state: State, federation: Federation) -> Tensor:
        return state.X[:-1]

    def common(self, state: State) -> int:
        return 1

    def seat(
        self, state: State, federation: Federation, seats: Sequence[int | None], start: Tensor, roster: Roster
    ) -> None:
        state.seat([*seats, len(state.X) - 1], start)

    def round(self, state: State, federation: Federation) -> list[str]:
        who = participants(federation, state.round, self.participation)
        mine = federation.here(who)
        rows = federation.rows_of(mine)
        X, w = state.X[:-1] if len(who) == len(federation) else state.X[rows], state.X[-1]
        # The shared model is never used as such, so it moves nobody's running statistics.
        D_w, finite_w = self.directions(state, federation, w.expand(len(mine), -1), mine, track=False)
        finite_w = federation.gather(finite_w, who)
        shared = self.averaged(D_w, finite_w, federation, who)
        del D_w  # as large as X
        D, finite = self.directions(state, federation, X, mine, pull=self.lam, anchor=w)
        aside = set_aside(state, federation, federation.gather(finite, who) & finite_w, who)
        state.sent += 2 * len(who)
        G, still = state.gradient.zero_(), torch.ones(len(state.X), dtype=torch.bool, device=X.device)
        G[rows], still[rows] = D, ~finite
        G[-1:], still[-1] = shared, ~finite_w.any()
        with state.untouched(still):
            state.descend(G)
        return aside
