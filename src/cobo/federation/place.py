"""Where rows live: here, all of them. A federation that is spread over processes has some (`engines.Sharded`).

A method's tensors of rows, models and gradients, are those of the clients `mine`; what it knows about clients (W, who
takes part, whose gradient is finite) is about all n, and the same everywhere. What goes from one to the other is here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cobo.compute.rows import Part, mix_parts

Indices = NDArray[np.int64]


class Place:
    """All rows are here, so nothing has to be fetched. Clients are given by their position among those present."""

    spread = False  # whether there are rows elsewhere
    mine: Indices  # the clients whose rows and samples are here, in order

    def here(self, who: Indices) -> Indices:
        """Those of these clients that are here."""
        return who

    def rows_of(self, who: Indices) -> Indices:
        """Which of the rows here are those of these clients, who are here."""
        return who

    def gather(self, values: Tensor, who: Indices | None = None) -> Tensor:
        """Values [m, ...] of all these clients (or everyone), given those of the ones that are here."""
        return values

    def part(self, values: Tensor) -> Tensor:
        """Of values [n, ...] of everyone, those of the clients that are here."""
        return values

    def combine(self, M: Tensor, rows: Tensor, who: Indices) -> Tensor:
        """M [c, m] times the rows of m clients, given those of the ones that are here; [c, d], known everywhere."""
        return M @ rows

    def mix(self, parts: Sequence[Part], X: Tensor) -> None:
        """The rows of each part of the clients become its matrix times them, in place."""
        mix_parts(parts, X)

    def blocks(self, at_once: int) -> Iterator[slice]:
        """The rows here, some at a time; as often everywhere."""
        for first in range(0, len(self.mine), at_once):
            yield slice(first, min(len(self.mine), first + at_once))

    def whole(self, rows: Tensor, common: int = 0) -> Tensor:
        """The rows of everyone, where the run is recorded; the last ones, that all have in `common`, are kept."""
        return rows

    def share_out(self, tensors: Mapping[str, Tensor], common: Callable[[str], int | None]) -> dict[str, Tensor]:
        """What was read where the run is recorded: of rows those that belong here, and all of what is no rows.

        `common` says how many rows, the last ones, all have in common; None if it is no rows.
        """
        return dict(tensors)
