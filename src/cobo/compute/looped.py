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
            loss = self._loss(k, models, fields, buffers, keys)
            pieces = torch.autograd.grad(loss, blueprint.parameters, allow_unused=True, materialize_grads=True)
            torch.cat([piece.reshape(-1) for piece in pieces], out=rows[k])
            losses[k] = loss.detach()
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
        if self._channels_last:
            self._turn_kernels()
        batch = self._layout.build([self._arranged(f[k]) for f in fields])
        if not blueprint.random:
            return blueprint.task.loss(module, batch)
        with torch.random.fork_rng(devices=_cuda(blueprint.device)):
            torch.manual_seed(draws.torch_seed(keys[k]))
            return blueprint.task.loss(module, batch)

    def _turn_kernels(self) -> None:
        """Kernels too are put channels last, so that what lies between layers is as well."""
        for parameter in self._blueprint.parameters:
            if parameter.ndim == 4:
                parameter.data = _channels_last(parameter.data)

    def _arranged(self, field: Tensor) -> Tensor:
        if self._channels_last and field.ndim == 4:
            return _channels_last(field)
        return field


def _channels_last(tensor: Tensor) -> Tensor:
    """A copy; `contiguous` would leave tensors with one channel alone, whose strides then say nothing."""
    return tensor.clone(memory_format=torch.channels_last)


def _cuda(device: torch.device) -> list[torch.device]:
    return [device] if device.type == "cuda" else []
