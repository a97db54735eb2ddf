"""The loop: rounds of a method, evaluations, events, checkpoints, and an orderly stop."""

import hashlib
import json
import math
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from cobo import draws
from cobo.collaboration import graph
from cobo.engines import Engine, join, make_engine
from cobo.errors import CheckpointError, Interrupted, RunError
from cobo.federation import Federation
from cobo.methods import CoBo, Method, State
from cobo.training import checkpoint
from cobo.training.events import Event, Listener
from cobo.training.membership import Membership, check
from cobo.training.records import append_synced, pack_weights, read_metrics, unpack_weights
from cobo.training.settings import Training

MOST_SNAPSHOTS = 200

# Settings that change how or how often something is done, but not what comes out; and who takes part, which may be
# changed between two starts of a run.
FREE = {"device", "executor", "models_at_once", "evaluate_every", "roster"}


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
        self._tell = _teller(listeners)
        self._ranks = join()
        self._records = folder is not None and self._ranks.leads
        models = nn.Parameter(method.rows(federation))
        optimizer = training.make_optimizer(models)
        self._schedule: LRScheduler | None = training.make_schedule(optimizer)
        self.state = State(models, optimizer, training.rounds, tensors=method.start(federation))
        self._engine: Engine = make_engine(training.clocks, federation, method, training.rates)
        self.history: list[dict[str, Any]] = []
        self.snapshots: list[tuple[int, NDArray[np.float32]]] = []
        self._seconds_before = 0.0
        self._begun = time.monotonic()
        self._drawn = self._draw_output()
        self.members = Membership(federation, method, training, folder, self._tell)

    def go(self) -> None:
        """Train to the end. Ctrl-C writes a checkpoint and raises `Interrupted`."""
        self._begun = time.monotonic()
        chosen = self.federation.chosen
        self._tell(
            event="started", round=self.state.round, rounds=self.training.rounds, method=self.method.name,
            clients=self.federation.names, executor=chosen.executor.name, executor_reason=chosen.reason,
            run=self.facts,
        )  # fmt: skip
        costly = self.method.warning(self.federation, self.training.rounds)
        if costly is not None and self.state.round == 0:
            self._tell(event="warning", message=costly)
        for name, (train, test) in self.federation.unsound.items():
            if train or test:
                self._tell(event="warning", message=_not_finite(name, train, test))
        try:
            with _graceful_interrupt(twice=self._ranks.size > 1) as interrupted:
                if not self.history:
                    self._evaluate()
                stop = self._ranks.any(interrupted.is_set())
                while not stop and self.state.round < self.training.rounds:
                    self._round()
                    stop = self._ranks.any(interrupted.is_set())
                if stop:
                    self._stop_early()
        except RunError as error:
            self._tell(event="failed", round=self.state.round, message=str(error))
            raise
        self._warn_if_undecided()
        self._tell(event="finished", round=self.state.round, seconds=self._seconds())

    def _warn_if_undecided(self) -> None:
        """Weights on the box end at 0 or 1 when there was time enough."""
        W = self._known_weights
        if W is not None and isinstance(self.method, CoBo) and self.method.domain == "box":
            share = graph.undecided(W)
            if share > graph.UNDECIDED:
                message = (
                    f"W is undecided, {100 * share:.0f} % of pairs lie between 0.1 and 0.9; run again with more rounds"
                )
                self._tell(event="warning", message=message)

    def _round(self) -> None:
        state = self.state
        self.members.update(state)
        aside = self._engine.round(state)
        if self._schedule is not None:
            self._schedule.step()
            self.method.check(self.federation, state.lr)
        state.round += 1
        if aside:
            self._tell(event="set aside", round=state.round, clients=aside)
        if state.round == self._drawn:
            self.federation.complete_buffers()
            state.tensors["output/models"] = state.X.clone()
            state.tensors["output/weights"] = state.tensors["weights"].clone()
            for name, rows in self.federation.buffers.items():
                state.tensors[f"output/buffers/{name}"] = rows.clone()
        self._tell(event="round", round=state.round)
        if state.round % self._snapshot_every == 0 and state.round < self.training.rounds:
            self._keep_weights()
        if state.round % self.training.cadence == 0 or state.round == self.training.rounds:
            self._evaluate()
            self._save()

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
        line: dict[str, Any] = {"round": state.round, "seconds": round(self._seconds(), 3)}
        computed, compared = self._ranks.total(self.federation.computed, self.federation.compared)
        line["gradients"] = computed
        line["comparisons"] = compared
        line["bytes"] = state.sent * state.X.shape[1] * state.X.element_size()
        line |= self._engine.report()
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
        if self.folder is not None and self._records:
            append_synced(self.folder / "metrics.jsonl", json.dumps(line) + "\n")
        self._tell(event="evaluated", **line)
        if self.weights is not None:
            self._tell(event="weights", round=state.round, weights=self.weights)

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

    def _seconds(self) -> float:
        return self._seconds_before + time.monotonic() - self._begun

    # Checkpoints

    def _save(self) -> None:
        if self.folder is None:
            return
        state, federation = self.state, self.federation
        federation.complete_buffers()
        tensors = {"models": state.X}
        tensors |= {f"method/{name}": t for name, t in state.tensors.items()}
        tensors |= {f"buffers/{name}": t for name, t in federation.buffers.items()}
        tensors |= {f"engine/{name}": t for name, t in self._engine.tensors().items()}
        for name, value in state.optimizer.state.get(state.models, {}).items():
            if isinstance(value, Tensor):
                tensors[f"optimizer/{name}"] = value
        tensors |= self.members.tensors()
        for name, tensor in tensors.items():
            common = self._common(name)
            if common is not None:
                tensors[name] = federation.whole(tensor, common)
        computed, compared = self._ranks.total(federation.computed, federation.compared)
        facts = self.members.facts() | {
            "settings": self._settings(), "gradients": computed, "sent": state.sent,
            "comparisons": compared, "seconds": self._seconds(),
            "aside": sorted(state.aside), "engine": self._engine.facts(),
        }  # fmt: skip
        if self._records:
            if self.snapshots:
                packed = pack_weights(federation.everyone, self.snapshots)
                checkpoint.write_atomic(self.folder / "weights.safetensors", packed)
            checkpoint.write(self.folder / "checkpoint", state.round, checkpoint.Checkpoint(tensors, facts))
        self._tell(event="checkpoint", round=state.round)

    def _common(self, name: str) -> int | None:
        """How many rows of a tensor of a checkpoint, the last ones, are common to all clients; None if it is no rows.

        The others are the clients' own, one each.
        """
        room, _, leaf = name.partition("/")
        rows = leaf in self.method.own if room == "method" else room in ("models", "optimizer") and leaf != "step"
        return self.method.common(self.state) if rows else None

    def restore(self) -> bool:
        """Go back to the newest whole checkpoint, if there is one; what was recorded after it is dropped."""
        found: list[checkpoint.Checkpoint] = []  # by the first process
        facts, state = self._ranks.first(lambda: self._read(found)), self.state
        if facts is None:
            self._keep_records(-1)
            return False
        if "present" not in facts:
            raise CheckpointError(f"{self.folder} was written by an older version of cobo; start a new run")
        self._compare(facts["settings"])
        clocks = self.training.clocks
        if clocks is not None and not clocks.blocking and facts["clients"] != self.federation.everyone:
            raise CheckpointError(
                f"{self.folder} does not wait for slow clients, so its clients, and their order, cannot change midway"
            )
        if self.federation.spread and facts["present"] != self.federation.names:
            raise CheckpointError(f"{self.folder} has other clients, which cannot change under torchrun; leave it out")
        state.round, state.sent, state.aside = facts["round"], facts["sent"], set(facts["aside"])
        tensors = self.federation.share_out(found[0].tensors if found else {}, self._common)
        parts = dict(tensors)
        state.models.data = parts.pop("models").to(state.X)
        state.gradient = torch.empty_like(state.X)
        engine = {name: parts.pop(name) for name in list(parts) if name.startswith("engine/")}
        self._engine.restore(facts["engine"], {name.removeprefix("engine/"): t for name, t in engine.items()})
        for name, tensor in parts.items():
            room, _, leaf = name.partition("/")
            if room == "method":
                state.tensors[leaf] = tensor
            elif room == "optimizer":
                state.optimizer.state[state.models][leaf] = tensor.to(state.X.device) if leaf != "step" else tensor
        if self._ranks.leads:  # what the others have done is counted in
            self.federation.computed, self.federation.compared = facts["gradients"], facts["comparisons"]
        self.members.restore(state, facts, tensors)  # who joins now is probed, which counts
        self._replay_schedule(state.round)
        self._seconds_before = facts["seconds"]
        self._keep_records(state.round)
        return True

    def _read(self, found: list[checkpoint.Checkpoint]) -> dict[str, Any] | None:
        """The newest whole checkpoint, put into `found`; its facts."""
        assert self.folder is not None
        newest = checkpoint.read_latest(
            self.folder / "checkpoint",
            lambda why: self._tell(event="warning", message=f"{why}; going on from the one before, or from the start"),
        )
        if newest is None:
            return None
        found.append(newest)
        return newest.facts

    def _settings(self) -> dict[str, Any]:
        """What must be the same for a run to be gone on with: all that its numbers depend on."""
        training = {k: _named(v) for k, v in self.training.model_dump().items() if k not in FREE}
        clocks = training.pop("clocks") or {}
        if clocks.get("trace") is not None:
            clocks["trace"] = hashlib.sha256(Path(clocks["trace"]).read_bytes()).hexdigest()
        blueprint = self.federation.blueprint
        adapters = getattr(blueprint.module, "peft_config", {})
        return {
            "method": self.method.name,
            **{f"{self.method.name}.{k}": v for k, v in self.method.model_dump().items()},
            **training,
            **{f"clocks.{k}": v for k, v in clocks.items()},
            "parameters": {n: list(shape) for n, shape in zip(blueprint.names, blueprint.shapes, strict=True)},
            "what is not trained": blueprint.base,
            **{f"dropout of adapter {name}": config.lora_dropout for name, config in adapters.items()},
        }

    def _compare(self, stored: dict[str, Any]) -> None:
        given = self._settings()
        for key in {**stored, **given}:
            if stored.get(key) != given.get(key):
                raise CheckpointError(
                    f"{self.folder} was run with {key} = {_short(stored.get(key))}, not {_short(given.get(key))}; "
                    "resume it with the settings it was started with, or choose another folder"
                )

    def _replay_schedule(self, rounds: int) -> None:
        """Schedules of torch depend on how often they were stepped, so stepping again is the surest way back."""
        if self._schedule is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch would have the optimiser step in between
                for _ in range(rounds):
                    self._schedule.step()

    def _keep_records(self, round: int) -> None:
        """Drop metrics and snapshots past `round`: they will be made again, the same."""
        assert self.folder is not None
        metrics, weights = self.folder / "metrics.jsonl", self.folder / "weights.safetensors"

        def keep() -> list[dict[str, Any]]:
            lines = read_metrics(metrics) if metrics.exists() else []
            history = [line for line in lines if line["round"] <= round]
            checkpoint.write_atomic(metrics, "".join(json.dumps(x) + "\n" for x in history).encode())
            if weights.exists() and round >= 0:
                self.snapshots = [s for s in unpack_weights(weights, self.federation.everyone) if s[0] <= round]
            return history

        self.history = self._ranks.first(keep)

    def _stop_early(self) -> NoReturn:
        if self.state.round % self.training.cadence:
            self._save()
        self._tell(event="interrupted", round=self.state.round)
        remedy = "give out= to be able to go on" if self.folder is None else f"go on with resume=True ({self.folder})"
        raise Interrupted(f"stopped by the user after round {self.state.round} of {self.training.rounds}; {remedy}")


def _not_finite(name: str, train: int, test: int) -> str:
    """What to do about so many samples with such values."""
    counts = {"training": train, "test": test}
    where = " and ".join(f"{k} {kind} sample{'s' * (k > 1)}" for kind, k in counts.items() if k)
    effect = "; rounds that draw one go on without this client" if train else ""
    return f"client {name!r} has values that are not finite in {where}: drop or fill them{effect}"


def _named(value: Any) -> Any:
    """A setting as a checkpoint can hold it: a function by its name."""
    return f"{value.__module__}.{getattr(value, '__qualname__', type(value).__name__)}" if callable(value) else value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


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
