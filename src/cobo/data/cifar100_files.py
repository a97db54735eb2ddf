"""The forms in which people have CIFAR-100: how each is found in a folder, and how its two sides are read."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from cobo.data.cifar100_parquet import read_parquet
from cobo.data.pickled import Array, read_pickled
from cobo.data.source import Split
from cobo.data.tarball import read_members
from cobo.errors import DataError

CLASSES = 100
SHAPE = (3, 32, 32)
PIXELS = 3072
RECORD = 2 + PIXELS  # coarse label, fine label, image
OWN_FOLDER = "cifar100"  # in a folder of this name files need no other name that says what they are

Images = NDArray[np.uint8]
Labels = NDArray[np.uint8] | list[int]


class Form(Protocol):
    """One form: `find` says where in a folder it lies; `read` takes the number of images expected in each side."""

    def find(self, place: Path) -> Path | None: ...

    def read(self, where: Path, train: int, test: int) -> tuple[Split, Split]: ...


class Published(NamedTuple):
    """A version that the authors publish: a file for each side in a folder of its own, or the archive of the folder.

    `most` says how large a file of so many images may be, `parse` reads its content.
    """

    name: str
    train: str
    test: str
    most: Callable[[int], int]
    parse: Callable[[bytes, int], tuple[Images, Labels]]

    @property
    def archive(self) -> str:
        return f"{self.name}.tar.gz"

    def find(self, place: Path) -> Path | None:
        """The folder, if it has both files, or else the archive. The place itself only by its name."""
        for folder in (place / self.name, *([place] if place.name in (self.name, OWN_FOLDER) else [])):
            if all((folder / file).is_file() for file in (self.train, self.test)):
                return folder
        return place / self.archive if (place / self.archive).is_file() else None

    def read(self, where: Path, train: int, test: int) -> tuple[Split, Split]:
        """Both sides, from a folder or an archive."""
        expected = {self.train: train, self.test: test}
        contents = self._unpacked(where, expected) if where.is_file() else self._plain(where, expected)
        sides = []
        for file, count in expected.items():
            with _blaming(f"{file} in {where}", where):
                sides.append(_split(*self.parse(contents.pop(file), count), count))
        return sides[0], sides[1]

    def _unpacked(self, where: Path, expected: Mapping[str, int]) -> dict[str, bytes]:
        with _blaming(where, where):
            found = read_members(where, {f"{self.name}/{file}": self.most(n) for file, n in expected.items()})
        return {file: found[f"{self.name}/{file}"] for file in expected}

    def _plain(self, where: Path, expected: Mapping[str, int]) -> dict[str, bytes]:
        contents = {}
        for file, count in expected.items():
            size = (where / file).stat().st_size
            with _blaming(f"{file} in {where}", where):
                if size > self.most(count):
                    raise ValueError(f"it is {size} bytes long, and {count} images take at most {self.most(count)}")
            contents[file] = (where / file).read_bytes()
        return contents


class Parquet(NamedTuple):
    """Hugging Face's files, one or more for each side, in one of several folders."""

    folders: tuple[str, ...]

    def find(self, place: Path) -> Path | None:
        """The first folder that has files for both sides."""
        folders = (place / folder for folder in self.folders)
        return next((folder for folder in folders if _shards(folder, "train") and _shards(folder, "test")), None)

    def read(self, where: Path, train: int, test: int) -> tuple[Split, Split]:
        """Both sides, each from all its files in the order of their names."""
        return self._side(where, "train", train), self._side(where, "test", test)

    def _side(self, where: Path, side: str, count: int) -> Split:
        images: list[Images] = []
        labels: list[int] = []
        for path in _shards(where, side):
            with _blaming(path, where):
                more, theirs = read_parquet(path, count - len(labels))
                images.append(more)
                labels.extend(theirs)
        with _blaming(f"what {where} has of {side}", where):
            return _split(np.concatenate(images), labels, count)


def _shards(folder: Path, side: str) -> list[Path]:
    beside = sorted(folder.glob(f"{side}-*.parquet"))
    return beside or (sorted(folder.glob(f"{side}/*.parquet")) if folder.name == OWN_FOLDER else [])


def _records(content: bytes, count: int) -> tuple[Images, Labels]:
    """Images and fine labels of the binary version."""
    if len(content) != count * RECORD:
        raise ValueError(f"it is {len(content)} bytes long instead of {count * RECORD}")
    records = np.frombuffer(content, dtype=np.uint8).reshape(count, RECORD)
    return records[:, 2:].reshape(count, *SHAPE), records[:, 1]


def _pickled(content: bytes, count: int) -> tuple[Images, Labels]:
    """Images and fine labels of the Python version."""
    match read_pickled(content, most=20 * count + 1000):
        case {"data": Array() as data, "fine_labels": [*labels]} if all(type(label) is int for label in labels):
            if data.shape != (count, PIXELS):
                raise ValueError(f"its array is {list(data.shape)} instead of {[count, PIXELS]}")
            return data.numbers().reshape(count, *SHAPE), labels
    raise ValueError("it has no array called data or no list of numbers called fine_labels")


def _split(images: Images, labels: Labels, count: int) -> Split:
    """One side as tensors, after a look at whether there is of everything as much as there should be."""
    if (len(images), len(labels)) != (count, count):
        raise ValueError(f"it has {len(images)} images and {len(labels)} labels instead of {count}")
    if wrong := [int(extreme) for extreme in (np.min(labels), np.max(labels)) if not 0 <= extreme < CLASSES]:
        raise ValueError(f"it has the label {wrong[0]}; labels are 0 to {CLASSES - 1}")
    targets = np.array(labels, dtype=np.int64)
    often = np.bincount(targets, minlength=CLASSES)
    if (often != count // CLASSES).any():
        odd = int(np.argmax(often != count // CLASSES))
        raise ValueError(f"it has {often[odd]} images of class {odd} instead of {count // CLASSES}")
    return Split(torch.from_numpy(np.array(images, order="C")), torch.from_numpy(targets))


@contextmanager
def _blaming(what: object, where: Path) -> Iterator[None]:
    """Let an error name the file, and say what to do with it, or the archive that it is in."""
    try:
        yield
    except DataError:
        raise
    except ValueError as error:
        whose = f"{where}" if where.is_file() else f"CIFAR-100's files in {where}"
        remedy = f"put whole copies in place of {whose}, or move those away and run `cobo data fetch cifar100`"
        raise DataError(f"{what} cannot be used: {error}; {remedy}") from None


BINARY = Published("cifar-100-binary", "train.bin", "test.bin", lambda count: count * RECORD, _records)
PYTHON = Published(
    "cifar-100-python",
    "train",
    "test",
    lambda count: count * (2 * PIXELS + 256) + 10_000,  # Python 3 writes some bytes as two; names, labels
    _pickled,
)
FORMS: tuple[Form, ...] = (BINARY, PYTHON, Parquet((".", "data", OWN_FOLDER)))
