"""Data sets: where they are, whether they are whole, and how to get what is missing."""

from typing import NamedTuple

from cobo.data.digits import digits

__all__ = ["DATA", "Source", "digits"]


class Source(NamedTuple):
    """A data set that experiments can ask for."""

    name: str
    what: str
    where: str


DATA = {
    "digits": Source("digits", "1,797 images of handwritten digits, 8x8, 10 classes", "comes with scikit-learn"),
}
