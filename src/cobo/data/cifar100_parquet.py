"""CIFAR-100 in a Parquet file as Hugging Face has it: PNG images in `img.bytes`, numbers in `fine_label`."""

import warnings
from io import BytesIO
from pathlib import Path
from typing import Any

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
        raise DataError(f"{path} takes pyarrow to read; in cobo's clone: pip install '.[parquet]'") from None

    images: list[NDArray[np.uint8]] = []
    labels: list[int] = []
    try:
        with ParquetFile(path) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of PIL: an image is read or refused
            _check_columns(file.schema_arrow)
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


def _check_columns(schema: Any) -> None:
    """Values of other types, such as dates, may fail in any way when they are made into Python's."""
    from pyarrow import null, types

    columns = {field.name: field.type for field in schema}
    img, label = (columns.get(name, null()) for name in ("img", "fine_label"))
    inside = {field.name: field.type for field in img} if types.is_struct(img) else {}
    content = inside.get("bytes", null())
    if not (types.is_binary(content) or types.is_large_binary(content)) or not types.is_integer(label):
        raise ValueError("it has no bytes in img.bytes or no numbers in fine_label")


def _pixels(png: bytes) -> NDArray[np.uint8]:
    """An image [32, 32, 3]; its size is looked at before anything is unpacked."""
    try:
        with Image.open(BytesIO(png), formats=["PNG"]) as image:
            if image.size == (32, 32) and image.mode == "RGB":
                return np.asarray(image)
    except Exception:  # PIL fails in many ways
        raise ValueError("an image is not a whole PNG") from None
    raise ValueError(f"an image is {image.mode} {image.width}x{image.height} instead of RGB 32x32")
