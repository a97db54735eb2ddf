"""What is minimised and how it is judged: a loss on outputs and targets, or any objective of module and batch."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cobo.errors import ConfigError

Loss = Callable[[Tensor, Tensor], Tensor]
Objective = Callable[[nn.Module, Any], Tensor]

PADDING = -100  # in the place of a token: not to be predicted


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    if outputs.ndim < 2:
        raise ValueError("cross_entropy needs an output for each class; with one for two classes, binary_cross_entropy")
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
            remedy = "; give targets as y[:, None], or squeeze the outputs" if outputs.ndim == targets.ndim + 1 else ""
            raise ValueError(f"outputs {list(outputs.shape)} and targets {list(targets.shape)} differ in shape{remedy}")
        return loss(outputs, targets)

    return checked


def _next_token(outputs: Any, targets: Tensor) -> Tensor:
    """The mean over all tokens but padding, in float32; 0 if there are none. Outputs are logits, or have them."""
    logits = getattr(outputs, "logits", outputs)
    if not isinstance(logits, Tensor) or logits.shape[:-1] != targets.shape:
        given = list(logits.shape) if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise ValueError(f"the model gives {given}, not logits of shape {[*targets.shape, 'vocabulary']}")
    losses = -F.log_softmax(logits.float(), -1).gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    counted = targets != PADDING
    return losses.where(counted, 0).sum() / counted.sum().clamp(min=1)


LOSSES: dict[str, Loss] = {
    "cross_entropy": _cross_entropy,
    "binary_cross_entropy": _of_equal_shape(_binary_cross_entropy),
    "mse": _of_equal_shape(F.mse_loss),
    "l1": _of_equal_shape(F.l1_loss),
    "next_token": _next_token,
}


class Measured(NamedTuple):
    """Mean loss on a batch, for classifiers the share of right answers, and what the batch weighs among others."""

    loss: float
    right: float | None
    weight: int


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

    @property
    def predicts_tokens(self) -> bool:
        """Whether a sample is a row of tokens, of which each but the first is predicted: judged by perplexity."""
        return self._objective is None and self._loss is _next_token

    @torch.no_grad()
    def logits(self, module: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        """What the module says of classes [batch, classes, ...], or of tokens [..., vocabulary]; and the targets."""
        inputs, targets = self._split(batch)
        outputs = module(inputs)
        return getattr(outputs, "logits", outputs), targets

    def weights(self, fields: Sequence[Tensor]) -> Tensor:
        """[m]: what the batch of each row of fields [m, batch, ...] weighs among others: its samples, or its tokens."""
        field = fields[0]
        if self.predicts_tokens:
            return (field[..., 1:] != PADDING).sum((1, 2))
        return torch.full((len(field),), field.shape[1], device=field.device)

    def loss(self, module: nn.Module, batch: Any) -> Tensor:
        """The scalar whose gradient trains the module."""
        if self._objective is not None:
            return self._objective(module, batch)
        inputs, targets = self._split(batch)
        return self._loss(module(inputs), targets)

    @torch.no_grad()
    def measure(self, module: nn.Module, batch: Any) -> Measured:
        """A batch weighs as much as it has samples or, where tokens are predicted, as it has of those."""
        if self._objective is not None:
            return Measured(float(self._objective(module, batch)), None, _samples(batch))
        inputs, targets = self._split(batch)
        outputs = module(inputs)
        loss = float(self._loss(outputs, targets))
        if self.predicts_tokens:
            return Measured(loss, None, int((targets != PADDING).sum()))
        right = None
        if self._loss is LOSSES["binary_cross_entropy"]:
            right = float(((outputs > 0) == (targets > 0.5)).float().mean())
        elif outputs.ndim == targets.ndim + 1 and outputs.shape[1] > 1 and not targets.is_floating_point():
            right = float((outputs.argmax(1) == targets).float().mean())
        if right is not None and not bool((outputs < math.inf).all()):
            right = math.nan  # not class 0, which argmax gives; minus infinity rules a class out, and may be
        return Measured(loss, right, len(targets))

    def _split(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Inputs and targets."""
        return _shifted(batch) if self.predicts_tokens else _pair(batch)


def _samples(batch: Any) -> int:
    """How many there are, however a batch is arranged."""
    fields = batch.values() if isinstance(batch, dict) else batch
    return len(batch if isinstance(batch, Tensor) else next(iter(fields)))


def _shifted(batch: Any) -> tuple[Tensor, Tensor]:
    """Each token, and the next; padding is read as token 0."""
    if not isinstance(batch, Tensor) or batch.is_floating_point() or batch.ndim != 2 or batch.shape[1] < 2:
        raise ValueError("next_token needs samples that are one row of two or more token numbers each")
    tokens = batch.long()
    return tokens[:, :-1].clamp(min=0), tokens[:, 1:]


def _pair(batch: Any) -> tuple[Tensor, Tensor]:
    if not isinstance(batch, tuple) or len(batch) != 2:
        raise ValueError("a loss needs samples (inputs, targets); for others give objective=f(module, batch)")
    return batch
