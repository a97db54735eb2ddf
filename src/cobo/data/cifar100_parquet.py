"""CIFAR-100 in a Parquet file as Hugging Face has it: PNG images in `img.bytes`, numbers in `fine_label`."""

from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cobo.errors import DataError

AT_ONCE = 1000  # rows


def read_parquet(path: Path, most: int) -> tuple[NDArray[np.uint8], list[int]]:
    """Images [n, 3, 32, 32] and labels of at most so many rows, or a `ValueError` that says what is wrong."""
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise DataError(f"{path} takes pyarrow to read: pip install 'cobo[parquet]'") from None

    images: list[NDArray[np.uint8]] = []
    labels: list[int] = []
    try:
        with ParquetFile(path) as file:
            if file.metadata.num_rows > most:
                raise ValueError(f"it has {file.metadata.num_rows} rows, more than {most}")
            for batch in file.iter_batches(AT_ONCE, columns=["img.bytes", "fine_label"]):
                for row in batch.to_pylist():
                    match row:
                        case {"img": {"bytes": bytes(png)}, "fine_label": int(label)}:
                            images.append(_pixels(png))
                            labels.append(label)
                        case _:
                            raise ValueError("a row has no bytes in img.bytes or no number in fine_label")
    except (ArrowException, OSError) as error:
        raise ValueError(f"it cannot be read ({' '.join(str(error).split())})") from None
    stacked = np.stack(images) if images else np.empty((0, 32, 32, 3), dtype=np.uint8)
    return stacked.transpose(0, 3, 1, 2), labels


def _pixels(png: bytes) -> NDArray[np.uint8]:
    """An image [32, 32, 3]; its size is looked at before anything is unpacked."""
    try:
        with Image.open(BytesIO(png), formats=["PNG"]) as image:
            if image.size != (32, 32) or image.mode != "RGB":
                raise ValueError(f"an image is {image.mode} {image.width}x{image.height} instead of RGB 32x32")
            return np.asarray(image)
    except (OSError, EOFError, SyntaxError, Image.DecompressionBombError):
        raise ValueError("an image is not a whole PNG") from None
