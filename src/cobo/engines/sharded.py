"""A federation spread over processes: each has the rows and samples of some clients; only rows that are needed travel.

W, and all else that is known about clients, is the same in every process, as are all draws; so each knows without
asking which rows every other one needs. Clients are in blocks, in order: `homes` [N] says in which process each is.

    own gradient      nothing travels
    pair (i, j)       both models go to the other's process, one gradient comes back, and three numbers to everyone
    mixing            a row goes, once, to each process that has a client which it pulls
    shared models     sums over clients, to everyone
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cobo import draws
from cobo.compute.rows import Part
from cobo.engines.ranks import Ranks
from cobo.errors import ConfigError
from cobo.federation import Client, Federation, Products
from cobo.federation.federation import spread_out
from cobo.federation.place import Indices

FETCHED_AT_ONCE = 64 << 20  # bytes of others' rows that are here at a time while models are mixed


def balanced(costs: Sequence[float], ranks: int) -> Indices:
    """The process of each client: blocks in order, of nearly equal cost, none empty.

    >>> balanced([1, 1, 1, 1, 1, 1, 1, 1], 3).tolist(), balanced([9, 1, 1, 1, 3, 3], 3).tolist()
    ([0, 0, 0, 1, 1, 2, 2, 2], [0, 1, 1, 1, 2, 2])
    """
    ends = np.concatenate([[0.0], np.cumsum(costs)])
    homes, first = np.empty(len(costs), dtype=np.int64), 0
    for rank in range(ranks):
        others = ranks - rank - 1
        share = ends[first] + (ends[-1] - ends[first]) / (others + 1)  # of what is left, among those who are left
        last = int(np.abs(ends[first + 1 : len(ends) - others] - share).argmin()) + first + 1 if others else len(costs)
        homes[first:last], first = rank, last
    return homes


class Sharded(Federation):
    """Rows are those of the clients of this process. All processes make the same calls in the same order."""

    spread = True

    def __init__(
        self, clients: Sequence[Client], model: nn.Module | Callable[[], nn.Module], *, ranks: Ranks, **options: Any
    ) -> None:
        if len(clients) < ranks.size:
            raise ConfigError(f"torchrun has {ranks.size} processes for {len(clients)} clients; start at most one each")
        whole = options.get("batch_size", 32) is None  # then a gradient takes as long as a client has samples
        self._homes = balanced([len(client.train) if whole else 1 for client in clients], ranks.size)
        self._ranks = ranks
        super().__init__(clients, model, held=np.flatnonzero(self._homes == ranks.rank), **options)

    def attend(self, names: Sequence[str], since: Mapping[str, int] | None = None) -> None:
        super().attend(names, since)
        self.homes = self._homes[self._here]  # [n], the process of each client present

    @property
    def _counts(self) -> list[int]:
        """How many clients each process has."""
        return _counted(self.homes, self._ranks.size)

    # Place

    def here(self, who: Indices) -> Indices:
        return np.intersect1d(who, self.mine)

    def rows_of(self, who: Indices) -> Indices:
        return np.searchsorted(self.mine, who)

    def gather(self, values: Tensor, who: Indices | None = None) -> Tensor:
        who = np.arange(len(self)) if who is None else who
        numbers = values.to(torch.uint8) if values.dtype == torch.bool else values
        all_of_them = numbers.new_zeros(len(who), *values.shape[1:])
        all_of_them[np.flatnonzero(self.homes[who] == self._ranks.rank)] = numbers
        return self._ranks.sum(all_of_them).to(values.dtype)

    def part(self, values: Tensor) -> Tensor:
        return values[self.mine]

    def combine(self, M: Tensor, rows: Tensor, who: Indices) -> Tensor:
        return self._ranks.sum(M[:, np.flatnonzero(self.homes[who] == self._ranks.rank)] @ rows)

    def mix(self, parts: Sequence[Part], X: Tensor) -> None:
        rank, homes = self._ranks.rank, self.homes
        needs: list[list[Indices]] = [[] for _ in range(self._ranks.size)]
        mine: list[tuple[Indices, Indices, Tensor]] = []  # of a part: rows here, whom they need, and their matrix
        for members, M in parts:
            who, live = members.numpy(), homes[members.numpy()]
            for r in np.unique(live):
                rows = np.flatnonzero(live == r)
                used = np.flatnonzero((M[rows] != 0).any(0).numpy())
                needs[r].append(who[used])
                if r == rank:
                    mine.append((who[rows], who[used], M[rows][:, used].to(X)))
        wanted = [self._elsewhere(r, need) for r, need in enumerate(needs)]
        most = max(1, *(len(who) for need in needs for who in need), *(len(who) for who in wanted))
        columns = max(1024, FETCHED_AT_ONCE // (most * X.element_size()))
        for first in range(0, X.shape[1], columns):
            tile = X[:, first : first + columns]
            fetched = self._fetch(tile, wanted)
            for of_whom, need, M in mine:
                tile[self.rows_of(of_whom)] = M @ self._found_among(tile, fetched, wanted[rank], need)

    def blocks(self, at_once: int) -> Iterator[slice]:
        mine = len(self.mine)
        for first in range(0, max(self._counts), at_once):
            yield slice(min(mine, first), min(mine, first + at_once))

    def whole(self, rows: Tensor, common: int = 0) -> Tensor:
        own, shared = rows[: len(rows) - common].cpu(), rows[len(rows) - common :].cpu()
        if common and not len(own):
            return shared
        others = self._ranks.size - 1
        get = self._counts if self._ranks.leads else [0] * self._ranks.size
        got = self._ranks.exchange(own, [len(own)] + [0] * others, get)
        return torch.cat([got, shared])

    def share_out(self, tensors: Mapping[str, Tensor], common: Callable[[str], int | None]) -> dict[str, Tensor]:
        ranks, counts = self._ranks, self._counts
        kinds = ranks.first(lambda: {n: [str(t.dtype).removeprefix("torch."), *t.shape] for n, t in tensors.items()})
        parts = {}
        for name, (dtype, *shape) in kinds.items():
            rows, *rest = shape or [1]
            tensor = torch.empty(0, *rest, dtype=getattr(torch, dtype))
            if ranks.leads:
                tensor = tensors[name].reshape(rows, *rest)
            shared = common(name)
            kept = rows if shared is None else min(shared, rows)  # that all get
            own = self._from_first(tensor[: rows - kept], counts if kept < rows else [0] * ranks.size)
            last = tensor[rows - kept :].repeat(ranks.size, *[1] * len(rest))
            joined = torch.cat([own, self._from_first(last, [kept] * ranks.size)])
            parts[name] = joined if shape else joined[0]
        return parts

    def _from_first(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """So many of the first process's rows go to each process."""
        ranks, none = self._ranks, [0] * (self._ranks.size - 1)
        give = counts if ranks.leads else [0, *none]
        return ranks.exchange(rows, give, [counts[ranks.rank], *none])

    # What can be asked

    def evaluate(self, models: Tensor, clients: Sequence[int] | None = None) -> list[dict[str, float]]:
        return [measured for part in self._ranks.collect(super().evaluate(models, clients)) for measured in part]

    def survey(self, models: Tensor, owners: Indices, round: int) -> tuple[Tensor, Tensor]:
        ranks, mine, counts = self._ranks, len(self.mine), self._counts
        everyones = [np.array(part, dtype=np.int64) for part in ranks.collect(owners.tolist())]
        sizes, whose = [len(part) for part in everyones], np.concatenate(everyones)
        asked = ranks.exchange(models.repeat(ranks.size, 1), [len(models)] * ranks.size, sizes)
        i, k = np.nonzero(whose[:, None] != self.mine)
        answer = self.gradients(asked[i], self.mine[k].tolist(), round, track=False)
        Z, finite = spread_out(answer, i, k, (len(whose), mine))
        give, get = [size * mine for size in sizes], [len(models) * count for count in counts]

        def back(answers: Tensor) -> Tensor:
            came = torch.split(ranks.exchange(answers.flatten(0, 1), give, get), get)
            shapes = [(len(models), count, *answers.shape[2:]) for count in counts]
            return torch.cat([part.view(shape) for part, shape in zip(came, shapes, strict=True)], dim=1)

        return back(Z), back(finite)

    def _products(
        self,
        models: Tensor,
        who: Indices,
        pairs: Indices,
        round: int | Indices,
        batches: int | None,
        *,
        scratch: Tensor,
    ) -> Products:
        size, rank, homes = self.pair_batch(batches), self._ranks.rank, self.homes
        values = models.new_zeros(3, len(pairs))
        i, j = self._here[pairs[:, 0]], self._here[pairs[:, 1]]
        asks, asked = self._pair_keys(i, j, round)
        most = max(1, self.models_at_once // self._in_a_pass(batches))
        for alike in self._train.chunks(i, j, size=size, most=max(1, len(pairs))):
            for chunk in _few_at_once(alike, homes[pairs[alike]], most):
                a, b = pairs[chunk].T
                at_i, at_j = homes[a] == rank, homes[b] == rank
                Z = self._midpoints(models, a, b)
                near = at_i | at_j
                g_i = self._rows(Z[at_i[near]], i[chunk[at_i]], asks[chunk[at_i]], size)
                g_j = self._rows(Z[at_j[near]], j[chunk[at_j]], asked[chunk[at_j]], size)
                g_j = self._to_asker(g_j, homes[a], homes[b])
                here = chunk[at_i]
                values[0, here] = torch.linalg.vecdot(g_i, g_j)
                values[1, here] = torch.linalg.vector_norm(g_i, dim=1)
                values[2, here] = torch.linalg.vector_norm(g_j, dim=1)
        for asked_of in (i, j):
            here = asked_of[self._homes[asked_of] == rank]
            self._count(here, self.cost(here, batches))
        if len(pairs):
            values = self._ranks.sum(values)
        return Products(torch.from_numpy(pairs), *values)

    def _rows(self, models: Tensor, clients: Indices, keys: draws.Keys, size: int | None) -> Tensor:
        """Gradients as rows [m, d]; there may be none."""
        return torch.cat(self._ask(models, clients, keys, size), dim=1) if len(models) else models

    def _midpoints(self, models: Tensor, a: Indices, b: Indices) -> Tensor:
        """(x_a + x_b) / 2 for the pairs of which one client is here, in order."""
        homes, rank = self.homes, self._ranks.rank
        wanted = [self._elsewhere(r, [b[homes[a] == r], a[homes[b] == r]]) for r in range(self._ranks.size)]
        fetched = self._fetch(models, wanted)
        near = (homes[a] == rank) | (homes[b] == rank)
        x, y = (self._found_among(models, fetched, wanted[rank], ends[near]) for ends in (a, b))
        return x.lerp_(y, 0.5)

    def _to_asker(self, g_j: Tensor, homes_i: Indices, homes_j: Indices) -> Tensor:
        """The gradients of j's that are here go to where their i's are; those for the i's here, in order."""
        if (homes_i == homes_j).all():
            return g_j
        rank, size = self._ranks.rank, self._ranks.size
        to, come = homes_i[homes_j == rank], homes_j[homes_i == rank]
        order = np.argsort(to, kind="stable")
        got = self._ranks.exchange(g_j[order], _counted(to, size), _counted(come, size))
        return got[np.argsort(np.argsort(come, kind="stable"), kind="stable")]

    # Rows that travel

    def _elsewhere(self, rank: int, whom: Sequence[Indices]) -> Indices:
        """Those of these clients, each once and in order, who are not in a process."""
        return np.setdiff1d(np.concatenate([*whom, np.empty(0, dtype=np.int64)]), np.flatnonzero(self.homes == rank))

    def _fetch(self, rows: Tensor, wanted: Sequence[Indices]) -> Tensor:
        """Others' rows that are wanted here, given whom each process wants, in order, and the rows that are here."""
        homes, rank, size = self.homes, self._ranks.rank, self._ranks.size
        if not any(len(who) for who in wanted):
            return rows[:0]
        given = [who[homes[who] == rank] for who in wanted]
        get = _counted(homes[wanted[rank]], size)
        return self._ranks.exchange(rows[self.rows_of(np.concatenate(given))], [len(who) for who in given], get)

    def _found_among(self, rows: Tensor, fetched: Tensor, whose: Indices, who: Indices) -> Tensor:
        """The rows of clients that are here, or among those fetched (`whose`)."""
        here = self.homes[who] == self._ranks.rank
        found = rows.new_empty(len(who), rows.shape[1])
        found[np.flatnonzero(here)] = rows[self.rows_of(who[here])]
        found[np.flatnonzero(~here)] = fetched[np.searchsorted(whose, who[~here])]
        return found

    # Buffers: every process has a row for everyone, and moves its own.

    def complete_buffers(self) -> None:
        for rows in self.buffers.values():
            own = torch.zeros_like(rows)
            own[self._held] = rows[self._held]
            rows.copy_(self._ranks.sum(own))

    def _share_buffers(self, whose: Indices) -> None:
        took = torch.zeros(len(self.clients), dtype=torch.int64)
        took[whose] = 1
        self.complete_buffers()
        super()._share_buffers(np.flatnonzero(self._ranks.sum(took).numpy()))


def _counted(homes: Indices, size: int) -> list[int]:
    """How many there are of each process."""
    counts: list[int] = np.bincount(homes, minlength=size).tolist()
    return counts


def _few_at_once(pairs: Indices, homes: Indices, most: int) -> Iterator[Indices]:
    """Pairs in order, in chunks in which no process has to take more than so many gradients for either side."""
    start, taken = 0, np.zeros((2, int(homes.max()) + 1), dtype=np.int64)
    for k, (i, j) in enumerate(homes.tolist()):
        if max(taken[0, i], taken[1, j]) == most:
            yield pairs[start:k]
            start, taken[:] = k, 0
        taken[0, i] += 1
        taken[1, j] += 1
    yield pairs[start:]
