"""Every reply is checked before it touches a model or W: shape, type, finite, not far longer than what came before."""

import statistics
from collections.abc import Mapping

import torch

from cobo.flower.rules import Alone, Orders
from cobo.flower.wire import TENSORS, Reply

Lengths = dict[str, float]

LARGEST = torch.finfo(torch.float32).max
POSSIBLE = {"accuracy": (0.0, 100.001), "perplexity": (0.999, LARGEST), "loss": (-LARGEST, LARGEST)}  # but for rounding


def impossible(measured: Mapping[str, float]) -> list[str]:
    """The scores of a client that cannot be; they are its word, and say nothing about its reply."""
    return [k for k, (low, high) in POSSIBLE.items() if k in measured and not low <= measured[k] <= high]


class Checks:
    """`longest[name]` are the lengths of the longest vectors that were accepted of a client, by kind."""

    def __init__(self, rule: Alone, names: list[str], tolerance: float) -> None:
        self._rule, self._names, self._tolerance = rule, names, tolerance
        self.longest: dict[str, Lengths] = {}

    def sift(self, orders: Orders, replies: Mapping[int, Reply], run: str, round: int) -> dict[int, str]:
        """What is wrong with replies, by client; those that are not named are good, and count for the next ones."""
        bad = {i: why for i, reply in replies.items() if (why := self._wrong(orders, i, reply, run, round))}
        lengths = {i: self._lengths(orders, i, reply) for i, reply in replies.items() if i not in bad}
        for i, mine in lengths.items():
            for kind, length in mine.items():
                times, usual = self._limit(i, kind, [o[kind] for o in lengths.values() if kind in o])
                if usual and not length <= times * usual:
                    bad[i] = f"its {kind} has length {length:.3g}, more than {times:g} times {usual:.3g}"
        for i, mine in lengths.items():
            if i not in bad:
                kept = self.longest.setdefault(self._names[i], {})
                kept.update({kind: max(length, kept.get(kind, 0.0)) for kind, length in mine.items()})
        return bad

    def _limit(self, client: int, kind: str, now: list[float]) -> tuple[float, float]:
        """How many times which length is too long.

        Of who has sent some, it is the longest of these; of others, the longest of anybody so far, as newcomers learn
        when the others have done so, and their vectors are longer then; and at the very start the median of the round,
        the lower one, as of two the longer may be the wrong one, or the start itself. Who grows little by little is
        held by the others, when there are two of them.
        """
        me = self._names[client]
        others = [lengths[kind] for name, lengths in self.longest.items() if kind in lengths and name != me]
        start = float(torch.linalg.vector_norm(self._rule.remote.blueprint.start.double()))
        usual = self.longest.get(me, {}).get(kind) or max(others, default=0.0)
        limits = [(self._tolerance, usual or max(statistics.median_low(now), start))]
        if len(others) > 1:
            limits.append((self._tolerance**2, statistics.median_high(others)))
        return min(limits, key=lambda limit: limit[0] * limit[1])

    def _lengths(self, orders: Orders, client: int, reply: Reply) -> Lengths:
        if not orders[client].steps:
            return {}
        return {k: self._rule.length(client, k, getattr(reply, k)) for k in self._rule.shapes(orders[client])}

    def _wrong(self, orders: Orders, client: int, reply: Reply, run: str, round: int) -> str:
        if reply.problem:
            return reply.problem
        if (reply.name, reply.run, reply.round) != (self._names[client], run, round):
            return (
                f"it is of {reply.name!r} in round {reply.round} of run {reply.run}, not of round {round} of run {run}"
            )
        if reply.lost:
            return "it no longer has its model; it will be sent one to go on with"
        start = self._rule.remote.blueprint.start
        shapes = self._rule.shapes(orders[client]) if orders[client].steps else {}
        for kind in TENSORS[Reply]:
            if kind not in shapes and getattr(reply, kind) is not None:
                return f"it has {kind}, for which it was not asked"
        for kind, shape in shapes.items():
            vectors = getattr(reply, kind)
            if vectors is None:
                return f"it has no {kind}"
            if list(vectors.shape) != shape:
                return f"its {kind} has shape {list(vectors.shape)}, not {shape}"
            if vectors.dtype != start.dtype:
                return f"its {kind} is of {vectors.dtype}, not {start.dtype}"
            if not torch.isfinite(vectors).all():
                return f"its {kind} has values that are not finite"
        return ""
