"""Fine-tuned FedAvg: one shared model first, then each client goes on alone from it.

The two-phase baseline of personalised federated learning (Yu, Bagdasaryan and Shmatikov 2020; Wang et al. 2019):
FedAvg for a `share` of the rounds, then x_i <- x_i - eta g_i from the shared model, with a fresh optimiser.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor

from cobo.federation import Federation, Roster
from cobo.methods.base import State
from cobo.methods.fedavg import FedAvg
from cobo.methods.local import Local


class FineTunedFedAvg(FedAvg):
    """`share` is the part of the rounds that is FedAvg; its settings are those of FedAvg."""

    name: ClassVar[str] = "finetune"
    search: ClassVar[dict[str, Any]] = {"share": [0.1, 0.25, 0.5, 0.75, 0.9]}

    share: float = Field(default=0.5, ge=0, le=1)

    def trained(self, federation: Federation) -> int:
        return len(federation)

    def common(self, state: State) -> int:
        return len(state.X) if state.round <= self._alone_from(state.rounds) else 0

    def gradients_per_round(self, federation: Federation, rounds: int) -> float:
        together = self._alone_from(rounds)
        alone = (rounds - together) * len(federation)
        return (together * super().gradients_per_round(federation, rounds) + alone) / rounds

    def round(self, state: State, federation: Federation) -> list[str]:
        alone_from = self._alone_from(state.rounds)
        if state.round < alone_from:
            return super().round(state, federation)
        if state.round == alone_from:
            state.take([0] * len(federation.mine))
            state.optimizer.state.clear()
        return Local().round(state, federation)

    def seat(
        self, state: State, federation: Federation, seats: Sequence[int | None], start: Tensor, roster: Roster
    ) -> None:
        if state.round > self._alone_from(state.rounds):
            state.seat(seats, start)
        else:
            super().seat(state, federation, seats, start, roster)

    def _alone_from(self, rounds: int) -> int:
        return round(self.share * rounds)
