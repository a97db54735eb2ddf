"""The digits data set inside scikit-learn: nothing to download."""

from pathlib import Path

import numpy as np
import torch

from cobo.data.source import Source, Split

TEST = 597


def digits() -> tuple[Split, Split]:
    """Training (1,200) and test (597) images as rows of 64 numbers in [0, 1], always split the same way."""
    from sklearn.datasets import load_digits  # takes a second to import

    loaded = load_digits()
    order = np.random.default_rng(0).permutation(len(loaded.target))
    inputs = torch.from_numpy(loaded.data[order] / 16).float()
    targets = torch.from_numpy(loaded.target[order]).long()
    return Split(inputs[TEST:], targets[TEST:]), Split(inputs[:TEST], targets[:TEST])


def _folder() -> Path:
    import sklearn.datasets

    return Path(sklearn.datasets.__file__).parent / "data"


SOURCE = Source(
    "digits",
    "1,797 images of handwritten digits, 8x8, 10 classes; comes with scikit-learn",
    locate=_folder,
)
