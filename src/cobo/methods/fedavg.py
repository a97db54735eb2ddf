"""FedAvg: one model that all clients share (McMahan et al. 2017, Algorithm 1).

Symbols: x [1, d] the shared model, S the clients that take part in a round, p_k how much client k counts,
H `local_steps`, eta the learning rate. Each k in S takes H steps from x; the shared model becomes their mean:

    x <- x - eta sum_{k in S} p_k D_k,    D_k = (x - x_k after H steps) / eta,    sum p_k = 1

D_k is client k's gradient when H = 1. The step is taken by the run's optimiser: momentum and Adam are those of the
server (Reddi et al. 2021), the clients' own steps are plain.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from cobo.federation import Federation, Roster
from cobo.methods.base import Method, State, Weighting, how_many, participants, set_aside, shares


class FedAvg(Method):
    """One shared model; `participation` is the share of clients drawn in each round.

    >>> FedAvg(local_steps=5, participation=0.1, weighting="equal").local_steps
    5
    """

    name: ClassVar[str] = "fedavg"

    local_steps: int = Field(default=1, ge=1)
    participation: float = Field(default=1.0, gt=0, le=1)
    weighting: Weighting = "samples"

    def rows(self, federation: Federation) -> Tensor:
        return federation.blueprint.start[None].clone()

    def trained(self, federation: Federation) -> int:
        return 1

    def gradients_per_round(self, federation: Federation, rounds: int) -> float:
        return float(how_many(federation, self.participation) * self.local_steps)

    def personal(self, state: State, federation: Federation) -> Tensor:
        return state.X if len(state.X) > 1 else state.X.expand(len(federation.mine), -1)

    def common(self, state: State) -> int:
        return len(state.X)

    def round(self, state: State, federation: Federation) -> list[str]:
        who = participants(federation, state.round, self.participation)
        mine = federation.here(who)
        D, finite = self.directions(state, federation, state.X.expand(len(mine), -1), mine)
        finite = federation.gather(finite, who)
        aside = set_aside(state, federation, finite, who)
        state.sent += 2 * len(who)
        with state.untouched(~finite.any()[None]):
            state.descend(self.averaged(D, finite, federation, who))
        return aside

    def seat(
        self, state: State, federation: Federation, seats: Sequence[int | None], start: Tensor, roster: Roster
    ) -> None:
        """Everyone has the shared model; a newcomer also gets the others' running statistics."""
        for k, seat in enumerate(seats):
            if seat is None:
                federation.inherit(k, [other is not None for other in seats])

    def directions(
        self,
        state: State,
        federation: Federation,
        models: Tensor,
        who: NDArray[np.int64],
        *,
        pull: float = 0.0,
        anchor: Tensor | None = None,
        track: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """D [m, d]: where each client's local steps from its model lead, and which are finite (the others are 0).

        With `anchor` [d], steps are of the loss plus pull/2 |x - anchor|^2.
        """
        if self.local_steps == 1:
            answer = federation.gradients(models, who.tolist(), state.round, track=track)
            D, finite = answer.rows, answer.finite
            if anchor is not None:
                for d, x in zip(D, models, strict=True):  # one by one, as all differences together are as large as X
                    d.add_(x - anchor, alpha=pull)
        else:
            moved = federation.local_steps(
                models, who.tolist(), state.round, steps=self.local_steps, lr=state.lr, track=track,
                pull=None if anchor is None else torch.full_like(models[:, 0], pull),
                anchors=None if anchor is None else pull * anchor,
            )  # fmt: skip
            D = (models - moved) / state.lr if state.lr else torch.zeros_like(moved)
            finite = torch.isfinite(D.sum(1))
        D[~finite] = 0
        return D, finite

    def averaged(self, D: Tensor, finite: Tensor, federation: Federation, who: NDArray[np.int64]) -> Tensor:
        """[1, d]: the mean direction of those that are finite."""
        p = shares(federation, who, self.weighting) * finite
        return federation.combine((p / p.sum().clamp(min=1))[None], D, who)
