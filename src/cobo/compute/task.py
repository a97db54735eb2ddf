"""What is minimised and how it is judged: a loss on outputs and targets, or any objective of module and batch."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cobo.errors import ConfigError

Loss = Callable[[Tensor, Tensor], Tensor]
Objective = Callable[[nn.Module, Any], Tensor]


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    if targets.is_floating_point():
        return F.cross_entropy(outputs, targets)
    if outputs.ndim == 2:  # the same, without the slow decomposition that vmap has for it
        return -F.log_softmax(outputs, 1).gather(1, targets.long()[:, None]).mean()
    return F.cross_entropy(outputs, targets.long())


def _binary_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype))


def _of_equal_shape(loss: Loss) -> Loss:
    def checked(outputs: Tensor, targets: Tensor) -> Tensor:
        if outputs.shape != targets.shape:
            raise ValueError(f"outputs {list(outputs.shape)} and targets {list(targets.shape)} differ in shape")
        return loss(outputs, targets)

    return checked


LOSSES: dict[str, Loss] = {
    "cross_entropy": _cross_entropy,
    "binary_cross_entropy": _binary_cross_entropy,
    "mse": _of_equal_shape(F.mse_loss),
    "l1": _of_equal_shape(F.l1_loss),
}


class Task:
    """The objective f(module, batch) and the measures by which models are judged."""

    def __init__(self, loss: str | Loss = "cross_entropy", objective: Objective | None = None) -> None:
        if objective is not None and not callable(objective):
            raise ConfigError(f"objective = {objective!r} should be a function f(module, batch) -> scalar tensor")
        if isinstance(loss, str):
            if loss not in LOSSES:
                raise ConfigError(
                    f"loss = {loss!r} is not known; it should be one of {', '.join(LOSSES)}, or a function "
                    "loss(outputs, targets)"
                )
            loss = LOSSES[loss]
        elif not callable(loss):
            raise ConfigError(f"loss = {loss!r} should be a name or a function loss(outputs, targets)")
        self._loss, self._objective = loss, objective

    @property
    def classifies(self) -> bool:
        """Whether targets are class numbers for the cross entropy."""
        return self._objective is None and self._loss is _cross_entropy

    def loss(self, module: nn.Module, batch: Any) -> Tensor:
        """The scalar whose gradient trains the module."""
        if self._objective is not None:
            return self._objective(module, batch)
        inputs, targets = _pair(batch)
        return self._loss(module(inputs), targets)

    @torch.no_grad()
    def measure(self, module: nn.Module, batch: Any) -> tuple[float, float | None]:
        """Mean loss on a batch and, for classifiers, the share of right answers."""
        if self._objective is not None:
            return float(self._objective(module, batch)), None
        inputs, targets = _pair(batch)
        outputs = module(inputs)
        loss = float(self._loss(outputs, targets))
        if self._loss is LOSSES["binary_cross_entropy"]:
            return loss, float(((outputs > 0) == (targets > 0.5)).float().mean())
        if outputs.ndim == targets.ndim + 1 and outputs.shape[1] > 1 and not targets.is_floating_point():
            return loss, float((outputs.argmax(1) == targets).float().mean())
        return loss, None


def _pair(batch: Any) -> tuple[Tensor, Tensor]:
    if not isinstance(batch, tuple) or len(batch) != 2:
        raise ValueError("a loss needs samples (inputs, targets); for others give objective=f(module, batch)")
    return batch
