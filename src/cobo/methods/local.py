"""Local: every client trains alone. What any collaboration has to beat."""

from typing import ClassVar

from cobo.federation import Federation
from cobo.methods.base import Method, State, set_aside


class Local(Method):
    """x_i <- x_i - eta g_i."""

    name: ClassVar[str] = "local"

    def round(self, state: State, federation: Federation) -> list[str]:
        answer = federation.gradients(state.X, round=state.round, out=state.gradient)
        aside = set_aside(state, federation, federation.gather(answer.finite))
        with state.untouched(~answer.finite):
            state.descend(answer.rows)
        return aside
