"""Federated Clustering: every client averages the gradients that look like its own (Werner et al. 2023).

In each round every client k takes a gradient z_k = g_k(x_i) at every model x_i; client i averages them around its own:

    v <- z_i;   repeated:   v <- 1/n sum_k (z_k if |z_k - v| <= tau, else v);   x_i <- x_i - eta v

Symbols: tau the threshold, such that a `quantile` of the n points lies within it, its own included. With all within it
(tau infinite) v is the mean of all gradients; with none but its own, client i is alone. n^2 gradients a round.
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from cobo.errors import ConfigError
from cobo.federation import Federation, Roster
from cobo.methods.base import Method, State, keep_among, set_aside


class FederatedClustering(Method):
    """Without `quantile`, each client is told the size of its true group.

    With `client_momentum` b, an option of ours, the points are m_ik <- b m_ik + (1 - b) g_k(x_i): less noise, n^2 d
    numbers to remember. (The authors' Momentum-Clustering is another method: a momentum per client, at its own model.)
    """

    name: ClassVar[str] = "fc"
    told: ClassVar[str] = "group sizes"
    search: ClassVar[dict[str, Any]] = {"client_momentum": [0.0, 0.5, 0.9], "iterations": [3, 10, 30]}

    own: ClassVar[tuple[str, ...]] = (*Method.own, "momenta")

    quantile: float | None = Field(default=None, gt=0, le=1)
    iterations: int = Field(default=10, ge=1)
    client_momentum: float = Field(default=0.0, ge=0, lt=1)

    def check(self, federation: Federation, lr: float) -> None:
        if self.quantile is None and None in federation.groups:
            raise ConfigError("fc needs to know how large a group is; set quantile, or group= on every client")

    def beside(self, federation: Federation) -> int:
        """A block of models, their gradients, points and distances; with momentum, its copies and all momenta."""
        n = len(federation)
        block = n * max(1, federation.models_at_once // n)
        return 6 * block + n * n if self.client_momentum else 4 * block

    def gradients_per_round(self, federation: Federation, rounds: int) -> float:
        return float(len(federation) ** 2)

    def warning(self, federation: Federation, rounds: int) -> str:
        n, start = len(federation), federation.blueprint.start
        text = f"fc takes a gradient of every client at every model: {n * n:,} a round and {n * n * rounds:,} in all"
        if self.client_momentum:
            return f"{text}; their momenta take {n * n * start.numel() * start.element_size() / 1e6:,.0f} MB"
        return text

    def start(self, federation: Federation) -> dict[str, Tensor]:
        n, blueprint = len(federation), federation.blueprint
        momenta = {"momenta": torch.full((len(federation.mine), n, blueprint.size), torch.nan, dtype=blueprint.dtype)}
        return {"weights": torch.ones(n, n), **(momenta if self.client_momentum else {})}

    def seat(
        self, state: State, federation: Federation, seats: Sequence[int | None], start: Tensor, roster: Roster
    ) -> None:
        state.seat(seats, start)
        before, state.tensors = state.tensors, self.start(federation)
        keep_among(state.tensors, before, seats)

    def round(self, state: State, federation: Federation) -> list[str]:
        n = len(federation)
        own = federation.gradients(state.X, round=state.round, out=state.gradient)
        finite = federation.gather(own.finite).cpu()
        aside = set_aside(state, federation, finite)
        own.rows[~own.finite] = 0
        members = self._members(federation)
        W = torch.empty(len(state.X), n)  # the rows that are here
        for block in federation.blocks(max(1, federation.models_at_once // n)):
            who = torch.from_numpy(federation.mine[block])
            Z, heard = self._points(state, federation, own.rows, own.finite, block)
            own.rows[block], near = self.average(Z, heard, who, members[who])
            W[block] = near.float()
        state.sent += 2 * n * n  # every model to everyone else and a gradient back, through a server
        state.tensors["weights"] = torch.where(finite[:, None], federation.gather(W), torch.eye(n))
        with state.untouched(~own.finite):
            state.descend(own.rows)
        return aside

    def _points(
        self, state: State, federation: Federation, own: Tensor, own_finite: Tensor, block: slice
    ) -> tuple[Tensor, Tensor]:
        """Z [b, n, d]: gradients of all clients at the models of a block of rows, and which are finite [b, n]."""
        who = federation.mine[block]
        Z, finite = federation.survey(state.X[block], who, state.round)
        Z[np.arange(len(who)), who], finite[np.arange(len(who)), who] = own[block], own_finite[block]
        if self.client_momentum:
            M = state.tensors["momenta"][block].to(Z)
            fresh, heard = M.isnan(), finite[..., None]  # a momentum begins with the first point
            Z = torch.where(fresh, Z, torch.where(heard, torch.lerp(Z, M, self.client_momentum), M))
            state.tensors["momenta"][block] = torch.where(fresh & ~heard, M, Z).cpu()
        return Z, finite

    def average(self, Z: Tensor, finite: Tensor, own: Tensor, members: Tensor) -> tuple[Tensor, Tensor]:
        """[b, d]: the clipped iterative averages around points own[b] of Z[b]; and who was within the threshold.

        v is kept as weights c of the points, relative to the own one, so that all distances follow from their inner
        products K and no step touches d numbers: |z_k - v|^2 = K_kk - 2 (K c)_k + c K c.
        """
        n = Z.shape[1]
        own_points = Z[torch.arange(len(Z)), own]
        away = Z - own_points[:, None]
        K = (away @ away.mT).cpu().double()
        c, near, finite = torch.zeros_like(K[:, 0]), finite.cpu(), finite.cpu()
        for _ in range(self.iterations):
            Kc = (K @ c[..., None])[..., 0]
            distance = (K.diagonal(dim1=1, dim2=2) - 2 * Kc + (c * Kc).sum(1, keepdim=True)).where(finite, torch.inf)
            tau = distance.sort(1).values.gather(1, members[:, None] - 1)
            near = (distance <= tau) & finite
            c = near / n + (1 - near.sum(1, keepdim=True) / n) * c
        return own_points + (c.to(Z)[:, None] @ away)[:, 0], near

    def _members(self, federation: Federation) -> Tensor:
        """How many points lie within the threshold of each client."""
        n, groups = len(federation), federation.groups
        if self.quantile is not None:
            return torch.full((n,), max(1, math.ceil(self.quantile * n - 1e-9)))
        return torch.tensor([groups.count(group) for group in groups])
