"""Everyone's model by name, each of them made when it is asked for."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

Numbers = Mapping[str, Tensor]


class Models(Mapping[str, nn.Module]):
    """A read-only dict of modules. One that was asked for is kept, as its user may go on training it.

    Until then there are its `numbers` only: as a tree of Python objects a module is far larger than a small adapter.
    """

    def __init__(self, numbers: Mapping[str, Numbers], build: Callable[[Numbers], nn.Module]) -> None:
        self.numbers, self._build = numbers, build
        self._kept: dict[str, nn.Module] = {}

    def __getitem__(self, name: str) -> nn.Module:
        self._kept[name] = self.passing(name)
        return self._kept[name]

    def passing(self, name: str) -> nn.Module:
        """A model that is not kept, unless it already is: for a look at one after the other."""
        return self._kept[name] if name in self._kept else self._build(self.numbers[name])

    def __contains__(self, name: object) -> bool:
        return name in self.numbers

    def __iter__(self) -> Iterator[str]:
        return iter(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    def __repr__(self) -> str:
        return f"Models({', '.join(map(repr, self))})"

    def __getstate__(self) -> dict[str, Any]:
        """To be pickled or copied all are made, as how to make one may be a function of the user's."""
        return {"numbers": self.numbers, "_kept": dict(self), "_build": None}
