"""The digits data set inside scikit-learn: nothing to download."""

from typing import NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor

TEST = 597


class Split(NamedTuple):
    inputs: Tensor
    targets: Tensor


def digits() -> tuple[Split, Split]:
    """Training (1,200) and test (597) images as rows of 64 numbers in [0, 1], always split the same way."""
    loaded = load_digits()
    order = np.random.default_rng(0).permutation(len(loaded.target))
    inputs = torch.from_numpy(loaded.data[order] / 16).float()
    targets = torch.from_numpy(loaded.target[order]).long()
    return Split(inputs[TEST:], targets[TEST:]), Split(inputs[:TEST], targets[:TEST])
