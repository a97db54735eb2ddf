"""A client's side of a run: its data and its personal model stay on its own disk, in STATE/RUN/NAME/.

In round t a client has x^t, its model at the beginning of the round. It answers what it is asked at midpoints, takes
its own steps, with its own optimiser, from x^t to y^t, and keeps both. What the others' models add comes with the next
order, as it follows from everyone's answers of round t (`rules.py`):

    x^{t+1} = y^t + anchor - share * base,    base = x^t (explicit mixing) or y^t (implicit)

Checkpoints are those of any run: whole or not there, with checksums, the last two. An order says which round of this
client counted last, so that a reply that was lost, late or refused is as if it had not been.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cobo import draws
from cobo.compute.task import Task
from cobo.errors import DataError
from cobo.federation import Client, Federation
from cobo.federation.augment import AUGMENTATIONS
from cobo.flower.plan import Plan
from cobo.flower.wire import Order, Reply
from cobo.methods import CoBo, Ditto, FedAvg, State
from cobo.training import checkpoint

ME = np.zeros(1, dtype=np.int64)  # the position of the only client in its federation


class Alone(Federation):
    """The federation as a client has it at home: itself."""

    fewest = 1

    def at_midpoints(self, Z: Tensor, round: int, peers: draws.Keys, sides: list[int], batches: int | None) -> Tensor:
        """This client's gradients [p, d] at midpoints with peers; `Federation.gradients` says how they are drawn."""
        who, size = np.zeros(len(Z), dtype=np.int64), self.pair_batch(batches)
        keys = draws.combine(self._keys[who], round, peers, np.array(sides, dtype=np.int64))
        rows = torch.empty_like(Z)
        for chunk in self._train.chunks(who, size=size, most=self.models_at_once):
            rows[chunk] = torch.cat(self._ask(Z[chunk], who[chunk], keys[chunk], size), dim=1)
        self._count(who, self.cost(who, batches))
        return rows


