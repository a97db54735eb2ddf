"""Every reply is checked before it touches a model or W: shape, type, finite, not far longer than what came before."""

import math
import statistics
from collections.abc import Mapping

import torch

from cobo.flower.rules import Alone, Orders
from cobo.flower.wire import TENSORS, Reply

Lengths = dict[str, float]

LARGEST = 1e305  # score, of which a thousand can be summed


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
            before = self.longest.get(self._names[i], {})
            for kind, length in mine.items():
                usual = before.get(kind) or self._usual(kind, [o[kind] for o in lengths.values() if kind in o])
                if usual and not length <= self._tolerance * usual:
                    bad[i] = f"its {kind} has length {length:.3g}, more than {self._tolerance:g} times {usual:.3g}"
        for i, mine in lengths.items():
            if i not in bad:
                kept = self.longest.setdefault(self._names[i], {})
                kept.update({kind: max(length, kept.get(kind, 0.0)) for kind, length in mine.items()})
        return bad

    def _usual(self, kind: str, now: list[float]) -> float:
        """For who has sent nothing yet: the longest of anybody so far; or else the upper median of the round.

        Newcomers learn when the others have done so, and their vectors are longer then.
        """
        longest = [lengths[kind] for lengths in self.longest.values() if kind in lengths]
        return max(longest) if longest else statistics.median_high(now)

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
        if any(abs(value) > LARGEST for value in reply.measured.values() if math.isfinite(value)):
            return "its scores are too large to be any"
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
