"""The server's side of each method: what clients are asked, and what becomes of their answers.

In process, a round of CoBo moves W at X^t and then takes a step with the new W: x - eta g - eta rho (L(W^{t+1}) X)_i.
Own gradients and pair gradients depend on X^t alone, so one exchange brings all of them. The pull, which needs W^{t+1},
is linear in X^t: the server works it out from the replies, counts it into its own copy of X, and sends it with
the next order, where the client counts it into its model (`party.py`). So one message per client and round carries
everything, and with one local step the run is that of one process.

With H local steps a client takes H steps of its own and then the pull of H rounds:

    X^{t+1} = Y^t + (M^H - I) X^t,   M = I - eta rho L     (explicit; implicit: (I + H eta rho L)^-1 Y^t)

Symbols: X [n, d] the server's copy of the models, Y [n, d] the replies, W [n, n].
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cobo import draws
from cobo.collaboration import mixing
from cobo.compute.blueprint import Blueprint
from cobo.compute.task import Task
from cobo.federation import Federation, Products
from cobo.flower.party import completed
from cobo.flower.plan import Plan
from cobo.flower.wire import Order, Reply
from cobo.methods import CoBo, FedAvg, State

Orders = dict[int, Order]


class Remote(Federation):
    """The federation as the server knows it: names, keys and numbers of samples, no data."""

    def __init__(self, plan: Plan, model: Any) -> None:
        self.everyone, self.clients = list(plan.clients), []
        self._held = np.arange(len(self.everyone))
        self.attend(self.everyone)
        self.seed, self.policy = plan.seed, plan.buffers
        self.batch_size = None if plan.batch_size is None else plan.accumulate * plan.batch_size
        self.device = torch.device("cpu")
        self.blueprint = Blueprint(model, Task(), seed=plan.seed, policy=plan.buffers, device=self.device)
        self.counted = np.ones(len(plan.clients), dtype=np.int64)
        for lr in {plan.rate(round)["lr"] for round in range(plan.rounds)}:
            plan.method.check(self, lr)

    @property
    def samples(self) -> Tensor:
        return torch.from_numpy(self.counted)


class Alone:
    """Local: clients are only told to go on; the server sees no model."""

    def __init__(self, plan: Plan, remote: Remote) -> None:
        self.plan, self.remote, self.method = plan, remote, plan.method
        models = nn.Parameter(self._rows())
        self.state = State(models, plan.make_optimizer(models), plan.rounds, tensors=self.method.start(remote))

    def _rows(self) -> Tensor:
        return self.remote.blueprint.start[None].clone()

    def start(self, client: int, others: Sequence[int]) -> Tensor:
        """What a client begins with, when `others` are there already; or with which it goes on, if it lost its own."""
        return self.state.X[0]

    def ask(self, orders: Orders) -> Orders:
        """The orders with what is to be done."""
        return orders

    def shapes(self, order: Order) -> dict[str, list[int]]:
        """Which vectors a reply should bring."""
        return {}

    def length(self, client: int, name: str, vectors: Tensor) -> float:
        """How far a vector of a reply reaches; the longest of several."""
        return float(torch.linalg.vector_norm(vectors.double(), dim=-1).max())

    def hear(self, orders: Orders, replies: Mapping[int, Reply]) -> None:
        """A round with the replies that were found good."""

    @property
    def weights(self) -> Tensor | None:
        return self.state.weights

    def tensors(self) -> dict[str, Tensor]:
        """All that is remembered."""
        kept = {f"optimizer/{k}": v for k, v in self.state.optimizer.state.get(self.state.models, {}).items()}
        return {"models": self.state.X} | {f"method/{k}": v for k, v in self.state.tensors.items()} | kept

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            room, _, leaf = name.partition("/")
            if room == "method":
                self.state.tensors[leaf] = tensor
            elif room == "optimizer":
                self.state.optimizer.state[self.state.models][leaf] = tensor
        self.state.models.data = tensors["models"]


class Shared(Alone):
    """FedAvg and Ditto: all have the shared model, and send where their steps from it lead; personal ones stay home."""

    method: FedAvg

    def ask(self, orders: Orders) -> Orders:
        return {i: replace(order, shared=self.state.X[0].clone()) for i, order in orders.items()}

    def shapes(self, order: Order) -> dict[str, list[int]]:
        return {"direction": [self.remote.blueprint.size]}

    def hear(self, orders: Orders, replies: Mapping[int, Reply]) -> None:
        who = np.array(sorted(replies), dtype=np.int64)
        D = torch.stack([_present(replies[i].direction) for i in who.tolist()])
        finite = torch.ones(len(who), dtype=torch.bool)
        self.state.descend(self.method.averaged(D, finite, self.remote, who))


class Mixed(Alone):
    """CoBo."""

    method: CoBo

    def __init__(self, plan: Plan, remote: Remote) -> None:
        super().__init__(plan, remote)
        self._anchors = torch.zeros_like(self.state.X)
        self._shares = torch.zeros(len(remote), dtype=torch.float64)
        self._pairs = np.empty((0, 2), dtype=np.int64)

    def _rows(self) -> Tensor:
        return self.remote.start

    def start(self, client: int, others: Sequence[int]) -> Tensor:
        """A newcomer begins at the mean of the others, where it drags nobody away."""
        if others:
            self.state.X[client] = self.state.X[list(others)].mean(0)
        return self.state.X[client]

    def ask(self, orders: Orders) -> Orders:
        state, names = self.state, self.remote.names
        drawn = self._pairs
        if state.round < state.rounds:
            drawn = self.method.draw(self.remote, state.tensors["weights"], state.round, state.rounds)
        self._pairs = drawn[np.isin(drawn, list(orders)).all(axis=1)]
        asked: Orders = {}
        for i, order in orders.items():
            if order.start is None and self._shares[i]:
                order = replace(order, anchor=self._anchors[i].clone(), share=float(self._shares[i]))
            rows, sides = self._of(i) if order.steps else ([], [])
            if rows:
                Z = torch.stack([torch.lerp(state.X[a], state.X[b], 0.5) for a, b in self._pairs[rows].tolist()])
                peers = [self._pairs[row, 2 - side] for row, side in zip(rows, sides, strict=True)]
                keys = [f"{int(draws.key(self.remote.seed, 'batch', names[j])):016x}" for j in peers]
                order = replace(order, midpoints=Z, peers=keys, sides=sides)
            asked[i] = order
        return asked

    def _of(self, client: int) -> tuple[list[int], list[int]]:
        """Which of the pairs a client is in, and whether it is first or second in each; in both, if with itself."""
        rows, columns = np.nonzero(self._pairs == client)
        return rows.tolist(), (columns + 1).tolist()

    def shapes(self, order: Order) -> dict[str, list[int]]:
        d = self.remote.blueprint.size
        return {"model": [d]} | ({} if order.midpoints is None else {"pairs": [len(order.midpoints), d]})

    def length(self, client: int, name: str, vectors: Tensor) -> float:
        return super().length(client, name, vectors - self.state.X[client] if name == "model" else vectors)

    def hear(self, orders: Orders, replies: Mapping[int, Reply]) -> None:
        state = self.state
        aside = torch.tensor([i not in replies for i in range(len(self.remote))])
        self.method.select(state, self.remote, self._products(replies), aside)
        present = (~aside).float()
        L = mixing.laplacian(state.tensors["weights"] * present * present[:, None], self.method.pull)
        strength = self.method.strength(state.lr, state.round, state.rounds)
        H, Y = self.plan.local_steps, state.X.clone()
        for i, reply in replies.items():
            Y[i] = _present(reply.model)
        if self.method.mixing == "explicit":
            M, base = torch.linalg.matrix_power(mixing.explicit(L, strength), H), state.X.clone()
        else:
            M, base = mixing.implicit(L, H * strength), Y
        pull = M.clone().fill_diagonal_(0).to(base) @ base
        for i in replies:
            self._anchors[i], self._shares[i] = pull[i], 1 - M[i, i]
            state.X[i] = completed(Y[i], base[i], pull[i], float(self._shares[i]))

    def _products(self, replies: Mapping[int, Reply]) -> Products:
        """Of pairs of which both have answered."""
        gradients: dict[tuple[int, int], Tensor] = {}  # by pair and side
        for i, reply in replies.items():
            for row, side, g in zip(*self._of(i), [] if reply.pairs is None else reply.pairs, strict=True):
                gradients[row, side] = g
        heard = [row for row in range(len(self._pairs)) if (row, 1) in gradients and (row, 2) in gradients]
        d = self.remote.blueprint.size
        first, second = (torch.stack([gradients[r, s] for r in heard]) if heard else torch.empty(0, d) for s in (1, 2))
        return Products(
            torch.from_numpy(self._pairs[heard]), torch.linalg.vecdot(first, second),
            torch.linalg.vector_norm(first, dim=1), torch.linalg.vector_norm(second, dim=1),
        )  # fmt: skip

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | {"pending/anchors": self._anchors, "pending/shares": self._shares}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        super().restore(tensors)
        self._anchors, self._shares = tensors["pending/anchors"], tensors["pending/shares"]


def make_rule(plan: Plan, remote: Remote) -> Alone:
    kind = Mixed if isinstance(plan.method, CoBo) else Shared if isinstance(plan.method, FedAvg) else Alone
    return kind(plan, remote)


def _present(vector: Tensor | None) -> Tensor:
    assert vector is not None  # the reply was checked
    return vector
