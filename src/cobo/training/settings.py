"""How models are trained, whatever the method: rounds, batches, optimiser, schedule, cadence."""

import warnings
from collections.abc import Callable
from typing import Any, Literal, Self

import torch
from pydantic import Field, field_validator, model_validator
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, ReduceLROnPlateau

from cobo.compute.blueprint import BufferPolicy, Precision, resolved
from cobo.compute.executor import Choice
from cobo.config import Settings
from cobo.engines import Clocks
from cobo.errors import ConfigError
from cobo.federation import Roster
from cobo.federation.augment import Augmentation

# What a method may have for itself. All else (rounds, batches, ...) is the same for every method of an experiment, so
# that a comparison is fair.
OWN = ("lr", "momentum", "weight_decay", "optimizer", "schedule")

Schedule = Literal["constant", "cosine", "linear"] | Callable[[torch.optim.Optimizer], LRScheduler]


class Training(Settings):
    """Settings of a run that are the same for all methods.

    `evaluate_every` defaults to a hundredth of the rounds; a checkpoint is written at every evaluation. `momentum` is
    that of SGD. `augment` changes every batch as it is drawn: by name, or f(fields, keys); "none" is none. With
    `accumulate`, a gradient is that of so many batches, taken one at a time. With `batch_size = None` gradients are
    exact, over all samples of a client. `roster` says who joins and leaves when; without one, all clients are there
    from the first round to the last. With `clocks`, time is simulated. `precision` is that of the layers; with
    "bfloat16", models and gradients still are float32. "auto" is bfloat16 where the device computes in it, and float32
    elsewhere; what it came to is what a run records, and keeps when it goes on.
    """

    rounds: int = Field(default=1000, ge=1)
    lr: float = Field(default=0.1, gt=0)
    batch_size: int | None = Field(default=32, ge=1)
    accumulate: int = Field(default=1, ge=1)
    augment: Literal["crop-flip", "none"] | Augmentation | None = None
    momentum: float = Field(default=0.0, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    optimizer: Literal["sgd", "adamw"] = "sgd"
    schedule: Schedule = "constant"
    seed: int = Field(default=0, ge=0)
    evaluate_every: int | None = Field(default=None, ge=1)
    buffers: BufferPolicy = "local"
    precision: Precision = "float32"
    executor: Choice = "auto"
    models_at_once: int = Field(default=40, ge=1)
    device: str = "cpu"
    roster: Roster = Field(default_factory=Roster)
    clocks: Clocks | None = None

    @field_validator("augment", mode="before")
    @classmethod
    def _none_by_name(cls, augment: Any) -> Any:
        return None if augment == "none" else augment  # files and command lines have no None

    @field_validator("device")
    @classmethod
    def _can_be_used(cls, device: str) -> str:
        try:
            torch.empty(1, device=device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"a device that torch can use here, such as 'cpu' ({reason})") from None
        return device

    @model_validator(mode="after")
    def _precision_of_the_device(self) -> Self:
        object.__setattr__(self, "precision", resolved(self.precision, self.device))  # settings are frozen otherwise
        return self

    @property
    def cadence(self) -> int:
        return self.evaluate_every or max(1, self.rounds // 100)

    def make_optimizer(self, models: nn.Parameter) -> torch.optim.Optimizer:
        """torch's own, on the whole matrix: every client steps at once."""
        if self.optimizer == "adamw":  # fused: without matrices as large as the models in between
            fused = True if models.device.type == "cpu" else None
            return torch.optim.AdamW([models], lr=self.lr, weight_decay=self.weight_decay, fused=fused)
        return torch.optim.SGD([models], lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)

    def rates(self) -> list[dict[str, float]]:
        """What the schedule makes of the learning rate and momentum in every round, found by walking through it."""
        optimizer = self.make_optimizer(nn.Parameter(torch.zeros(1)))
        schedule = self.make_schedule(optimizer)
        found: list[dict[str, float]] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch would have the optimiser step in between
            for _ in range(self.rounds):
                found.append({k: optimizer.param_groups[0][k] for k in ("lr", "momentum") if k in optimizer.defaults})
                if schedule is not None:
                    schedule.step()
        return found

    def make_schedule(self, optimizer: torch.optim.Optimizer) -> LRScheduler | None:
        if callable(self.schedule):
            made = self.schedule(optimizer)
            if isinstance(made, ReduceLROnPlateau) or not isinstance(made, LRScheduler):
                raise ConfigError(
                    f"schedule gave a {type(made).__name__}; it should make a scheduler of torch that follows rounds"
                )
            return made
        if self.schedule == "cosine":
            return CosineAnnealingLR(optimizer, T_max=self.rounds)
        if self.schedule == "linear":
            return LinearLR(optimizer, start_factor=1.0, end_factor=0.0, total_iters=self.rounds)
        return None
