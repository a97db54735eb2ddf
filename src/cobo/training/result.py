"""What a run gives: models by name, who learned from whom, the history, the groups; saved without pickle."""

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from cobo.collaboration import graph
from cobo.compute.blueprint import checksum
from cobo.compute.on_demand import Models, Numbers
from cobo.errors import CheckpointError
from cobo.training.architecture import Description, rebuild
from cobo.training.checkpoint import made, packed, write_adapter, write_atomic, write_model
from cobo.training.records import pack_weights, unpack_weights

Snapshot = tuple[int, NDArray[np.float32]]


@dataclass(frozen=True, repr=False)
class Result:
    """The outcome of `cobo.fit`; rows and columns of `weights` are in the order of `names`.

    `names` are all clients. Those who left before the end have the model they left with, and weight 0 with everyone;
    `present` are the others; `changes` says who joined and left when. `models` is a read-only dict: a module is made
    when it is first asked for, and then kept.
    """

    names: list[str]
    models: Mapping[str, nn.Module]
    weights: NDArray[np.float32] | None
    history: list[dict[str, Any]]
    method: dict[str, Any]
    training: dict[str, Any]
    present: list[str]
    changes: list[dict[str, Any]] = field(default_factory=list)
    true_groups: list[str | int | None] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list, repr=False)
    states: dict[str, dict[str, Tensor]] = field(default_factory=dict, repr=False)
    shared: dict[str, Tensor] = field(default_factory=dict, repr=False)
    architecture: Description | None = field(default=None, repr=False)
    base: str | None = field(default=None, repr=False)  # a checksum of what was not trained
    environment: dict[str, Any] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        last = self.history[-1]
        score = next((name for name in ("accuracy", "perplexity") if last.get(name) is not None), "loss")
        value = "unknown" if last.get(score) is None else f"{last[score]:.4g}"
        W = self._weights_of_those_present if self.method.get("domain") == "box" else None
        doubt = ", W undecided" * (W is not None and graph.undecided(W) > graph.UNDECIDED)
        groups = "" if self.weights is None else f", groups {self.groups()}"
        return f"Result({self.method['name']}, round {last['round']}, {score} {value}{groups}{doubt})"

    def groups(self, threshold: float = 0.5) -> list[list[str]]:
        """The groups that W settles into: clients connected by pairs whose mean weight is at least `threshold`.

        So two clients may be in one group through others, with weight 0 between them. Without a graph (Local), everyone
        stands alone, as does who never gave a finite gradient. Clients who have left are in no group.
        """
        W = self._weights_of_those_present
        if W is None:
            return [[name] for name in self.present]
        labels = graph.components(W, threshold, relative=self.method.get("domain") == "simplex").tolist()
        return [[n for n, k in zip(self.present, labels, strict=True) if k == g] for g in dict.fromkeys(labels)]

    @property
    def _weights_of_those_present(self) -> NDArray[np.float32] | None:
        return None if self.weights is None else graph.among(self.present, self.names, self.weights)

    def save(self, folder: str | Path) -> None:
        """Write the result: JSON and safetensors. `cobo.load` gives it back. One that is in the folder is replaced.

        A model's file holds what is that client's own; what is not trained, a frozen base, is written once beside it.
        Of adapters on a language model, whose base is known by its name, there are the folders that peft reads instead.
        """
        folder = made(folder)
        for name, state in self.states.items():
            write_model(folder, name, state)
        adapted = self._write_adapters(folder)
        if self.shared and not adapted:
            write_atomic(folder / "shared.safetensors", packed(self.shared))
        else:
            (folder / "shared.safetensors").unlink(missing_ok=True)  # of a result that was there before
        if self.weights is not None:
            write_atomic(
                folder / "weights.safetensors", pack_weights(self.names, self.snapshots or [(-1, self.weights)])
            )
        else:
            (folder / "weights.safetensors").unlink(missing_ok=True)
        facts = {
            "names": self.names, "present": self.present, "changes": self.changes, "true_groups": self.true_groups,
            "method": self.method, "training": self.training, "architecture": self.architecture,
            "base": self.base, "environment": self.environment,
            "weights": None if self.weights is None else self.weights.tolist(), "history": self.history,
        }  # fmt: skip
        write_atomic(folder / "result.json", json.dumps(facts).encode())

    def _write_adapters(self, folder: Path) -> bool:
        """Adapters, if that is what the models are: whether they are."""
        for name in self.models:
            module = self.models.passing(name) if isinstance(self.models, Models) else self.models[name]
            if not hasattr(module, "peft_config"):
                return False
            write_adapter(folder, name, module)
        return len(self.models) > 0


