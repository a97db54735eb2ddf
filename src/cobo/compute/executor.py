"""What an executor is, and the rule by which one is chosen.

An executor computes the gradients, or only the losses, of m models, each on its own batch. A gradient comes in
pieces, [m, d_1], [m, d_2], ..., the columns of the rows in order, so that whoever only needs an inner product never
builds a row.
"""

from typing import Literal, NamedTuple, Protocol

from torch import Tensor

from cobo import draws
from cobo.compute.batch import Fields, Layout
from cobo.compute.blueprint import Blueprint, Buffers
from cobo.compute.looped import Looped
from cobo.compute.vectorised import Vectorised
from cobo.errors import ConfigError

Choice = Literal["auto", "vectorised", "looped"]


class Executor(Protocol):
    """`models` [m, d], fields [m, batch, ...], buffers by name [m, ...] (changed in place), one key per row."""

    name: str

    def gradients(
        self, models: Tensor, fields: Fields, buffers: Buffers, keys: draws.Keys
    ) -> tuple[list[Tensor], Tensor]: ...

    def losses(self, models: Tensor, fields: Fields, buffers: Buffers, keys: draws.Keys) -> Tensor: ...


class Chosen(NamedTuple):
    """An executor and why it was taken; the reason is recorded with the run."""

    executor: Executor
    reason: str


def choose(blueprint: Blueprint, layout: Layout, trial: Fields, choice: Choice) -> Chosen:
    """By rule and not by stopwatch, so that a run repeats.

    On a CPU, grouped convolutions are slow and channels-last loops are fast; elsewhere, and for everything else,
    vectorised wins as soon as there are many small models. A module that draws random numbers (dropout) is
    looped, because each row must draw from its own key.
    """
    looped = Looped(blueprint, layout)
    if choice == "looped":
        return Chosen(looped, "asked for")
    if blueprint.random:
        return Chosen(looped, "the model draws random numbers, which follow each client's own key")
    if blueprint.reassigns:
        return Chosen(looped, "the model puts new buffers in the place of old ones")
    vectorised = Vectorised(blueprint, layout)
    if choice == "auto" and blueprint.frozen > blueprint.size * blueprint.start.element_size():
        return Chosen(looped, "most of the model is frozen, so one at a time keeps the machine busy")
    if choice == "vectorised":
        obstacle = vectorised.obstacle(trial)
        if obstacle:
            raise ConfigError(f"executor = 'vectorised' is not possible for this model: {obstacle}")
        return Chosen(vectorised, "asked for")
    if blueprint.convolutional and blueprint.device.type == "cpu":
        return Chosen(looped, "convolutions on a CPU are faster one model at a time, channels last")
    obstacle = vectorised.obstacle(trial)
    if obstacle:
        return Chosen(looped, f"torch.func cannot vectorise this model: {obstacle}")
    return Chosen(vectorised, "many small models at once")