class Party:
    """One client that answers orders. `folder` is its own: what it remembers of all runs."""

    def __init__(
        self, client: Client, model: nn.Module | Callable[[], nn.Module], task: Task, plan: Plan, folder: Path
    ) -> None:
        if client.name not in plan.clients:
            raise DataError(f"client {client.name!r} is not in this run's clients: {', '.join(plan.clients)}")
        self.name, self.plan, self._folder = client.name, plan, folder
        self.federation = Alone(
            [client], model, task=task, seed=plan.seed, batch_size=plan.batch_size, accumulate=plan.accumulate,
            augment=AUGMENTATIONS[plan.augment] if isinstance(plan.augment, str) else plan.augment,
            buffers=plan.buffers, precision=plan.precision, executor=plan.executor,
            models_at_once=plan.models_at_once, device=plan.device,
        )  # fmt: skip

    def answer(self, order: Order) -> Reply:
        """Do what the order asks for."""
        federation, method = self.federation, self.plan.method
        state = self._begin(order)
        if state is None:
            return Reply(self.name, order.run, order.round, lost=True)
        judged = state.X if order.shared is None or isinstance(method, Ditto) else self._row(order.shared)
        measured = federation.evaluate(judged)[0] if order.evaluate else {}
        if order.evaluate:
            numbers = federation.build(judged).numbers[self.name]
            checkpoint.write_model(self._place(order.run), self.name, federation.blueprint.own(numbers))
        reply: dict[str, Any] = {"measured": measured}
        if order.steps:
            before = state.X.clone()
            reply |= self._work(order, state)
            if not torch.isfinite(state.X).all():
                return Reply(self.name, order.run, order.round, problem="its gradient is not finite")
            self._keep(order, before, state)
        return Reply(self.name, order.run, order.round, gradients=federation.computed, **reply)

    def _work(self, order: Order, state: State) -> dict[str, Tensor]:
        """Own steps, in `state`, and what the server is told of them."""
        federation, method = self.federation, self.plan.method
        if isinstance(method, FedAvg):
            assert order.shared is not None
            w = self._row(order.shared)
            # Ditto's shared model is never used as such, so it moves nobody's running statistics.
            shared, finite = method.directions(state, federation, w, ME, track=not isinstance(method, Ditto))
            if isinstance(method, Ditto):
                mine, well = method.directions(state, federation, state.X, ME, pull=method.lam, anchor=w[0])
                state.descend(torch.where(well[:, None], mine, torch.nan))  # which `answer` finds
            return {"direction": torch.where(finite[:, None], shared, torch.nan)[0]}
        told: dict[str, Tensor] = {}
        if order.midpoints is not None:
            peers = np.array([int(key, 16) for key in order.peers], dtype=np.uint64)
            Z = order.midpoints.to(state.X)
            told["pairs"] = federation.at_midpoints(Z, order.round, peers, order.sides, method.batches)
        for step in range(order.steps):
            G = federation.gradients(state.X, round=order.round, step=step, last=step == order.steps - 1).rows
            state.descend(G)
        return {**told, "model": state.X[0]} if isinstance(method, CoBo) else told

    def _begin(self, order: Order) -> State | None:
        """The model at the beginning of the round, and what the optimiser remembers; None if it is not there."""
        found = None if order.start is not None else self._read(order.run, order.last)
        if order.start is None and found is None:
            return None
        kept = {} if found is None else found.tensors
        if order.start is not None:
            x = self._row(order.start)
        else:
            x = kept["after"].to(self.federation.device)
            if order.anchor is not None:
                base = kept["before"] if self._explicit else kept["after"]
                x = completed(x, base.to(x), order.anchor.to(x), order.share)
        models = nn.Parameter(x)
        state = State(models, self.plan.make_optimizer(models), self.plan.rounds, round=order.round)
        for name, tensor in kept.items():
            room, _, leaf = name.partition("/")
            if room == "optimizer":
                state.optimizer.state[models][leaf] = tensor.to(x.device) if leaf != "step" else tensor
            elif room == "buffers":
                self.federation.buffers[leaf] = tensor.to(x.device)
        if order.round < self.plan.rounds:
            state.optimizer.param_groups[0].update(self.plan.rate(order.round))
        return state

    @property
    def _explicit(self) -> bool:
        return not isinstance(self.plan.method, CoBo) or self.plan.method.mixing == "explicit"

    def _row(self, row: Tensor) -> Tensor:
        """[1, d]"""
        return row.to(self.federation.blueprint.start)[None]

    # What is on the disk

    def _place(self, run: str) -> Path:
        if not run.isalnum():  # it names a folder, and the server chose it
            raise DataError(f"run {run!r} is not allowed; it should be letters and digits")
        place = self._folder / run / self.name
        place.mkdir(parents=True, exist_ok=True)
        return place

    def _read(self, run: str, last: int) -> checkpoint.Checkpoint | None:
        """What was kept of round `last`; what came later did not count, and is removed."""
        folder = self._place(run) / "checkpoint"
        for later in [path for path in folder.glob("round-*") if int(path.name.removeprefix("round-")) > last]:
            shutil.rmtree(later)
        found = checkpoint.read_latest(folder, lambda why: None)
        return found if found is not None and found.facts["round"] == last else None

    def _keep(self, order: Order, before: Tensor, state: State) -> None:
        tensors = {"before": before, "after": state.X}
        tensors |= {f"buffers/{name}": rows for name, rows in self.federation.buffers.items()}
        for name, value in state.optimizer.state.get(state.models, {}).items():
            if isinstance(value, Tensor):
                tensors[f"optimizer/{name}"] = value
        folder = self._place(order.run) / "checkpoint"
        checkpoint.write(folder, order.round, checkpoint.Checkpoint(tensors, {"run": order.run, "client": self.name}))


def completed(after: Tensor, base: Tensor, anchor: Tensor, share: float) -> Tensor:
    """x^{t+1}, the same on the client's side and on the server's."""
    return after + anchor - share * base