def load_result(folder: str | Path, model: nn.Module | Callable[[], nn.Module] | None = None) -> Result:
    """A result that was saved.

    Models made of layers of torch.nn and cobo.models are rebuilt from the file; for a class of your own give `model`.
    Without either, `states` still holds every model's tensors.
    """
    folder = Path(folder)
    try:
        if not (folder / "result.json").exists():
            raise CheckpointError(f"{folder} holds no result; of a comparison each run has one, in METHOD/seed-K")
        facts = json.loads((folder / "result.json").read_text())
        if not (folder / "models").exists():
            raise CheckpointError(f"{folder} holds no models; of a run with Flower they are with the clients")
        states = {n: _tensors(folder / "models" / f"{n}.safetensors") for n in facts["names"]}
        rest = folder / "shared.safetensors"
        shared = _tensors(rest) if rest.exists() else {}
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{folder} holds no result that can be read: {error}") from error
    models: Mapping[str, nn.Module] = _NotRebuilt()
    if model is not None or facts["architecture"] is not None:
        template = _empty(model, facts["architecture"])
        for state in states.values():
            _fill(template, {**shared, **state}, folder)
        own = next(iter(states.values()))
        frozen = [name for name, _ in template.named_parameters() if name not in own]
        if hasattr(template, "peft_config") and facts.get("base") not in (None, checksum(template, frozen)):
            raise CheckpointError(
                f"the model given is not the one that {folder} was trained with: its base, dtype or alpha is another; "
                "give the same"
            )
        models = Models(states, _copies(template, own))
    weights = facts["weights"]
    path = folder / "weights.safetensors"
    return Result(
        names=facts["names"],
        models=models,
        weights=None if weights is None else np.array(weights, dtype=np.float32),
        history=facts["history"],
        method=facts["method"],
        training=facts["training"],
        present=facts.get("present", facts["names"]),
        changes=facts.get("changes", []),
        true_groups=facts["true_groups"],
        snapshots=unpack_weights(path, facts["names"]) if path.exists() else [],
        states=states,
        shared=shared,
        architecture=facts["architecture"],
        base=facts.get("base"),
        environment=facts.get("environment", {}),
    )


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except SafetensorError as error:
        raise CheckpointError(f"{path} is damaged: {error}; run again, or put a whole copy in its place") from error


def _empty(model: nn.Module | Callable[[], nn.Module] | None, architecture: Description | None) -> nn.Module:
    if isinstance(model, nn.Module):  # the base of adapters exists once
        once = [p for p in model.parameters() if not p.requires_grad] if hasattr(model, "peft_config") else []
        return copy.deepcopy(model, {id(p): p for p in once})
    return rebuild(architecture or {}) if model is None else model()


def _fill(module: nn.Module, state: dict[str, Tensor], folder: Path) -> None:
    base = module.state_dict() if hasattr(module, "peft_config") else {}  # of adapters it is not in the file
    try:
        module.load_state_dict({**base, **state})
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"the model given does not fit what is in {folder}: {reason}") from None


def _copies(template: nn.Module, own: Numbers) -> Callable[[Numbers], nn.Module]:
    """What makes a copy of the template with a client's own numbers; the base of adapters exists once."""
    tensors = (*template.named_parameters(), *template.named_buffers()) if hasattr(template, "peft_config") else ()
    once = {id(tensor): tensor for name, tensor in tensors if name not in own}

    def build(state: Numbers) -> nn.Module:
        module = copy.deepcopy(template, dict(once))
        module.load_state_dict(state, strict=False)  # that they fit was seen when they were read
        return module.eval()

    return build


class _NotRebuilt(dict[str, nn.Module]):
    """Says what to do when a model is asked for that could not be rebuilt."""

    def __missing__(self, name: str) -> nn.Module:
        raise CheckpointError(f"model {name!r} has a class of its own; give it again: cobo.load(folder, model=...)")
