"""A convolutional network that is cheap on a CPU: it looks at an image in patches."""

from torch import nn

GROUP = 8  # channels normalised together


def patch_cnn(channels: int, outputs: int, *, width: int = 16) -> nn.Sequential:
    """Patches of 4x4 pixels, two 3x3 convolutions on them, a linear layer on 2x2 averages; images of at least 16x16.

    GroupNorm, so that no statistics of batches are kept. A gradient costs about a hundredth of one of `resnet9`.

    >>> sum(p.numel() for p in patch_cnn(3, 100).parameters())
    27668
    """
    return nn.Sequential(
        nn.Conv2d(channels, width, 4, stride=4),
        *_normalised(width),
        nn.Conv2d(width, 2 * width, 3, padding=1, bias=False),
        *_normalised(2 * width),
        nn.MaxPool2d(2),
        nn.Conv2d(2 * width, 2 * width, 3, padding=1, bias=False),
        *_normalised(2 * width),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * width, outputs),
    )


def _normalised(channels: int) -> tuple[nn.Module, nn.Module]:
    return nn.GroupNorm(max(1, channels // GROUP), channels), nn.ReLU()
