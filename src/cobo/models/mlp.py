"""Multi-layer perceptron."""

from collections.abc import Sequence
from itertools import pairwise

from torch import nn


def mlp(inputs: int, hidden: Sequence[int], outputs: int) -> nn.Sequential:
    """Linear layers with ReLU between them.

    >>> sum(p.numel() for p in mlp(784, [64], 10).parameters())
    50890
    """
    widths = [inputs, *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))
