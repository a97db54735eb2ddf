"""Augmentation of whole batches of images, on the device; what is drawn follows the batch's key, not a state."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cobo import draws
from cobo.compute.batch import Fields
from cobo.errors import ConfigError

Indices = NDArray[np.int64]
Augmentation = Callable[[Fields, draws.Keys], Fields]

PAD = 4


def crop_flip(fields: Fields, keys: draws.Keys) -> Fields:
    """Each image shifted by up to four pixels each way (mirrored at its borders), and mirrored half of the time.

    The first of the fields holds the images [m, batch, channels, height, width], one key for each of m batches. It is
    one gather: which pixel goes where is computed for rows and for columns.
    """
    images, *others = fields
    batches, count, _, height, width = images.shape
    drawn = draws.uniform(draws.combine(keys, draws.key(0, "crop and flip")), 3 * count).reshape(batches, 3, count)
    shifts = np.floor(drawn[:, :2] * (2 * PAD + 1)).astype(np.int64) - PAD
    rows = _mirrored(np.arange(height) + shifts[:, 0, :, None], height)
    columns = _mirrored(np.arange(width) + shifts[:, 1, :, None], width)
    columns = np.where(drawn[:, 2, :, None] < 0.5, columns[..., ::-1], columns)
    y, x = (torch.from_numpy(places).to(images.device) for places in (rows, columns))
    places = y[..., :, None] * width + x[..., None, :]
    flat = images.flatten(3)  # [m, batch, channels, height * width]
    index = places.flatten(2)[:, :, None].expand(flat.shape)
    return (flat.gather(3, index).view(images.shape), *others)


def _mirrored(places: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Places beyond a border, reflected at it; the border itself is not repeated."""
    inside: NDArray[np.int64] = size - 1 - np.abs(size - 1 - np.abs(places))
    return inside


AUGMENTATIONS: dict[str, Augmentation] = {"crop-flip": crop_flip}


def check_images(images: Tensor) -> None:
    """A batch [batch, channels, height, width] of images large enough to be shifted, or one line about it."""
    if images.ndim != 4 or min(images.shape[2:]) <= PAD:
        raise ConfigError(
            f"augment = 'crop-flip' needs images [channels, height, width] of more than {PAD}x{PAD} pixels as the "
            f"first field of a sample; this one has the shape {list(images.shape[1:])}"
        )
