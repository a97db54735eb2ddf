"""Gradients of large batches, some samples at a time, where the activations of all would not fit."""

from collections.abc import Callable, Iterator

from torch import Tensor

from cobo import draws
from cobo.compute.batch import Fields
from cobo.compute.blueprint import Buffers
from cobo.compute.executor import Executor

Weigh = Callable[[Fields], Tensor]


class Accumulated:
    """The mean over passes of at most `at_once` samples, each counting by what it weighs."""

    def __init__(self, executor: Executor, at_once: int, weigh: Weigh) -> None:
        self.name = executor.name
        self._executor, self._at_once, self._weigh = executor, at_once, weigh

    def gradients(
        self, models: Tensor, fields: Fields, buffers: Buffers, keys: draws.Keys
    ) -> tuple[list[Tensor], Tensor]:
        sums: list[Tensor] = []
        losses = models.new_zeros(len(models))
        for some, share, mine in self._passes(fields, keys):
            pieces, loss = self._executor.gradients(models, some, buffers, mine)
            losses += share * loss
            if not sums:
                sums = [piece.mul_(share[:, None]) for piece in pieces]
            else:
                for total, piece in zip(sums, pieces, strict=True):
                    total.addcmul_(piece, share[:, None])
        return sums, losses

    def losses(self, models: Tensor, fields: Fields, buffers: Buffers, keys: draws.Keys) -> Tensor:
        passes = self._passes(fields, keys)
        return sum(
            (share * self._executor.losses(models, some, buffers, mine) for some, share, mine in passes),
            start=models.new_zeros(len(models)),
        )

    def _passes(self, fields: Fields, keys: draws.Keys) -> Iterator[tuple[Fields, Tensor, draws.Keys]]:
        """Some samples, their share of all for each model [m], and keys of their own, for dropout."""
        whole = self._weigh(fields).clamp(min=1)
        for k, start in enumerate(range(0, fields[0].shape[1], self._at_once)):
            some = tuple(field[:, start : start + self._at_once] for field in fields)
            yield some, self._weigh(some) / whole, draws.combine(keys, k) if k else keys
