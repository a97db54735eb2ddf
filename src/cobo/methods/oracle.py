"""Oracle: FedAvg inside the known groups. What collaboration could give if everyone knew who is who."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from cobo.collaboration import graph
from cobo.errors import ConfigError
from cobo.federation import Federation, Roster
from cobo.methods.base import Method, State, set_aside


class Oracle(Method):
    """x_i <- x_i - eta sum_k m_ik g_k, with m_ik the share of client k's samples in the group of i (0 outside it).

    All clients start from one model, so the rows of a group stay equal: each group has one shared model, trained by
    FedAvg (McMahan et al. 2017) with one local step. A client set aside does not contribute that round; the
    group's model goes on without it.
    """

    name: ClassVar[str] = "oracle"
    told: ClassVar[str] = "the groups"

    def check(self, federation: Federation, lr: float) -> None:
        unknown = [c.name for c in federation.clients if c.group is None]
        if unknown:
            raise ConfigError(f"oracle needs to know every client's group, but {unknown[0]!r} has none; set group=")

    def start(self, federation: Federation) -> dict[str, Tensor]:
        return {"weights": torch.from_numpy(graph.oracle(federation.groups)).float()}

    def seat(
        self, state: State, federation: Federation, seats: Sequence[int | None], start: Tensor, roster: Roster
    ) -> None:
        """A newcomer gets its group's model, if anyone has it."""
        groups = federation.groups
        held = {group: seat for group, seat in zip(groups, seats, strict=True) if seat is not None}
        state.seat([held.get(groups[k]) if seat is None else seat for k, seat in enumerate(seats)], start)
        for k, seat in enumerate(seats):
            if seat is None:
                federation.inherit(k, [groups[j] == groups[k] and other is not None for j, other in enumerate(seats)])
        state.tensors |= self.start(federation)

    def round(self, state: State, federation: Federation) -> list[str]:
        answer = federation.gradients(state.X, round=state.round, out=state.gradient)
        finite = federation.gather(answer.finite).cpu()
        aside = set_aside(state, federation, finite)
        answer.rows[~answer.finite] = 0
        state.sent += 2 * len(federation)
        samples = federation.samples.to(answer.rows.dtype)
        M = state.tensors["weights"].to(samples) * samples * finite
        total = M.sum(1)
        federation.mix([(torch.arange(len(M)), M / total[:, None].clamp(min=1))], answer.rows)
        with state.untouched((federation.part(total) == 0).to(answer.rows.device)):
            state.descend(answer.rows)
        return aside
