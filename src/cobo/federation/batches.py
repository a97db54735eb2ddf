"""What clients train on, as it is drawn: batches that follow a key, all samples, or those a thousand at a time."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cobo import draws
from cobo.compute.accumulated import Weigh
from cobo.compute.batch import Fields, Layout
from cobo.federation.augment import Augmentation
from cobo.federation.client import Client
from cobo.federation.samples import Pool, in_order

Indices = NDArray[np.int64]

SAMPLES_AT_ONCE = 1024  # of a client, in one pass, when all that it has are taken


class Batches:
    """The training samples of those who are `held`; clients are given by their position among everyone."""

    def __init__(
        self, clients: Sequence[Client], place: dict[str, Any], augment: Augmentation | None, held: Indices
    ) -> None:
        samples = [client.train for client in clients]
        self._pool = Pool(samples, **place, held=held)
        # Windows that begin anywhere are for batches; all samples of a text are those that lie side by side.
        fixed = [in_order(some) for some in samples]
        alike = all(a is b for a, b in zip(samples, fixed, strict=True))
        self._whole = self._pool if alike else Pool(fixed, **place, held=held)
        self._augment = augment

    @property
    def sizes(self) -> Indices:
        """How many samples each client has."""
        return self._pool.sizes

    @property
    def layout(self) -> Layout:
        return self._pool.layout

    def draw(self, clients: Indices, keys: draws.Keys, size: int | None) -> Fields:
        """`size` samples drawn with replacement, as the paper's xi ~ D_i; or all samples, in order, when it is None."""
        sizes = self.sizes[clients]
        if size is None:
            return self.take(clients, keys, np.tile(np.arange(sizes[0]), (len(clients), 1)))
        return self._augmented(self._pool.take(clients, draws.integers(keys, sizes, size), keys), keys)

    def take(self, clients: Indices, keys: draws.Keys, positions: Indices) -> Fields:
        """These of all samples, augmented."""
        return self._augmented(self._whole.take(clients, positions, keys), keys)

    def _augmented(self, fields: Fields, keys: draws.Keys) -> Fields:
        return fields if self._augment is None else self._augment(fields, keys)

    def parts(
        self, clients: Indices, keys: draws.Keys, size: int | None, weigh: Weigh | None
    ) -> Iterator[tuple[Fields, Tensor]]:
        """The clients' batches, or all of their (equally many) samples a thousand at a time, with the share of each."""
        if size is not None:
            yield self.draw(clients, keys, size), torch.ones(len(clients))
            return
        for positions, share in self.whole(clients, weigh):
            yield self._whole.take(clients, positions, keys), share

    def whole(self, clients: Indices, weigh: Weigh | None) -> Iterator[tuple[Indices, Tensor]]:
        """Where the clients' (equally many) samples are, a thousand at a time, with the share [m] of each part.

        That is its share of all samples or, with `weigh`, of what they weigh.
        """
        count = int(self.sizes[clients[0]])
        some = np.array_split(np.arange(count), -(-count // SAMPLES_AT_ONCE))
        parts = [np.tile(part, (len(clients), 1)) for part in some]
        if weigh is None or len(parts) == 1:
            yield from ((part, torch.full((len(part),), part.shape[1] / count)) for part in parts)
            return
        keys = np.zeros(len(clients), dtype=np.uint64)
        weights = torch.stack([weigh(self._whole.take(clients, part, keys)) for part in parts])
        yield from zip(parts, weights / weights.sum(0).clamp(min=1), strict=True)

    def chunks(self, *clients: Indices, size: int | None, most: int) -> Iterator[Indices]:
        """Positions in `clients` in chunks of at most so many; batches in a chunk have one size."""
        if len(clients[0]) == 0:
            return
        sizes = np.stack([self.sizes[c] if size is None else 0 * c for c in clients])
        _, kind = np.unique(sizes, axis=1, return_inverse=True)
        for which in range(kind.max() + 1):
            members = np.flatnonzero(kind.reshape(-1) == which)
            yield from (members[k : k + most] for k in range(0, len(members), most))

    def trial(self, size: int | None, seed: int) -> Fields:
        """A batch of the first client, to see what the model does with it."""
        positions = np.arange(size or int(self.sizes[0]))[None] % self.sizes[0]
        key = draws.combine(draws.key(seed, "trial"), np.zeros(1, dtype=np.uint64))
        return tuple(field[0] for field in self._pool.fetch(np.zeros(1, dtype=np.int64), positions, key))
