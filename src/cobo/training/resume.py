"""What a checkpoint of a run holds, and how a run goes back to one.

Everything that the rest of a run depends on: the rows, what the method, the optimiser and the engine remember, buffers,
who is present, and the settings, which must be the same when it goes on.
"""

import hashlib
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cobo.errors import CheckpointError
from cobo.methods import State
from cobo.training import checkpoint
from cobo.training.records import pack_weights, read_metrics, unpack_weights

if TYPE_CHECKING:
    from cobo.training.loop import Run

# Settings that change how or how often something is done, but not what comes out; and who takes part, which may be
# changed between two starts of a run.
FREE = {"device", "executor", "models_at_once", "evaluate_every", "roster"}


def save(run: "Run") -> None:
    """Write a checkpoint, if the run has a folder."""
    if run.folder is None:
        return
    state, federation = run.state, run.federation
    federation.complete_buffers()
    tensors = {"models": state.X}
    tensors |= {f"method/{name}": t for name, t in state.tensors.items()}
    tensors |= {f"buffers/{name}": t for name, t in federation.buffers.items()}
    tensors |= {f"engine/{name}": t for name, t in run.engine.tensors().items()}
    for name, value in state.optimizer.state.get(state.models, {}).items():
        if isinstance(value, Tensor):
            tensors[f"optimizer/{name}"] = value
    tensors |= run.members.tensors()
    common = _common(run)
    for name, tensor in tensors.items():
        shared = common(name)
        if shared is not None:
            tensors[name] = federation.whole(tensor, shared)
    computed, compared = run.ranks.total(federation.computed, federation.compared)
    facts = run.members.facts() | {
        "settings": _settings(run), "gradients": computed, "sent": state.sent,
        "comparisons": compared, "seconds": run.seconds(),
        "aside": sorted(state.aside), "engine": run.engine.facts(),
    }  # fmt: skip
    if run.records:
        if run.snapshots:
            packed = pack_weights(federation.everyone, run.snapshots)
            checkpoint.write_atomic(run.folder / "weights.safetensors", packed)
        checkpoint.write(run.folder / "checkpoint", state.round, checkpoint.Checkpoint(tensors, facts))
    run.tell(event="checkpoint", round=state.round)


def restore(run: "Run", folder: Path) -> bool:
    """Go back to the newest whole checkpoint, if there is one; what was recorded after it is dropped."""
    found: list[checkpoint.Checkpoint] = []  # by the first process
    facts = run.ranks.first(lambda: _read(run, folder, found))
    if facts is None:
        _keep_records(run, folder, -1)
        return False
    _check(run, folder, facts)
    run.state.round, run.state.sent, run.state.aside = facts["round"], facts["sent"], set(facts["aside"])
    tensors = run.federation.share_out(found[0].tensors if found else {}, _common(run))
    rooms: dict[str, dict[str, Tensor]] = {"method": {}, "optimizer": {}, "engine": {}}
    for name, tensor in tensors.items():
        room, _, leaf = name.partition("/")
        rooms.setdefault(room, {})[leaf] = tensor
    _put_back(run.state, tensors["models"], rooms)
    run.engine.restore(facts["engine"], rooms["engine"])
    if run.ranks.leads:  # what the others have done is counted in
        run.federation.computed, run.federation.compared = facts["gradients"], facts["comparisons"]
    run.members.restore(run.state, facts, tensors)  # who joins now is probed, which counts
    if run.schedule is not None:
        # Schedules of torch depend on how often they were stepped, so stepping again is the surest way back.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch would have the optimiser step in between
            for _ in range(run.state.round):
                run.schedule.step()
    run.seconds_before = facts["seconds"]
    _keep_records(run, folder, run.state.round)
    return True


def _put_back(state: State, models: Tensor, rooms: dict[str, dict[str, Tensor]]) -> None:
    state.models.data = models.to(state.X)
    state.gradient = torch.empty_like(state.X)
    state.tensors.update(rooms["method"])
    for name, tensor in rooms["optimizer"].items():
        state.optimizer.state[state.models][name] = tensor if name == "step" else tensor.to(state.X.device)


