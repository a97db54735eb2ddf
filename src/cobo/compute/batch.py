"""A batch: the fields of some samples, and how the user had arranged them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

Fields = tuple[Tensor, ...]


@dataclass(frozen=True)
class Layout:
    """How the fields of a batch were arranged by the user: one tensor, a tuple, or a dict."""

    keys: tuple[str, ...] | None = None
    single: bool = False

    def build(self, fields: Sequence[Tensor]) -> Any:
        """The batch as the user's objective expects it."""
        if self.single:
            return fields[0]
        return tuple(fields) if self.keys is None else dict(zip(self.keys, fields, strict=True))
