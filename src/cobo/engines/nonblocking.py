"""CoBo without waiting, in simulated time: every client steps at its own pace against the newest copies it has.

One queue of completions. A client's block of work is its own gradient and the pair gradients it owes. When i's is done:

    x_i  <-  x_i - eta rho sum_k w_ik (x_i - copy of x_k), then the optimiser's step;  its copy goes to the others

The pairs are those of the run that waits: (i, j) of round t is drawn when the later of the two begins round t, and is
asked at the midpoint of their newest copies. Each does its part in the block that it begins next, and W moves when
both have. A pair with a slow client is asked rarely while the fast one goes on; so that W does not lag behind its
models, an answer counts for all rounds that the faster of the two has begun since (`catch_up`).

What happens at one instant reads before it writes, and W moves before models do; so clients of equal speed take the
same steps as without clocks.

Symbols: t_i the rounds that client i has done; V [n, d] the newest copies and their rounds; a round of the engine is n
steps of clients, whoever takes them, so that rounds cost the same as ever.
"""

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cobo.collaboration import mixing
from cobo.engines.clocks import Clocks, Indices, Times
from cobo.federation import Federation, Products
from cobo.methods import CoBo, State
from cobo.methods.base import set_aside


@dataclass
class Question:
    """A pair that was asked, and the clients that still owe their part or are at it; it counts as `worth` rounds."""

    round: int
    i: int
    j: int
    values: list[float]  # the gradients' inner product and norms
    worth: int
    owed: list[int]
    begun: list[int]


class Copy(NamedTuple):
    """A model on its way to the others: there at `time`, made by so many rounds of its client."""

    time: float
    client: int
    round: int
    row: Tensor


@dataclass
class Seen:
    """How old the copies were that pulled since the last evaluation, and how many did not pull as they are old."""

    used: int = 0
    total: int = 0
    oldest: int = 0
    left_out: int = 0

    def add(self, ages: Indices, left_out: int) -> None:
        self.used += len(ages)
        self.total += int(ages.sum())
        self.oldest = max(self.oldest, int(ages.max(initial=0)))
        self.left_out += left_out

    def report(self) -> dict[str, float | None]:
        mean = self.total / self.used if self.used else None
        return {"mean": mean, "max": self.oldest if self.used else None, "left_out": self.left_out}


