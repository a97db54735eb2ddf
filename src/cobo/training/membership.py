"""Who takes part in a run, round by round: newcomers get a seat, leavers keep their model, nobody else notices."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cobo import engines
from cobo.errors import CheckpointError, ConfigError
from cobo.federation import Federation
from cobo.methods import CoBo, Method, State
from cobo.training.checkpoint import write_model
from cobo.training.settings import Training


def check(federation: Federation, method: Method, training: Training) -> None:
    """Refuse what cannot work for the clients, the method and the roster, before anything is done or written."""
    roster = training.roster
    for names in reversed(roster.stages(federation.everyone, training.rounds)):
        federation.attend(names)  # in the end, those who are there at first
        method.check(federation, training.lr)
    if roster.changes and isinstance(method, CoBo) and method.output == "uniform":
        raise ConfigError("output = 'uniform' gives the models of one round, so it cannot go with a roster")
    engines.check(training.clocks, federation, method, training.optimizer, roster)
    for name in roster.models:
        federation.blueprint.row(roster.model(name) or {}, name)
    for change in roster.changes:
        left_before = any(c.leave == change.join and c.round < change.round for c in roster.changes)
        if change.join and roster.start == "own" and change.join not in roster.models and not left_before:
            raise ConfigError(_bring_a_model(change.join))


class Membership:
    """Those who are present, those who left, and what happened when."""

    def __init__(
        self, federation: Federation, method: Method, training: Training, folder: Path | None, tell: Callable[..., None]
    ) -> None:
        self._federation, self._method, self._roster = federation, method, training.roster
        self._rounds, self._folder, self._tell = training.rounds, folder, tell
        self.left: dict[str, Tensor] = {}
        self.changes: list[dict[str, Any]] = []

    def update(self, state: State) -> None:
        """Before a round: let those leave and join whom the roster wants gone or present in it."""
        federation = self._federation
        before, wanted = federation.names, self._roster.present(federation.everyone, state.round)
        if before == wanted:
            return
        personal = self._method.personal(state, federation)
        left = [name for name in before if name not in wanted]
        joined = [name for name in wanted if name not in before]
        for name in left:
            own = federation.build_one(name, personal[before.index(name)])
            self._depart(name, personal[before.index(name)], federation.blueprint.own(own.state_dict()))
        since = dict(zip(before, federation.since.tolist(), strict=True)) | dict.fromkeys(joined, state.round)
        federation.attend(wanted, since)
        seats = [None if name in joined else before.index(name) for name in wanted]
        start = torch.stack([self._begin(k, seats, personal) for k in range(len(seats))])
        self._method.seat(state, federation, seats, start, self._roster)
        self._note(state.round, left=left, joined=joined)

    def _begin(self, k: int, seats: list[int | None], personal: Tensor) -> Tensor:
        """What client k begins with [d] if it is new, as the roster says; its buffers too."""
        federation, blueprint, start = self._federation, self._federation.blueprint, self._roster.start
        seat, name = seats[k], federation.names[k]
        if seat is not None:
            return personal[seat]
        if start == "own":
            given = self._roster.model(name)
            if given is not None:
                federation.welcome(k, given)
                return blueprint.row(given, name)
            if name not in self.left:
                raise ConfigError(_bring_a_model(name))
            return self.left[name]  # its buffers are still there
        if start == "mean":
            federation.inherit(k, torch.tensor([seat is not None for seat in seats]))
            return personal.mean(0)
        federation.welcome(k, blueprint.buffers)
        return blueprint.start

    def _depart(self, name: str, model: Tensor, own: dict[str, Tensor]) -> None:
        """What a leaver has learned stays, with the run and as a file."""
        self.left[name] = model.clone()
        if self._folder is not None:
            write_model(self._folder, name, own)

    def _note(self, round: int, **happened: list[str]) -> None:
        for verb, names in happened.items():
            if names:
                self.changes.append({"round": round, verb: names})
                self._tell(event=verb, round=round, clients=names)

    # Checkpoints

    def tensors(self) -> dict[str, Tensor]:
        return {f"left/{name}": model for name, model in self.left.items()}

    def facts(self) -> dict[str, Any]:
        federation = self._federation
        return {
            "clients": federation.everyone, "present": federation.names, "since": federation.since.tolist(),
            "changes": self.changes, "roster": self._roster.model_dump(mode="json"),
        }  # fmt: skip

    def restore(self, state: State, facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Go back to a checkpoint; those of its clients that are no longer given have left in between."""
        federation, was = self._federation, facts["present"]
        self.left = {n.removeprefix("left/"): t.to(state.X) for n, t in tensors.items() if n.startswith("left/")}
        self.changes = facts["changes"]
        present = [name for name in was if name in federation.everyone]
        if not present:
            raise CheckpointError("none of the clients of this run is among those given; start a new run")
        known = [k for k, name in enumerate(facts["clients"]) if name in federation.everyone]
        places = [federation.everyone.index(facts["clients"][k]) for k in known]
        for name, rows in federation.buffers.items():
            rows[places] = tensors[f"buffers/{name}"][known].to(rows.device)
        federation.attend(present, dict(zip(was, facts["since"], strict=True)))
        gone = [name for name in was if name not in present]
        if gone:
            personal = self._method.personal(state, federation)
            for name in gone:
                model = personal[was.index(name) if len(personal) == len(was) else 0]  # the one that all share
                place = facts["clients"].index(name)
                buffers = {b: tensors[f"buffers/{b}"][place].to(state.X.device) for b in federation.buffers}
                built = federation.blueprint.build(model, buffers)
                self._depart(name, model, federation.blueprint.own(built.state_dict()))
            self._method.seat(state, federation, [was.index(name) for name in present], personal, self._roster)
            self._note(state.round, left=gone)
        if state.round == self._rounds:
            wanted = self._roster.present(federation.everyone, state.round)
            late = [name for name in wanted if name not in present]
            if late or gone:
                verb, name = ("leave", gone[0]) if gone else ("join", late[0])
                raise CheckpointError(f"this run is finished, so {name!r} can no longer {verb}; start a new one")


def _bring_a_model(name: str) -> str:
    return (
        f"roster: start = 'own', but {name!r} brings no model; name one in roster.models, or set start to 'mean' or "
        "'common'"
    )
