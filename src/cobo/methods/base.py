"""What a method is: how it starts, and what it does in a round. It does no I/O and never asks where it runs."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from cobo.config import Settings
from cobo.errors import RunError
from cobo.federation import Federation, Gradients


@dataclass
class State:
    """All that changes while training: the personal models X [n, d], their optimiser, and the method's own tensors."""

    models: nn.Parameter
    optimizer: torch.optim.Optimizer
    rounds: int
    round: int = 0
    tensors: dict[str, Tensor] = field(default_factory=dict)
    gradient: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.gradient = torch.empty_like(self.models.data)  # written anew in each round, allocated once

    @property
    def X(self) -> Tensor:
        return self.models.data

    @property
    def weights(self) -> Tensor | None:
        return self.tensors.get("weights")

    @property
    def lr(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def descend(self, G: Tensor) -> None:
        """One step of the clients' optimiser, all rows at once."""
        self.models.grad = G
        self.optimizer.step()
        self.models.grad = None

    @contextmanager
    def untouched(self, rows: Tensor) -> Iterator[None]:
        """Whatever happens inside, these rows of X and of the optimiser's state are as before afterwards."""
        index = rows.nonzero()[:, 0]
        held = [(t, t[index].clone()) for t in (self.X, *self._row_states())] if len(index) else []
        known = {id(t) for t, _ in held}
        yield
        for tensor, values in held:
            tensor[index] = values
        if len(index):
            for tensor in self._row_states():
                if id(tensor) not in known:
                    tensor[index] = 0

    def _row_states(self) -> list[Tensor]:
        values = self.optimizer.state.get(self.models, {}).values()
        return [v for v in values if isinstance(v, Tensor) and v.shape == self.models.shape]


class Method(Settings, ABC):
    """Base of all methods: frozen settings, and pure rules over a `State`."""

    name: ClassVar[str]
    presets: ClassVar[dict[str, dict[str, Any]]] = {}

    def check(self, federation: Federation, lr: float) -> None:
        """Refuse, with a `ConfigError`, what cannot work for this federation and learning rate."""

    def start(self, federation: Federation) -> dict[str, Tensor]:
        """The method's own tensors before the first round."""
        return {}

    @abstractmethod
    def round(self, state: State, federation: Federation) -> list[str]:
        """One round: changes `state` and returns the names of clients that were set aside."""


def set_aside(answer: Gradients, federation: Federation, round: int) -> Tensor:
    """Which clients' gradients are not finite; their rows of the answer become 0. If all are, the run has failed."""
    aside = ~answer.finite
    if aside.any():
        if aside.all():
            raise RunError(
                f"round {round}: no client has a finite gradient; either the data are not finite, or training has "
                "diverged: start again with a lower learning rate or rho"
            )
        answer.rows[aside] = 0
    return aside


def names_of(aside: Tensor, federation: Federation) -> list[str]:
    return [federation.names[k] for k in aside.nonzero()[:, 0].tolist()]