class NonBlocking:
    """`rates` are the optimiser's settings (learning rate, momentum) in each of a client's rounds."""

    def __init__(self, federation: Federation, method: CoBo, clocks: Clocks, rates: Sequence[dict[str, float]]) -> None:
        self._federation, self._method, self._clocks, self._rates = federation, method, clocks, rates
        self._times = Times(clocks, federation.names, federation.seed)
        n = len(federation)
        self._time = 0.0
        self._rounds = np.zeros(n, dtype=np.int64)  # t_i
        self._blocks = np.zeros(n, dtype=np.int64)  # begun by each client
        self._queue: list[tuple[float, int]] = []  # when a client's block is done
        self._questions: list[Question] = []
        self._V = method.rows(federation)
        self._made = np.zeros(n, dtype=np.int64)  # the rounds of the copies in V
        self._flying: deque[Copy] = deque()
        self._G = torch.empty_like(self._V)  # gradients of blocks that are not done yet, where they are `known`
        self._known, self._finite = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
        self._heard = np.full((n, n), -1)  # the round of the faster of two when their pair could last be asked
        self._looked_at = np.zeros((n, n), dtype=bool)  # whether client i has taken a step since k's copy is in V
        self._seen = Seen()

    def round(self, state: State) -> list[str]:
        """Until all clients together have done n more steps."""
        group = state.optimizer.param_groups[0]
        before = dict(group)
        enough = (state.round + 1) * len(self._federation)
        if not self._queue:
            self._begin(state, np.arange(len(self._federation)))
        aside: list[str] = []
        while self._rounds.sum() < enough:
            aside += [name for name in self._instant(state) if name not in aside]
        group.update(before)  # what is in it between rounds belongs to the loop's schedule
        return aside

    def _instant(self, state: State) -> list[str]:
        """All that is done at the next point in time."""
        self._time = self._queue[0][0]
        done = []
        while self._queue and self._queue[0][0] == self._time:
            done.append(heapq.heappop(self._queue)[1])
        while self._flying and self._flying[0].time <= self._time:
            self._receive(*self._flying.popleft()[1:])
        going = self._rounds[done] < state.rounds  # the others have only answered
        who = np.array(done)[going]
        self._compute(state, who)
        names = set_aside(state, self._federation, torch.from_numpy(self._finite[who]), who)
        self._answer(state, done)
        sound = who[self._finite[who]]
        for r in np.unique(self._rounds[sound]):
            self._step(state, sound[self._rounds[sound] == r], int(r))
        self._publish(state, sound)
        state.sent += 2 * len(who)  # a model up, the sum of copies down
        self._rounds[who] += 1
        self._known[who] = False
        self._begin(state, who[self._rounds[who] < state.rounds])
        return names

    def _compute(self, state: State, who: Indices) -> None:
        """The gradients of these clients' blocks.

        A model does not move while its client is busy, so what others are computing is computed along: one call
        for many. Not so if there are running statistics, which would be ahead of the models.
        """
        if self._known[who].all():
            return
        busy = [c for _, c in self._queue if self._rounds[c] < state.rounds and not self._known[c]]
        if not self._federation.buffers:
            who = np.concatenate([who[~self._known[who]], np.array(busy, dtype=np.int64)])
        rows = torch.from_numpy(who).to(state.X.device)
        answer = self._federation.gradients(state.X[rows], who.tolist(), self._rounds[who])
        self._G[rows] = answer.rows
        self._known[who], self._finite[who] = True, answer.finite.cpu().numpy()

    def _answer(self, state: State, done: list[int]) -> None:
        """The parts of these clients are there; W moves by what is complete, an earlier round's pairs first."""
        complete = []
        for question in self._questions:
            question.begun = [c for c in question.begun if c not in done]
            if not question.begun and not question.owed:
                complete.append(question)
        if not complete:
            return
        self._questions = [q for q in self._questions if q.begun or q.owed]
        aside = torch.zeros(len(self._federation), dtype=torch.bool)
        aside[list(state.aside)] = True
        for r in sorted({q.round for q in complete}):
            answers = [q for q in complete if q.round == r]
            pairs = torch.tensor([[q.i, q.j] for q in answers])
            values = state.X.new_tensor([q.values for q in answers]).unbind(1)
            worth = torch.tensor([q.worth for q in answers])
            self._method.select(state, self._federation, Products(pairs, *values), aside, worth)

    def _step(self, state: State, who: Indices, round: int) -> None:
        """The pull toward the copies at hand, then the optimiser's step: rows `who`, all in the same round."""
        state.optimizer.param_groups[0].update(self._rates[round])
        rows = torch.from_numpy(who).to(state.X.device)
        W = self._pulling(state, who, round)
        strength = self._method.strength(state.lr, round, state.rounds)
        state.X[rows] = mixing.pulled_toward(state.X[rows], self._V, W, strength, pull=self._method.pull)
        state.descend_some(rows, self._G[rows])

    def _pulling(self, state: State, who: Indices, round: int) -> Tensor:
        """W [m, n] of these clients, all in the same round, as far as it counts now.

        Nobody pulls itself, nor does who is set aside, nor a copy that is too old. While a slow client computes, a fast
        one takes many steps; unless copies are for `always`, one that is behind pulls it in the first of them only.
        """
        W = state.tensors["weights"][who]
        W[torch.arange(len(who)), torch.from_numpy(who)] = 0
        W[:, list(state.aside)] = 0
        connected = (W > 0).numpy()
        age = np.maximum(0, round - self._made)
        usable = np.ones_like(connected)
        if self._clocks.staleness is not None:
            usable &= age <= self._clocks.staleness
        if self._clocks.copies == "once":
            usable &= (age == 0) | ~self._looked_at[who]
        self._looked_at[who] |= connected & usable
        self._seen.add(np.broadcast_to(age, usable.shape)[connected & usable], int((connected & ~usable).sum()))
        return W * torch.from_numpy(usable)

    def _publish(self, state: State, who: Indices) -> None:
        for c in who.tolist():
            made = int(self._rounds[c]) + 1
            if self._clocks.delay:
                self._flying.append(Copy(self._time + self._clocks.delay, c, made, state.X[c].clone()))
            else:
                self._receive(c, made, state.X[c])

    def _receive(self, client: int, round: int, row: Tensor) -> None:
        self._V[client], self._made[client], self._looked_at[:, client] = row, round, False

    def _begin(self, state: State, who: Indices) -> None:
        """These clients begin their next round; who has done all of its own begins a block if it owes answers."""
        self._ask(state, who)
        idle = sorted(set(range(len(self._federation))) - {c for _, c in self._queue})
        each = self._federation.cost(self._federation.places, self._method.batches)
        for c in idle:
            gradients = int(self._rounds[c] < state.rounds)
            for question in self._questions:
                parts = question.owed.count(c)
                question.owed = [k for k in question.owed if k != c]
                question.begun += [c] * parts
                gradients += parts * int(each[c])
            if gradients:
                took = float(self._times.of(np.array([c]), self._blocks[[c]])[0])
                cost = gradients if self._clocks.count == "gradients" else 1
                heapq.heappush(self._queue, (self._time + took * cost, c))
                self._blocks[c] += 1

    def _ask(self, state: State, who: Indices) -> None:
        """The pairs of which the later client begins its round now."""
        t = self._rounds
        begins, behind = np.isin(np.arange(len(t)), who), t[:, None] <= t
        now = (begins[:, None] & behind) | (begins & behind.T)
        ahead = np.maximum(t[:, None], t)
        worth = np.maximum(ahead - self._heard, 1) if self._clocks.catch_up else np.ones_like(ahead)
        self._heard = np.where(now, ahead, self._heard)
        drawn = []
        for r in np.unique(t[who]):
            i, j = self._method.draw(self._federation, state.tensors["weights"], int(r), state.rounds).T
            which = now[i, j] & (np.minimum(t[i], t[j]) == r)
            drawn += [(int(r), *pair) for pair in np.stack([i[which], j[which]], axis=1).tolist()]
        if not drawn:
            return
        rounds, pairs = np.array(drawn)[:, 0], np.array(drawn)[:, 1:]
        products = self._federation.products(self._V, pairs, rounds, batches=self._method.batches)
        state.sent += 4 * len(pairs)  # the midpoint to both, and both gradients
        values = torch.stack([products.inner, products.norm_i, products.norm_j], dim=1).tolist()
        for (r, i, j), v in zip(drawn, values, strict=True):
            self._questions.append(Question(r, i, j, v, worth=int(worth[i, j]), owed=[i, j], begun=[]))

    def report(self) -> dict[str, Any]:
        seen, self._seen = self._seen, Seen()
        return {"time": self._time, "staleness": seen.report()}

    def facts(self) -> dict[str, Any]:
        return {
            "time": self._time,
            "rounds": self._rounds.tolist(),
            "blocks": self._blocks.tolist(),
            "queue": self._queue,
            "questions": [asdict(question) for question in self._questions],
            "made": self._made.tolist(),
            "heard": self._heard.tolist(),
            "looked_at": self._looked_at.tolist(),
            "flying": [copy[:3] for copy in self._flying],
            "known": self._known.tolist(),
            "finite": self._finite.tolist(),
            "seen": asdict(self._seen),
        }

    def tensors(self) -> dict[str, Tensor]:
        flying = [copy.row for copy in self._flying]
        known = torch.from_numpy(self._known).to(self._G.device)
        return {
            "copies": self._V,
            "flying": torch.stack(flying) if flying else self._V[:0],
            "gradients": self._G[known],
        }

    def restore(self, facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self._time = facts["time"]
        self._rounds, self._blocks, self._made, self._heard, self._looked_at = (
            np.array(facts[k]) for k in ("rounds", "blocks", "made", "heard", "looked_at")
        )
        self._queue = [(time, client) for time, client in facts["queue"]]
        self._questions = [Question(**question) for question in facts["questions"]]
        self._V = tensors["copies"].to(self._V)
        rows = tensors["flying"].to(self._V)
        self._flying = deque(
            Copy(time, client, round, row) for (time, client, round), row in zip(facts["flying"], rows, strict=True)
        )
        self._known, self._finite = np.array(facts["known"]), np.array(facts["finite"])
        self._G[torch.from_numpy(self._known).to(self._G.device)] = tensors["gradients"].to(self._G)
        self._seen = Seen(**facts["seen"])
