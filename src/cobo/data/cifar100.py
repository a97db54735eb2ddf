"""CIFAR-100 (Krizhevsky 2009): found on this computer, or downloaded from its author on request."""

from hashlib import file_digest, md5
from pathlib import Path
from typing import NamedTuple

from cobo.data import store
from cobo.data.cifar100_files import BINARY, FORMS, PYTHON, Form
from cobo.data.source import Source, Split
from cobo.errors import DataError

NAME = "cifar100"


class Origin(NamedTuple):
    """Where the archive comes from, the checksum that its author publishes, and how many images each side has."""

    address: str
    md5: str
    train: int
    test: int


ORIGIN = Origin(
    f"https://www.cs.toronto.edu/~kriz/{BINARY.archive}", "03b5dce01913d631647c71ecec9e9cb8", train=50_000, test=10_000
)


def cifar100(origin: Origin = ORIGIN) -> tuple[Split, Split]:
    """Training (50,000) and test (10,000) images of a hundred kinds of things: bytes [n, 3, 32, 32], fine labels.

    Looked for in $COBO_DATA/cifar100, $COBO_DATA itself and the user's cache; large, and so never downloaded unasked.
    The order of images is that of the files.
    """
    found = _found()
    if found is None:
        raise DataError(f"{_missing()}; run `cobo data fetch {NAME}` (170 MB), or {_put()}")
    form, where = found
    return form.read(where, origin.train, origin.test)


def locate() -> Path | None:
    """The first folder or archive that has both sides, if there is one."""
    found = _found()
    return found and found[1]


def fetch(origin: Origin = ORIGIN) -> Path:
    """Download the archive into the user's cache, where it is read as it is, and return its path."""

    def check(path: Path) -> None:
        with path.open("rb") as file:
            if file_digest(file, lambda: md5(usedforsecurity=False)).hexdigest() != origin.md5:
                raise ValueError("its checksum is wrong")

    path = store.cache(NAME) / BINARY.archive
    try:
        store.download(origin.address, path, check)
    except DataError as error:
        raise DataError(f"{_missing()}; {error}; {_put()}") from None
    return path


def _places() -> list[Path]:
    """Where to look: COBO_DATA may name the folder around cifar100, or the one that has the files."""
    around = [folder / NAME for folder in store.chosen()]
    return [*around, *store.chosen(), store.cache(NAME)]


def _found() -> tuple[Form, Path] | None:
    """The data in the form that loads fastest, in the first place that has any."""
    for place in _places():
        for form in FORMS:
            where = form.find(place)
            if where is not None:
                return form, where
    return None


def _missing() -> str:
    return f"{NAME} is missing, looked for in {', '.join(str(place) for place in _places())}"


def _put() -> str:
    return (
        f"put the folder {BINARY.name} or {PYTHON.name} or its .tar.gz, or Hugging Face's train-*.parquet and "
        f"test-*.parquet, into {store.cache(NAME)} or into a folder {NAME} where COBO_DATA is"
    )


SOURCE = Source(
    NAME,
    "60,000 colour images of things, 32x32, 100 classes",
    locate=locate,
    fetch=fetch,
    hint=f"`cobo data fetch {NAME}` (170 MB), or have COBO_DATA name a folder that has it",
)