def _common(run: "Run") -> Callable[[str], int | None]:
    """How many rows of a tensor of a checkpoint, the last ones, are common to all clients; None if it is no rows.

    The others are the clients' own, one each.
    """

    def common(name: str) -> int | None:
        room, _, leaf = name.partition("/")
        rows = leaf in run.method.own if room == "method" else room in ("models", "optimizer") and leaf != "step"
        return run.method.common(run.state) if rows else None

    return common


def _read(run: "Run", folder: Path, found: list[checkpoint.Checkpoint]) -> dict[str, Any] | None:
    """The newest whole checkpoint, put into `found`; its facts."""
    newest = checkpoint.read_latest(
        folder / "checkpoint",
        lambda why: run.tell(event="warning", message=f"{why}; going on from the one before, or from the start"),
    )
    if newest is None:
        return None
    found.append(newest)
    return newest.facts


def _check(run: "Run", folder: Path, facts: dict[str, Any]) -> None:
    """Refuse what this run cannot go on from."""
    if "present" not in facts:
        raise CheckpointError(f"{folder} was written by an older version of cobo; start a new run")
    stored, given = facts["settings"], _settings(run)
    for key in {**stored, **given}:
        if stored.get(key) != given.get(key):
            raise CheckpointError(
                f"{folder} was run with {key} = {_short(stored.get(key))}, not {_short(given.get(key))}; "
                "resume it with the settings it was started with, or choose another folder"
            )
    clocks = run.training.clocks
    if clocks is not None and not clocks.blocking and facts["clients"] != run.federation.everyone:
        raise CheckpointError(
            f"{folder} does not wait for slow clients, so its clients, and their order, cannot change midway"
        )
    if run.federation.spread and facts["present"] != run.federation.names:
        raise CheckpointError(f"{folder} has other clients, which cannot change under torchrun; leave it out")


def _settings(run: "Run") -> dict[str, Any]:
    """What must be the same for a run to be gone on with: all that its numbers depend on."""
    training = {k: _named(v) for k, v in run.training.model_dump().items() if k not in FREE}
    clocks = training.pop("clocks") or {}
    if clocks.get("trace") is not None:
        clocks["trace"] = hashlib.sha256(Path(clocks["trace"]).read_bytes()).hexdigest()
    blueprint = run.federation.blueprint
    adapters = getattr(blueprint.module, "peft_config", {})
    return {
        "method": run.method.name,
        **{f"{run.method.name}.{k}": v for k, v in run.method.model_dump().items()},
        **training,
        **{f"clocks.{k}": v for k, v in clocks.items()},
        "parameters": {n: list(shape) for n, shape in zip(blueprint.names, blueprint.shapes, strict=True)},
        "what is not trained": blueprint.base,
        **{f"dropout of adapter {name}": config.lora_dropout for name, config in adapters.items()},
    }


def _keep_records(run: "Run", folder: Path, round: int) -> None:
    """Drop metrics and snapshots past `round`: they will be made again, the same."""
    metrics, weights = folder / "metrics.jsonl", folder / "weights.safetensors"

    def keep() -> list[dict[str, Any]]:
        lines = read_metrics(metrics) if metrics.exists() else []
        history = [line for line in lines if line["round"] <= round]
        checkpoint.write_atomic(metrics, "".join(json.dumps(x) + "\n" for x in history).encode())
        if weights.exists() and round >= 0:
            run.snapshots = [s for s in unpack_weights(weights, run.federation.everyone) if s[0] <= round]
        return history

    run.history = run.ranks.first(keep)


def _named(value: Any) -> Any:
    """A setting as a checkpoint can hold it: a function by its name."""
    return f"{value.__module__}.{getattr(value, '__qualname__', type(value).__name__)}" if callable(value) else value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
