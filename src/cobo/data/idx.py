"""Files in the IDX format of MNIST and its kin, with or without gzip: read only if every byte is as expected."""

import gzip
import zlib
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class IdxFile(NamedTuple):
    """What a file should be: its name without .gz, the shape of its bytes, and the checksum of what is inside.

    The checksum is that of the unpacked file, since packages and mirrors compress anew.
    """

    name: str
    shape: tuple[int, ...]
    sha256: str

    def inside(self, folder: Path) -> Path | None:
        """The file in a folder, plain or compressed."""
        return next((path for end in ("", ".gz") if (path := folder / (self.name + end)).is_file()), None)


def read_idx(path: Path, expected: IdxFile) -> NDArray[np.uint8]:
    """The array in an IDX file of bytes, or a `ValueError` that says what is wrong with it."""
    axes = len(expected.shape)
    start = 4 + 4 * axes
    size = start + prod(expected.shape)
    content = _unpacked(path, size + 1)  # one more than expected, so that no file can fill the memory
    magic = bytes([0, 0, 8, axes])
    if content[:4] != magic:
        raise ValueError(f"its magic number is {content[:4].hex() or 'missing'} instead of {magic.hex()}")
    shape = tuple(np.frombuffer(content[4:start], dtype=">u4").tolist()) if len(content) >= start else ()
    if shape != expected.shape:
        raise ValueError(f"its dimensions are {list(shape)} instead of {list(expected.shape)}")
    if len(content) != size:
        raise ValueError(f"it is {'longer' if len(content) > size else 'shorter'} than {size} bytes")
    if sha256(content).hexdigest() != expected.sha256:
        raise ValueError("its checksum is wrong")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def _unpacked(path: Path, most: int) -> bytes:
    with path.open("rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if not compressed:
            return file.read(most)
        try:
            with gzip.GzipFile(fileobj=file) as unpacked:
                return unpacked.read(most)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ValueError(f"it cannot be unpacked: {error}") from None
