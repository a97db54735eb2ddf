"""Gradients one model at a time, with the fast kernels: channels last for images, a key per row for dropout."""

import torch
from torch import Tensor

from cobo import draws
from cobo.compute.batch import Fields, Layout
from cobo.compute.blueprint import Blueprint, Buffers
from cobo.compute.channels_last import turn_kernels, turned


class Looped:
    """Loads each row into the template (as views, nothing is copied) and lets autograd run."""

    name = "looped"

    def __init__(self, blueprint: Blueprint, layout: Layout) -> None:
        self._blueprint, self._layout = blueprint, layout

    def gradients(
        self, models: Tensor, fields: Fields, buffers: Buffers, keys: draws.Keys
    ) -> tuple[list[Tensor], Tensor]:
        rows = torch.empty_like(models)
        losses = torch.empty(len(models), dtype=models.dtype, device=models.device)
        blueprint = self._blueprint
        blueprint.module.train()
        for k in range(len(models)):
            loss = self._loss(k, models, fields, buffers, keys)
            pieces = torch.autograd.grad(loss, blueprint.parameters, allow_unused=True, materialize_grads=True)
            torch.cat([piece.reshape(-1) for piece in pieces], out=rows[k])
            losses[k] = loss.detach()
            del loss, pieces  # or the graph of this model would live through the next one's pass
            if blueprint.reassigns:
                blueprint.collect({name: b[k] for name, b in buffers.items()})
        return [rows], losses

    @torch.no_grad()
    def losses(self, models: Tensor, fields: Fields, buffers: Buffers, keys: draws.Keys) -> Tensor:
        self._blueprint.module.train()
        return torch.stack([self._loss(k, models, fields, buffers, keys) for k in range(len(models))])

    def _loss(self, k: int, models: Tensor, fields: Fields, buffers: Buffers, keys: draws.Keys) -> Tensor:
        blueprint = self._blueprint
        module = blueprint.load(models[k], {name: b[k] for name, b in buffers.items()})
        mine = [field[k] for field in fields]
        if blueprint.convolutional:
            turn_kernels(blueprint.parameters)
            mine = turned(mine)
        batch = self._layout.build(mine)
        if not blueprint.random:
            return blueprint.loss(module, batch)
        with draws.torch_generators(blueprint.device, keys[k]):
            return blueprint.loss(module, batch)
