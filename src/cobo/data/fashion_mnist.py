"""Fashion-MNIST (Xiao, Rasul and Vollgraf 2017): found on this computer, or downloaded from its authors."""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from cobo.data import store
from cobo.data.idx import IdxFile, read_idx
from cobo.data.source import Source, Split
from cobo.errors import DataError

NAME = "fashion-mnist"
PACKAGE = "dataset-fashion-mnist"


class Origin(NamedTuple):
    """Where the files come from: an address to download them, a Debian package's folder, and what they should be."""

    address: str
    package: Path
    train: tuple[IdxFile, IdxFile]
    test: tuple[IdxFile, IdxFile]

    @property
    def files(self) -> tuple[IdxFile, ...]:
        return self.train + self.test


ORIGIN = Origin(
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
    Path("/usr/share/datasets/fashion-mnist"),
    train=(
        IdxFile(
            "train-images-idx3-ubyte",
            (60_000, 28, 28),
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        ),
        IdxFile(
            "train-labels-idx1-ubyte",
            (60_000,),
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        ),
    ),
    test=(
        IdxFile(
            "t10k-images-idx3-ubyte",
            (10_000, 28, 28),
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        ),
        IdxFile(
            "t10k-labels-idx1-ubyte",
            (10_000,),
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
    ),
)


def fashion_mnist(origin: Origin = ORIGIN) -> tuple[Split, Split]:
    """Training (60,000) and test (10,000) images [n, 1, 28, 28] in [0, 1] of ten kinds of clothing.

    Looked for in $COBO_DATA/fashion-mnist, torchvision's folder there, the user's cache and Debian's package; never
    downloaded unasked.
    """
    folder = locate(origin)
    if folder is None:
        raise DataError(f"{_missing(origin)}; run `cobo data fetch {NAME}` (30 MB), or {_put()}")
    return _split(folder, *origin.train), _split(folder, *origin.test)


def locate(origin: Origin = ORIGIN) -> Path | None:
    """The first folder that has all four files, if there is one."""
    return next((folder for folder in _places(origin) if all(file.inside(folder) for file in origin.files)), None)


def fetch(origin: Origin = ORIGIN) -> Path:
    """Download what the user's cache lacks, check what it has, and return its folder."""
    folder = store.cache(NAME)
    for file in origin.files:
        if file.inside(folder) is not None:
            _read(folder, file)
            continue
        name = f"{file.name}.gz"
        try:
            store.download(f"{origin.address}/{name}", folder / name, partial(read_idx, expected=file))
        except DataError as error:
            raise DataError(f"{_missing(origin)}; {error}; {_put()}") from None
    return folder


def _places(origin: Origin) -> list[Path]:
    """Not right in $COBO_DATA: the files of MNIST have the same names."""
    torchvision = [folder / "FashionMNIST" / "raw" for folder in store.chosen()]
    return [*(folder / NAME for folder in store.chosen()), *torchvision, store.cache(NAME), origin.package]


def _missing(origin: Origin) -> str:
    looked = ", ".join(str(place) for place in _places(origin))
    return f"{NAME} is missing, looked for in {looked}"


def _put() -> str:
    return (
        f"install Debian's package {PACKAGE}, or put the four files (.gz or unpacked) into {store.cache(NAME)}, or "
        f"into {NAME} in a folder that COBO_DATA names"
    )


def _split(folder: Path, images: IdxFile, labels: IdxFile) -> Split:
    inputs = np.divide(_read(folder, images), np.float32(255))
    targets = _read(folder, labels).astype(np.int64)
    return Split(torch.from_numpy(inputs)[:, None], torch.from_numpy(targets))


def _read(folder: Path, file: IdxFile) -> NDArray[np.uint8]:
    path = file.inside(folder) or folder / file.name
    try:
        return read_idx(path, file)
    except ValueError as error:
        raise DataError(f"{path} is damaged: {error}; delete it and try again") from None


SOURCE = Source(
    NAME,
    "70,000 images of clothing, 28x28, 10 classes",
    locate=locate,
    fetch=fetch,
    hint=f"`cobo data fetch {NAME}`, or install Debian's package {PACKAGE}",
)
