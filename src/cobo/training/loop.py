"""The loop: rounds of a method, evaluations, events, checkpoints, and an orderly stop."""

import json
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from cobo import draws
from cobo.collaboration import graph
from cobo.errors import CheckpointError, Interrupted, RunError
from cobo.federation import Federation
from cobo.methods import CoBo, Method, State
from cobo.training import checkpoint
from cobo.training.events import Event, Listener
from cobo.training.settings import Training


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
        method.check(federation, training.lr)
        self.federation, self.method, self.training, self.folder = federation, method, training, folder
        self._listeners = list(listeners)
        models = nn.Parameter(federation.start)
        optimizer = training.make_optimizer(models)
        self._schedule: LRScheduler | None = training.make_schedule(optimizer)
        self.state = State(models, optimizer, training.rounds, tensors=method.start(federation))
        self.history: list[dict[str, Any]] = []
        self.snapshots: list[tuple[int, NDArray[np.float32]]] = []
        self._seconds_before = 0.0
        self._begun = time.monotonic()
        self._drawn = self._draw_output()

    def go(self) -> None:
        """Train to the end. Ctrl-C writes a checkpoint and raises `Interrupted`."""
        self._begun = time.monotonic()
        chosen = self.federation.chosen
        self._tell(
            event="started", round=self.state.round, rounds=self.training.rounds, method=self.method.name,
            clients=self.federation.names, executor=chosen.executor.name, executor_reason=chosen.reason,
        )  # fmt: skip
        try:
            if self.state.round == 0 and not self.history:
                self._evaluate()
            with _graceful_interrupt() as interrupted:
                while self.state.round < self.training.rounds:
                    self._round()
                    if interrupted.is_set():
                        self._stop_early()
        except RunError as error:
            self._tell(event="failed", round=self.state.round, message=str(error))
            raise
        self._tell(event="finished", round=self.state.round, seconds=self._seconds())

    def _round(self) -> None:
        state = self.state
        aside = self.method.round(state, self.federation)
        if self._schedule is not None:
            self._schedule.step()
        state.round += 1
        if aside:
            self._tell(event="set aside", round=state.round, clients=aside)
        if state.round == self._drawn:
            state.tensors["output/models"] = state.X.clone()
            if state.weights is not None:
                state.tensors["output/weights"] = state.weights.clone()
        self._tell(event="round", round=state.round)
        if state.round % self.training.cadence == 0 or state.round == self.training.rounds:
            self._evaluate()
            self._save()

    @property
    def output(self) -> tuple[Tensor, Tensor | None]:
        """The models and weights that the method returns: the last ones, or those of the round drawn for output."""
        tensors = self.state.tensors
        if "output/models" in tensors:
            return tensors["output/models"], tensors.get("output/weights")
        return self.state.X, self.state.weights

    def _draw_output(self) -> int | None:
        if isinstance(self.method, CoBo) and self.method.output == "uniform":
            key = draws.key(self.federation.seed, "output")
            rounds = np.array(self.training.rounds, dtype=np.int64)
            return 1 + int(draws.integers(np.asarray(key), rounds, 1)[0])
        return None

    def _evaluate(self) -> None:
        state = self.state
        measured = self.federation.evaluate(state.X)
        W = None if state.weights is None else state.weights.numpy()
        before = self.snapshots[-1][1] if self.snapshots else None
        line: dict[str, Any] = {
            "round": state.round,
            "seconds": round(self._seconds(), 3),
            "gradients": self.federation.computed,
        }
        for name in ("accuracy", "loss"):
            values = [m[name] for m in measured if name in m]
            if values:
                line[name] = fmean(values)
        if W is not None:
            line["settled"] = graph.settled(W, before)
            self.snapshots.append((state.round, W.copy()))
        line["clients"] = dict(zip(self.federation.names, measured, strict=True))
        self.history.append(line)
        if self.folder is not None:
            with open(self.folder / "metrics.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        self._tell(event="evaluated", **line)

    def _seconds(self) -> float:
        return self._seconds_before + time.monotonic() - self._begun

    def _tell(self, **event: Any) -> None:
        told: Event = event
        for listener in self._listeners:
            listener(told)

    # Checkpoints

    def _save(self) -> None:
        if self.folder is None:
            return
        if self.snapshots:
            checkpoint.write_atomic(self.folder / "weights.safetensors", pack_weights(self.snapshots))
        state = self.state
        tensors = {"models": state.X}
        tensors |= {f"method/{name}": t for name, t in state.tensors.items()}
        tensors |= {f"buffers/{name}": t for name, t in self.federation.buffers.items()}
        kept: dict[str, Tensor] = {}
        for name, value in state.optimizer.state.get(state.models, {}).items():
            if isinstance(value, Tensor):
                kept[f"optimizer/{name}"] = value
        facts = {
            "names": self.federation.names, "method": self.method.name, "rounds": self.training.rounds,
            "gradients": self.federation.computed, "seconds": self._seconds(), "lr": state.lr,
            "schedule": None if self._schedule is None else _plain(self._schedule.state_dict()),
        }  # fmt: skip
        checkpoint.write(self.folder / "checkpoint", state.round, checkpoint.Checkpoint(tensors | kept, facts))
        self._tell(event="checkpoint", round=state.round)

    def restore(self) -> bool:
        """Go back to the newest whole checkpoint, if there is one; what was recorded after it is dropped."""
        assert self.folder is not None
        found = checkpoint.read_latest(
            self.folder / "checkpoint",
            lambda why: self._tell(event="warning", message=f"{why}; going on from an older one"),
        )
        if found is None:
            self._keep_records(-1)
            return False
        facts, state = found.facts, self.state
        if facts["names"] != self.federation.names or facts["method"] != self.method.name:
            raise CheckpointError(
                f"{self.folder} holds a run of {facts['method']!r} with {len(facts['names'])} other clients; "
                "resume it with the clients and method it was started with, or choose another folder"
            )
        parts = dict(found.tensors)
        if parts["models"].shape != state.X.shape:
            raise CheckpointError(
                f"{self.folder} holds models with {parts['models'].shape[1]} parameters, but the model given has "
                f"{state.X.shape[1]}; resume with the model it was started with"
            )
        state.X.copy_(parts.pop("models"))
        for name, tensor in parts.items():
            room, _, leaf = name.partition("/")
            if room == "method":
                state.tensors[leaf] = tensor
            elif room == "buffers":
                self.federation.buffers[leaf].copy_(tensor)
            else:
                state.optimizer.state[state.models][leaf] = tensor.to(state.X.device) if leaf != "step" else tensor
        state.round = facts["round"]
        state.optimizer.param_groups[0]["lr"] = facts["lr"]
        if self._schedule is not None and facts["schedule"] is not None:
            self._schedule.load_state_dict(facts["schedule"])
        self.federation.computed = facts["gradients"]
        self._seconds_before = facts["seconds"]
        self._keep_records(state.round)
        return True

    def _keep_records(self, round: int) -> None:
        """Drop metrics and snapshots past `round`: they will be made again, the same."""
        assert self.folder is not None
        metrics = self.folder / "metrics.jsonl"
        lines = read_metrics(metrics) if metrics.exists() else []
        self.history = [line for line in lines if line["round"] <= round]
        checkpoint.write_atomic(metrics, "".join(json.dumps(x) + "\n" for x in self.history).encode())
        weights = self.folder / "weights.safetensors"
        if weights.exists() and round >= 0:
            self.snapshots = [s for s in unpack_weights(weights) if s[0] <= round]

    def _stop_early(self) -> None:
        if self.state.round % self.training.cadence and self.state.round < self.training.rounds:
            self._save()
        self._tell(event="interrupted", round=self.state.round)
        raise Interrupted(f"stopped by the user after round {self.state.round} of {self.training.rounds}")


def pack_weights(snapshots: Sequence[tuple[int, NDArray[np.float32]]]) -> bytes:
    """W over time as safetensors: rounds [s], weights [s, n, n]."""
    rounds = torch.tensor([r for r, _ in snapshots])
    return save({"rounds": rounds, "weights": torch.from_numpy(np.stack([w for _, w in snapshots]))})


def unpack_weights(path: Path) -> list[tuple[int, NDArray[np.float32]]]:
    try:
        tensors = load(path.read_bytes())
        return list(zip(tensors["rounds"].tolist(), tensors["weights"].numpy(), strict=True))
    except (OSError, KeyError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}; delete it to go on without the history of W") from error


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a metrics file; a line torn by a kill is left out."""
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            break
    return lines


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in values.items() if isinstance(v, (int, float, str, bool, list, type(None)))}


@contextmanager
def _graceful_interrupt() -> Iterator[threading.Event]:
    """The first Ctrl-C asks to stop after the round; the second stops at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = signal.getsignal(signal.SIGINT)

    def ask(number: int, frame: Any) -> None:
        asked.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)
