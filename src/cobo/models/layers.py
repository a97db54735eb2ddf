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

    def forward(self, images: Tensor) -> Tensor:
        scale = 1.0 if images.is_floating_point() else 255.0
        dtype = images.dtype if images.is_floating_point() else torch.get_default_dtype()
        mean, std = (torch.tensor(v, dtype=dtype, device=images.device)[:, None, None] for v in (self.mean, self.std))
        return (images.to(dtype) - scale * mean) / (scale * std)

    def extra_repr(self) -> str:
        return f"mean={self.mean}, std={self.std}"


class Residual(nn.Sequential):
    """x + f(x), with f the layers inside."""

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for layer in self:
            y = layer(y)
        return x + y
