"""What an engine is: it carries out a method's rounds. The loop asks it for rounds and keeps what it remembers."""

from typing import Any, Protocol

from torch import Tensor

from cobo.federation import Federation
from cobo.methods import Method, State


class Engine(Protocol):
    """Carries out rounds; `facts` (numbers, as JSON holds them) and `tensors` are all that it remembers."""

    def round(self, state: State) -> list[str]:
        """One round: changes `state` and returns the names of clients that were set aside."""

    def report(self) -> dict[str, Any]:
        """What it adds to the line of an evaluation."""

    def facts(self) -> dict[str, Any]: ...

    def tensors(self) -> dict[str, Tensor]: ...

    def restore(self, facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Back to where an engine was when it gave these facts and tensors."""


class InProcess:
    """The method's own rounds, in this process; remembers nothing."""

    def __init__(self, federation: Federation, method: Method) -> None:
        self._federation, self._method = federation, method

    def round(self, state: State) -> list[str]:
        return self._method.round(state, self._federation)

    def report(self) -> dict[str, Any]:
        return {}

    def facts(self) -> dict[str, Any]:
        return {}

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def restore(self, facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        pass
