"""What a run with Flower leaves behind on the server: the same files as any run, but for the models."""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cobo.collaboration import graph
from cobo.errors import CheckpointError
from cobo.flower.plan import Plan
from cobo.training import checkpoint
from cobo.training.environment import environment
from cobo.training.records import append_synced, listed, pack_weights, read_metrics, unpack_weights
from cobo.training.result import Result

MEASURES = ("accuracy", "perplexity", "loss")


class Journal:
    """History, W over time, and checkpoints, in a folder."""

    def __init__(self, plan: Plan, folder: Path, warn: Callable[[str], None]) -> None:
        self._plan, self.folder, self._warn = plan, folder, warn
        self.history: list[dict[str, Any]] = []
        self.snapshots: list[tuple[int, NDArray[np.float32]]] = []
        self.gradients, self.bytes = 0, 0
        self._before, self._begun = 0.0, time.monotonic()

    @property
    def seconds(self) -> float:
        return self._before + time.monotonic() - self._begun

    def measure(self, round: int, W: Tensor | None, measured: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
        """A line of metrics, of what clients have measured themselves; written before it is returned."""
        clients = {name: {k: float(m[k]) for k in MEASURES if k in m} for name, m in measured.items()}
        line: dict[str, Any] = {"round": round, "seconds": self.seconds, "gradients": self.gradients}
        line |= {"comparisons": 0, "bytes": self.bytes}
        for name in MEASURES:
            values = [m[name] for m in clients.values() if name in m]
            if values:
                line[name] = fmean(values)
        if W is not None:
            self.snapshots.append((round, W.numpy().copy()))
            line["groups"] = int(graph.components(W.numpy(), relative=self._plan.on_simplex).max()) + 1
            before = [w for t, w in self.snapshots if t <= round - max(1, self._plan.rounds // 10)]
            line["settled"] = graph.settled(W.numpy(), before[-1] if before else None)
        line["clients"] = clients
        self.history.append(line)
        append_synced(self.folder / "metrics.jsonl", json.dumps(line) + "\n")
        return line

    def save(self, round: int, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        if self.snapshots:
            packed = pack_weights(self._plan.clients, self.snapshots)
            checkpoint.write_atomic(self.folder / "weights.safetensors", packed)
        counted = {"gradients": self.gradients, "bytes": self.bytes, "seconds": self.seconds}
        whole = checkpoint.Checkpoint(tensors, {**facts, **counted, "settings": self._plan.same()})
        checkpoint.write(self.folder / "checkpoint", round, whole)

    def restore(self) -> checkpoint.Checkpoint | None:
        """The last whole checkpoint, if there is one; what was recorded after it is dropped, and will be made again."""
        found = checkpoint.read_latest(self.folder / "checkpoint", self._warn)
        round = -1 if found is None else found.facts["round"]
        metrics, weights = self.folder / "metrics.jsonl", self.folder / "weights.safetensors"
        lines = read_metrics(metrics) if metrics.exists() else []
        if found is None and any(line["round"] > 0 for line in lines):
            raise CheckpointError(f"{self.folder} has no checkpoint that can be read; choose another out to start anew")
        stored, given = found.facts["settings"] if found else {}, self._plan.same()
        for key in {**stored, **given} if found else ():
            if stored.get(key) != given.get(key):
                was, now = stored.get(key), given.get(key)
                raise CheckpointError(f"{self.folder} was run with {key} = {was!r}, not {now!r}; choose another out")
        self.history = [line for line in lines if line["round"] < round]
        checkpoint.write_atomic(metrics, "".join(json.dumps(line) + "\n" for line in self.history).encode())
        if found is None:
            return None
        if weights.exists():
            self.snapshots = [s for s in unpack_weights(weights, self._plan.clients) if s[0] < round]
        self.gradients, self.bytes = found.facts["gradients"], found.facts["bytes"]
        self._before = found.facts["seconds"]
        return found

    @property
    def facts(self) -> dict[str, Any]:
        """What the run is of, as result.json has it; `engine` says that it was with Flower."""
        names, method = list(self._plan.clients), self._plan.method
        training = self._plan.model_dump(mode="json", exclude={"own", "chosen", "out", "resume"})
        return {
            "names": names,
            "true_groups": [None] * len(names),
            "method": {"name": method.name, **method.model_dump()},
            "training": {**training, "engine": "flower"},
        }

    def result(self, W: Tensor | None, present: list[str]) -> Result:
        """For `cobo report` and `cobo show`; the models are with their clients."""
        return Result(
            **self.facts,
            models={},
            weights=None if W is None else W.numpy(),
            history=[listed(line, self._plan.clients) for line in self.history],
            present=present,
            snapshots=self.snapshots,
            environment=environment(),
        )
