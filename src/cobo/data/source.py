"""A data set as experiments know it: where it comes from, and the two sides that loading it gives."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from cobo import draws


class Split(NamedTuple):
    """Training or test samples: two tensors whose first axis counts them."""

    inputs: Tensor
    targets: Tensor

    def divided(self, share: float, seed: int) -> tuple["Split", "Split"]:
        """The samples without a share of them, drawn by `seed`, and that share."""
        order = np.random.default_rng(int(draws.key(seed, "validation"))).permutation(len(self.targets))
        judged, kept = np.split(order, [max(1, round(share * len(order)))])
        kept, judged = np.sort(kept), np.sort(judged)
        return Split(self.inputs[kept], self.targets[kept]), Split(self.inputs[judged], self.targets[judged])


class Source(NamedTuple):
    """A data set that experiments can ask for.

    `locate` finds it on this computer, without looking inside; `fetch` downloads it, where that is possible; `hint`
    says how else to get it.
    """

    name: str
    what: str
    locate: Callable[[], Path | None]
    fetch: Callable[[], Path] | None = None
    hint: str = ""

    @property
    def where(self) -> str:
        """Where it is, or how to get it."""
        folder = self.locate()
        return f"missing: {self.hint}" if folder is None else f"present in {folder}"
