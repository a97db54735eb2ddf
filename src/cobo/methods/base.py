"""What a method is: how it starts, and what it does in a round. It does no I/O and never asks where it runs."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cobo import draws
from cobo.config import Settings
from cobo.errors import RunError
from cobo.federation import Federation, Roster

Weighting = Literal["samples", "equal"]


@dataclass
class State:
    """All that changes while training: the models X [m, d], their optimiser, and the method's own tensors.

    In most methods row i of X is client i's model; some train fewer rows, which clients share, or one more. Where rows
    are spread over processes, those of the clients that are here, and what they share.
    `sent` counts the vectors of d numbers that parties and server would have sent each other.
    """

    models: nn.Parameter
    optimizer: torch.optim.Optimizer
    rounds: int
    round: int = 0
    sent: int = 0
    aside: set[int] = field(default_factory=set)
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

    def take(self, rows: Sequence[int]) -> None:
        """Go on with these rows of X, in this order, with what the optimiser remembers of them."""
        index = torch.tensor(rows, device=self.X.device)
        remembered = self.optimizer.state[self.models]
        for name, value in remembered.items():
            if isinstance(value, Tensor) and value.shape == self.models.shape:
                remembered[name] = value[index]
        self.models.data = self.X[index]
        self.gradient = torch.empty_like(self.X)

    def seat(self, seats: Sequence[int | None], start: Tensor) -> None:
        """Row k of X becomes the old row seats[k] or, for a newcomer (None), start[k], of which nothing is remembered.

        (AdamW's step counter is one for all rows.)
        """
        new = [k for k, seat in enumerate(seats) if seat is None]
        self.take([seat or 0 for seat in seats])
        self.X[new] = start[new].to(self.X)
        for remembered in self._row_states():
            remembered[new] = 0

    def descend(self, G: Tensor) -> None:
        """One step of the optimiser, all rows at once."""
        self.models.grad = G
        self.optimizer.step()
        self.models.grad = None

    def descend_some(self, rows: Tensor, G: Tensor) -> None:
        """One step of the optimiser for these rows alone: the others, and what it remembers of them, stay."""
        whole, remembered = self.X, self.optimizer.state[self.models]
        kept = {name: v for name, v in remembered.items() if isinstance(v, Tensor) and v.shape == whole.shape}
        self.models.data = whole[rows]
        remembered.update({name: v[rows] for name, v in kept.items()})
        self.descend(G)
        whole[rows] = self.X
        for name, value in remembered.items():
            if isinstance(value, Tensor) and value.shape == self.models.shape:
                remembered[name] = kept.get(name, torch.zeros_like(whole))
                remembered[name][rows] = value
        self.models.data = whole

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
    told: ClassVar[str] = ""  # what it is told about the true groups
    search: ClassVar[dict[str, tuple[float, float] | list[Any]]] = {}  # for tuning: a range (log scale), or choices
    presets: ClassVar[dict[str, dict[str, Any]]] = {}
    own: ClassVar[tuple[str, ...]] = ("output/models",)  # those of its tensors that have rows as X has

    def check(self, federation: Federation, lr: float) -> None:
        """Refuse, with a `ConfigError`, what cannot work for this federation and learning rate."""

    def start(self, federation: Federation) -> dict[str, Tensor]:
        """The method's own tensors before the first round."""
        return {}

    def rows(self, federation: Federation) -> Tensor:
        """The models it trains [m, d], before the first round."""
        return federation.start

    def personal(self, state: State, federation: Federation) -> Tensor:
        """The model of each client [n, d]; of each that is here."""
        return state.X

    def common(self, state: State) -> int:
        """How many rows of X, the last ones, are not one client's own but the same for all."""
        return 0

    def trained(self, federation: Federation) -> int:
        """How many models it trains, m."""
        return len(federation)

    def beside(self, federation: Federation) -> int:
        """How many rows of d numbers it holds at most, beside models, gradients and what the optimiser remembers."""
        return len(federation)

    @property
    def batches(self) -> int | None:
        """How many batches a pair gradient has; None for all samples."""
        return 1

    def gradients_per_round(self, federation: Federation, rounds: int) -> float:
        """Gradients on a batch that it takes in a round, the mean over a run; a loss alone counts as a third of one."""
        return float(len(federation))

    def warning(self, federation: Federation, rounds: int) -> str | None:
        """What a user should know before a run starts: an unusual cost, say."""
        return None

    def seat(
        self, state: State, federation: Federation, seats: Sequence[int | None], start: Tensor, roster: Roster
    ) -> None:
        """Others are present: client k was at position seats[k], or it is new (None) and begins at start[k]."""
        state.seat(seats, start)

    @abstractmethod
    def round(self, state: State, federation: Federation) -> list[str]:
        """One round: changes `state` and returns the names of clients that were set aside."""


def keep_among(tensors: dict[str, Tensor], before: dict[str, Tensor], seats: Sequence[int | None]) -> None:
    """Entries [n, n, ...] between clients who stay (see `Method.seat`) become what they were before."""
    stay = np.array([k for k, seat in enumerate(seats) if seat is not None], dtype=np.int64)
    was = np.array([seat for seat in seats if seat is not None], dtype=np.int64)
    for name, tensor in tensors.items():
        tensor[np.ix_(stay, stay)] = before[name][np.ix_(was, was)]


def how_many(federation: Federation, rate: float) -> int:
    """The number of clients that take part in a round."""
    return max(1, math.floor(rate * len(federation) + 0.5))


def participants(federation: Federation, round: int, rate: float) -> NDArray[np.int64]:
    """The clients that take part in a round: a share `rate` of them, drawn anew each time; at least one."""
    count = how_many(federation, rate)
    drawn = draws.uniform(draws.combine(federation.keys("participation"), round), 1)[:, 0]
    return np.sort(np.argsort(drawn, kind="stable")[:count])


def set_aside(state: State, federation: Federation, finite: Tensor, who: NDArray[np.int64] | None = None) -> list[str]:
    """The names of clients whose gradient is not finite; `who` are those that were asked, if not all were.

    When that is so for every client, each as last heard of, the run has failed.
    """
    asked = np.arange(len(federation)) if who is None else who
    bad = asked[(~finite).cpu().numpy()]
    state.aside = (state.aside - set(asked.tolist())) | set(bad.tolist())
    if len(state.aside) == len(federation):
        raise RunError(
            f"round {state.round}: no client has a finite gradient; either the data are not finite, or training has "
            "diverged: start again with a lower learning rate or rho"
        )
    return [federation.names[k] for k in bad]


def shares(federation: Federation, who: NDArray[np.int64], weighting: Weighting) -> Tensor:
    """How much each of these clients counts in an average: by its samples, or all alike."""
    samples = federation.samples[who].to(federation.blueprint.dtype)
    return (samples if weighting == "samples" else torch.ones_like(samples)).to(federation.device)
