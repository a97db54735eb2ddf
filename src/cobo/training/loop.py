"""The loop: rounds of a method, evaluations, events, checkpoints, and an orderly stop."""

import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from cobo import draws
from cobo.collaboration import graph
from cobo.engines import Engine, join, make_engine
from cobo.errors import Interrupted, RunError
from cobo.federation import Federation
from cobo.methods import CoBo, Method, State
from cobo.training.events import Event, Listener
from cobo.training.membership import Membership, check
from cobo.training.records import append_synced
from cobo.training.resume import save
from cobo.training.settings import Training

MOST_SNAPSHOTS = 200


class Run:
    """One method on one federation with one seed, from its start or from its last checkpoint to its end."""

    def __init__(
        self,
        federation: Federation,
        method: Method,
        training: Training,
        *,
        folder: Path | None = None,
        listeners: Sequence[Listener] = (),
    ) -> None:
        check(federation, method, training)
        self.federation, self.method, self.training, self.folder = federation, method, training, folder
        self.tell = _teller(listeners)
        self.ranks = join()
        self.records = folder is not None and self.ranks.leads
        models = nn.Parameter(method.rows(federation))
        optimizer = training.make_optimizer(models)
        self.schedule: LRScheduler | None = training.make_schedule(optimizer)
        self.state = State(models, optimizer, training.rounds, tensors=method.start(federation))
        self.engine: Engine = make_engine(training.clocks, federation, method, training.rates)
        self.history: list[dict[str, Any]] = []
        self.snapshots: list[tuple[int, NDArray[np.float32]]] = []
        self.seconds_before = 0.0
        self._begun = time.monotonic()
        self._drawn = self._draw_output()
        self.members = Membership(federation, method, training, folder, self.tell)

    def go(self) -> None:
        """Train to the end. Ctrl-C writes a checkpoint and raises `Interrupted`."""
        self._begun = time.monotonic()
        chosen = self.federation.chosen
        self.tell(
            event="started", round=self.state.round, rounds=self.training.rounds, method=self.method.name,
            clients=self.federation.names, executor=chosen.executor.name, executor_reason=chosen.reason,
            run=self.facts,
        )  # fmt: skip
        costly = self.method.warning(self.federation, self.training.rounds)
        if costly is not None and self.state.round == 0:
            self.tell(event="warning", message=costly)
        for name, (train, test) in self.federation.unsound.items():
            if train or test:
                self.tell(event="warning", message=_not_finite(name, train, test))
        try:
            with _graceful_interrupt(twice=self.ranks.size > 1) as interrupted:
                if not self.history:
                    self._evaluate()
                stop = self.ranks.any(interrupted.is_set())
                while not stop and self.state.round < self.training.rounds:
                    self._round()
                    stop = self.ranks.any(interrupted.is_set())
                if stop:
                    self._stop_early()
        except RunError as error:
            self.tell(event="failed", round=self.state.round, message=str(error))
            raise
        self._warn_if_undecided()
        self.tell(event="finished", round=self.state.round, seconds=self.seconds())

    def _warn_if_undecided(self) -> None:
        """Weights on the box end at 0 or 1 when there was time enough."""
        W = self._known_weights
        if W is not None and isinstance(self.method, CoBo) and self.method.domain == "box":
            share = graph.undecided(W)
            if share > graph.UNDECIDED:
                message = (
                    f"W is undecided, {100 * share:.0f} % of pairs lie between 0.1 and 0.9; run again with more rounds "
                    "or larger questions (ask), beside Local to see what it is worth"
                )
                self.tell(event="warning", message=message)

    def _round(self) -> None:
        state = self.state
        self.members.update(state)
        aside = self.engine.round(state)
        if self.schedule is not None:
            self.schedule.step()
            self.method.check(self.federation, state.lr)
        state.round += 1
        if aside:
            self.tell(event="set aside", round=state.round, clients=aside)
        if state.round == self._drawn:
            self.federation.complete_buffers()
            state.tensors["output/models"] = state.X.clone()
            state.tensors["output/weights"] = state.tensors["weights"].clone()
            for name, rows in self.federation.buffers.items():
                state.tensors[f"output/buffers/{name}"] = rows.clone()
        self.tell(event="round", round=state.round)
        if state.round % self._snapshot_every == 0 and state.round < self.training.rounds:
            self._keep_weights()
        if state.round % self.training.cadence == 0 or state.round == self.training.rounds:
            self._evaluate()
            save(self)

    @property
    def personal(self) -> Tensor:
        """The clients' models as they are now."""
        return self.method.personal(self.state, self.federation)

    def take_output(self) -> None:
        """Make the models, weights and buffers those that the method returns, where that is not the last round's."""
        tensors = self.state.tensors
        if self.state.round == self.training.rounds and "output/models" in tensors:
            self.state.X.copy_(tensors["output/models"])
            tensors["weights"] = tensors["output/weights"].clone()
            for name, rows in self.federation.buffers.items():
                rows.copy_(tensors[f"output/buffers/{name}"])

    def _draw_output(self) -> int | None:
        """The round whose iterate is returned, if that is drawn and not simply the last."""
        if isinstance(self.method, CoBo) and self.method.output == "uniform":
            key = draws.key(self.federation.seed, "output")
            rounds = np.array(self.training.rounds, dtype=np.int64)
            return 1 + int(draws.integers(np.asarray(key), rounds, 1)[0])
        return None

    def _evaluate(self) -> None:
        state = self.state
        if state.round == self.training.rounds:
            self.take_output()
        measured = [
            {k: v if math.isfinite(v) else None for k, v in m.items()} for m in self.federation.evaluate(self.personal)
        ]
        line: dict[str, Any] = {"round": state.round, "seconds": round(self.seconds(), 3)}
        computed, compared = self.ranks.total(self.federation.computed, self.federation.compared)
        line["gradients"] = computed
        line["comparisons"] = compared
        line["bytes"] = state.sent * state.X.shape[1] * state.X.element_size()
        line |= self.engine.report()
        for name in ("accuracy", "perplexity", "loss"):
            values = [m[name] for m in measured if name in m]
            if values:
                line[name] = None if None in values else fmean(v for v in values if v is not None)
        W = self._known_weights
        if W is not None:
            names, everyone = self.federation.names, self.federation.everyone
            line["groups"] = int(graph.components(W, relative=self._on_simplex).max()) + 1
            tenth = state.round - max(1, self.training.rounds // 10)
            before = [w for t, w in self.snapshots if t <= tenth]
            line["settled"] = graph.settled(W, graph.among(names, everyone, before[-1]) if before else None)
            if state.round in (0, self.training.rounds):
                self._keep_weights()
        line["clients"] = dict(zip(self.federation.names, measured, strict=True))
        self.history.append(line)
        if self.folder is not None and self.records:
            append_synced(self.folder / "metrics.jsonl", json.dumps(line) + "\n")
        self.tell(event="evaluated", **line)
        if self.weights is not None:
            self.tell(event="weights", round=state.round, weights=self.weights)

    @property
    def facts(self) -> dict[str, Any]:
        """What the run is of: clients, their true groups where known, settings; as result.json has them."""
        training = {k: v for k, v in self.training.model_dump().items() if not callable(v)}
        return {
            "names": self.federation.everyone,
            "true_groups": [client.group for client in self.federation.clients],
            "method": {"name": self.method.name, **self.method.model_dump()},
            "training": training | {"roster": self.training.roster.model_dump(mode="json")},
        }

    @property
    def weights(self) -> NDArray[np.float32] | None:
        """W among everyone [N, N]: 0 with those who are not present."""
        W, federation = self._known_weights, self.federation
        return None if W is None else graph.among(federation.everyone, federation.names, W)

    @property
    def _known_weights(self) -> NDArray[np.float32] | None:
        """W among those present; 0 with who has never given a finite gradient, of whom W still is what it began with.

        The method's own W keeps what it began with, for when such a client comes to itself.
        """
        if self.state.weights is None:
            return None
        W = self.state.weights.numpy().copy()
        signals = self.state.tensors.get("signals")
        mute = [] if signals is None else [k for k in self.state.aside if not signals[k].any()]
        W[mute], W[:, mute] = 0, 0
        return W

    @property
    def _on_simplex(self) -> bool:
        return isinstance(self.method, CoBo) and self.method.domain == "simplex"

    def _keep_weights(self) -> None:
        """A snapshot of W; they are cheap, so there are more of them than evaluations."""
        if self.weights is not None:
            self.snapshots.append((self.state.round, self.weights))

    @property
    def _snapshot_every(self) -> int:
        return -(-self.training.rounds // MOST_SNAPSHOTS)

    def seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self._begun

    def _stop_early(self) -> NoReturn:
        if self.state.round % self.training.cadence:
            save(self)
        self.tell(event="interrupted", round=self.state.round)
        remedy = "give out= to be able to go on" if self.folder is None else f"go on with resume=True ({self.folder})"
        raise Interrupted(f"stopped by the user after round {self.state.round} of {self.training.rounds}; {remedy}")


def _not_finite(name: str, train: int, test: int) -> str:
    """What to do about so many samples with such values."""
    counts = {"training": train, "test": test}
    where = " and ".join(f"{k} {kind} sample{'s' * (k > 1)}" for kind, k in counts.items() if k)
    effect = "; rounds that draw one go on without this client" if train else ""
    return f"client {name!r} has values that are not finite in {where}: drop or fill them{effect}"


def _teller(listeners: Sequence[Listener]) -> Callable[..., None]:
    """Tells all listeners of an event. It holds no run: a cycle would keep models and samples until who knows when."""

    def tell(**event: Any) -> None:
        told: Event = event
        for listener in listeners:
            listener(told)

    return tell


@contextmanager
def _graceful_interrupt(*, twice: bool) -> Iterator[threading.Event]:
    """The first Ctrl-C asks to stop after the round; the second stops at once.

    Unless each comes `twice`, from the terminal and from torchrun, which ends by itself those who do not stop.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = signal.getsignal(signal.SIGINT)

    def ask(number: int, frame: Any) -> None:
        asked.set()
        if not twice:
            signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)
