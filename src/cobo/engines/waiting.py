"""Rounds in simulated time when everyone waits for the slowest: any method, as it always runs, with a clock."""

from typing import Any

import numpy as np

from cobo.engines.clocks import Clocks, Times
from cobo.engines.engine import InProcess
from cobo.federation import Federation
from cobo.methods import Method, State


class Waiting(InProcess):
    """A round ends when the slowest of those that computed something has answered, and the answers have travelled.

    Who exchanges nothing (Local) waits for nobody: each client's own clock goes on, and the time of a round is when
    the last client has done it.
    """

    def __init__(self, federation: Federation, method: Method, clocks: Clocks) -> None:
        super().__init__(federation, method)
        self._clocks = clocks
        self._times = Times(clocks, federation.everyone, federation.seed)
        self._now = np.zeros(len(federation.everyone))  # each client's own clock

    def round(self, state: State) -> list[str]:
        work, sent = self._federation.work.copy(), state.sent
        self._now[~np.isin(self._federation.everyone, self._federation.names)] = self._now.max()  # for when they join
        aside = super().round(state)
        gradients = self._federation.work - work
        everyone = np.arange(len(gradients))
        took = self._times.of(everyone, np.full_like(everyone, state.round))
        self._now += took * (gradients if self._clocks.count == "gradients" else gradients > 0)
        if state.sent > sent:
            self._now[:] = self._now.max() + self._clocks.delay
        return aside

    def report(self) -> dict[str, Any]:
        return {"time": float(self._now.max())}

    def facts(self) -> dict[str, Any]:
        return {"now": dict(zip(self._federation.everyone, self._now.tolist(), strict=True))}

    def restore(self, facts: dict[str, Any], tensors: Any) -> None:
        now = facts["now"]
        self._now = np.array([now.get(name, max(now.values())) for name in self._federation.everyone])
