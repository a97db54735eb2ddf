"""Small convolutional network for small images."""

from torch import nn


def cnn(channels: int, outputs: int, *, width: int = 16) -> nn.Sequential:
    """Two 3x3 convolutions with pooling, then a linear layer on 4x4 averages; any image of at least 8x8."""
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(2 * width * 16, outputs),
    )
