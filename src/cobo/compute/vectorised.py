"""Gradients of many models at once: torch.func's grad under vmap."""

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from cobo import draws
from cobo.compute.batch import Fields, Layout
from cobo.compute.blueprint import Blueprint, Buffers


class Vectorised:
    """One pass for all rows; each parameter becomes a stack [m, *shape], each linear layer one batched GEMM."""

    name = "vectorised"

    def __init__(self, blueprint: Blueprint, layout: Layout) -> None:
        self._blueprint = blueprint
        self._loss = _Loss(blueprint, layout)
        self._gradients = vmap(grad(self._one, has_aux=True))
        self._losses = vmap(lambda *arguments: self._one(*arguments)[0])

    def _one(
        self, parameters: dict[str, Tensor], buffers: Buffers, fields: Fields
    ) -> tuple[Tensor, tuple[Tensor, Buffers]]:
        loss: Tensor = functional_call(self._loss, {**parameters, **buffers}, fields)
        return loss, (loss.detach(), buffers)

    def gradients(
        self, models: Tensor, fields: Fields, buffers: Buffers, keys: draws.Keys
    ) -> tuple[list[Tensor], Tensor]:
        parameters, held = self._stacked(models, buffers)
        pieces, (losses, changed) = self._gradients(parameters, held, fields)
        for name, value in changed.items():
            if value is not held[name]:
                held[name].copy_(value)
        return [piece.flatten(1) for piece in pieces.values()], losses

    @torch.no_grad()
    def losses(self, models: Tensor, fields: Fields, buffers: Buffers, keys: draws.Keys) -> Tensor:
        losses: Tensor = self._losses(*self._stacked(models, buffers), fields)
        return losses

    def _stacked(self, models: Tensor, buffers: Buffers) -> tuple[dict[str, Tensor], Buffers]:
        blueprint = self._blueprint
        blueprint.module.train()
        parameters = {f"module.{n}": p for n, p in zip(blueprint.names, blueprint.split(models), strict=True)}
        return parameters, {f"module.{n}": b for n, b in buffers.items()}

    def obstacle(self, batch: Fields) -> str | None:
        """Why this model cannot be vectorised, or None: found by trying two rows."""
        blueprint = self._blueprint
        rows = blueprint.start.expand(2, -1)
        buffers = {name: b.expand(2, *b.shape).clone() for name, b in blueprint.buffers.items()}
        fields = tuple(f.expand(2, *f.shape) for f in batch)
        try:
            self.gradients(rows, fields, buffers, draws.combine(draws.key(0, "trial"), 0))
        except (RuntimeError, ValueError, NotImplementedError) as error:
            return " ".join(str(error).split())[:200]
        return None


class _Loss(nn.Module):
    """The objective as a module, so that functional_call can swap the parameters beneath it."""

    def __init__(self, blueprint: Blueprint, layout: Layout) -> None:
        super().__init__()
        self.module = blueprint.module
        self._objective, self._layout = blueprint.loss, layout

    def forward(self, *fields: Tensor) -> Tensor:
        return self._objective(self.module, self._layout.build(fields))
