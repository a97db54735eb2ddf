"""Layers that torch.nn lacks; a saved result names them and can be loaded again."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Standardise(nn.Module):
    """Images as they are stored, bytes in [0, 255] or numbers in [0, 1], to mean 0 and deviation 1 in every channel.

    As the first layer it lets a model take raw images, in training as in use, and leaves them small until then.

    >>> Standardise([0.5], [0.25])(torch.tensor([[[[0, 255]]]], dtype=torch.uint8)).flatten().tolist()
    [-2.0, 2.0]
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.mean, self.std = tuple(mean), tuple(std)
        for name, values in (("_mean", mean), ("_std", std)):  # as buffers they follow the model's type and device
            self.register_buffer(name, torch.tensor(values)[:, None, None], persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        mean, std = self.get_buffer("_mean"), self.get_buffer("_std")
        scale = 1.0 if images.is_floating_point() else 255.0
        return (images.to(mean.dtype) - scale * mean) / (scale * std)

    def extra_repr(self) -> str:
        return f"mean={self.mean}, std={self.std}"


class Residual(nn.Sequential):
    """x + f(x), with f the layers inside."""

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for layer in self:
            y = layer(y)
        return x + y
