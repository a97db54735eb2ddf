"""Gradients one model at a time, with the fast kernels: channels last for images, a key per row for dropout."""

import torch
from torch import Tensor

from cobo import draws
from cobo.compute.batch import Fields, Layout
from cobo.compute.blueprint import Blueprint, Buffers


class Looped:
    """Loads each row into the template (as views, nothing is copied) and lets autograd run."""

    name = "looped"

    def __init__(self, blueprint: Blueprint, layout: Layout) -> None:
        self._blueprint, self._layout = blueprint, layout
        self._channels_last = blueprint.convolutional

    def gradients(
        self, models: Tensor, fields: Fields, buffers: Buffers, keys: draws.Keys
    ) -> tuple[list[Tensor], Tensor]:
        rows = torch.empty_like(models)
        losses = torch.empty(len(models), dtype=models.dtype, device=models.device)
        blueprint = self._blueprint
        blueprint.module.train()
        for k in range(len(models)):
            module = blueprint.load(models[k], {name: b[k] for name, b in buffers.items()})
            batch = self._layout.build([self._arranged(f[k]) for f in fields])
            if blueprint.random:
                with torch.random.fork_rng(devices=_cuda(blueprint.device)):
                    torch.manual_seed(draws.torch_seed(keys[k]))
                    loss = blueprint.task.loss(module, batch)
            else:
                loss = blueprint.task.loss(module, batch)
            pieces = torch.autograd.grad(loss, blueprint.parameters, allow_unused=True, materialize_grads=True)
            torch.cat([piece.reshape(-1) for piece in pieces], out=rows[k])
            losses[k] = loss.detach()
            if blueprint.reassigns:
                blueprint.collect({name: b[k] for name, b in buffers.items()})
        return [rows], losses

    def _arranged(self, field: Tensor) -> Tensor:
        if self._channels_last and field.ndim == 4:
            return field.contiguous(memory_format=torch.channels_last)
        return field


def _cuda(device: torch.device) -> list[torch.device]:
    return [device] if device.type == "cuda" else []
