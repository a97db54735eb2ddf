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
        self._time = 0.0
        self._work, self._sent = federation.work.copy(), 0  # what was done and sent before this round

    def round(self, state: State) -> list[str]:
        federation = self._federation
        here = np.isin(federation.everyone, federation.names)
        aside = super().round(state)
        gradients = federation.work - self._work  # a newcomer's probe is among them
        took = self._times.of(np.arange(len(here)), np.full(len(here), state.round))
        self._now[here] += (took * (gradients if self._clocks.count == "gradients" else gradients > 0))[here]
        latest = self._now[here].max()
        if state.sent > self._sent:
            latest += self._clocks.delay
            self._now[here] = latest
        self._now[~here] = latest  # for when they join
        self._time = max(self._time, latest)
        self._work, self._sent = federation.work.copy(), state.sent
        return aside

    def report(self) -> dict[str, Any]:
        return {"time": float(self._time)}

    def facts(self) -> dict[str, Any]:
        now = dict(zip(self._federation.everyone, self._now.tolist(), strict=True))
        return {"now": now, "time": float(self._time), "sent": self._sent}

    def restore(self, facts: dict[str, Any], tensors: Any) -> None:
        self._time, self._sent, now = facts["time"], facts["sent"], facts["now"]
        self._now = np.array([now.get(name, self._time) for name in self._federation.everyone])
