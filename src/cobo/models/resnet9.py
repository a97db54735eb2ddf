"""ResNet-9: the paper's network for CIFAR-100."""

from typing import Literal

from torch import nn

from cobo.models.layers import Residual

Norm = Literal["batch", "group"]
GROUP = 8  # channels normalised together


def resnet9(channels: int, outputs: int, *, width: int = 64, norm: Norm = "batch") -> nn.Sequential:
    """Eight 3x3 convolutions in four stages of doubling width, two residual blocks, a linear layer; at least 8x8.

    The paper names He et al. (2015) and no more; this is the usual small one for CIFAR. 64 is its usual width.

    >>> sum(p.numel() for p in resnet9(3, 100).parameters())
    6619300
    """
    w1, w2, w4, w8 = width, 2 * width, 4 * width, 8 * width
    return nn.Sequential(
        _block(channels, w1, norm),
        _block(w1, w2, norm),
        nn.MaxPool2d(2),
        Residual(_block(w2, w2, norm), _block(w2, w2, norm)),
        _block(w2, w4, norm),
        nn.MaxPool2d(2),
        _block(w4, w8, norm),
        nn.MaxPool2d(2),
        Residual(_block(w8, w8, norm), _block(w8, w8, norm)),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(w8, outputs),
    )


def _block(inputs: int, outputs: int, norm: Norm) -> nn.Sequential:
    normalise = nn.BatchNorm2d(outputs) if norm == "batch" else nn.GroupNorm(max(1, outputs // GROUP), outputs)
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), normalise, nn.ReLU())
