"""Who takes part in a run, round by round: newcomers get a seat, leavers keep their model, nobody else notices."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cobo import engines
from cobo.errors import CheckpointError, ConfigError
from cobo.federation import Federation
from cobo.federation.samples import fingerprints
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
    engines.check(training.clocks, federation, method, training.optimizer, roster, training.rates)
    for name in roster.models:
        if not torch.isfinite(federation.blueprint.row(roster.model(name) or {}, name)).all():
            raise ConfigError(f"roster: the model of {name!r} has values that are not finite")
    for change in roster.changes:
        left_before = any(c.leave == change.join and c.round < change.round for c in roster.changes)
        if change.join and roster.start == "own" and change.join not in roster.models and not left_before:
            raise ConfigError(_bring_a_model(change.join))


class Membership:
    """Those who are present, the models of those who left, and what happened when."""

    def __init__(
        self, federation: Federation, method: Method, training: Training, folder: Path | None, tell: Callable[..., None]
    ) -> None:
        self._federation, self._method, self._training = federation, method, training
        self._roster, self._folder, self._tell = training.roster, folder, tell
        self.left: dict[str, dict[str, Tensor]] = {}  # the numbers of the model with which a client left
        self.changes: list[dict[str, Any]] = []
        clients = federation.clients if folder is not None else []
        self._data = fingerprints({c.name: c.train for c in clients})
        self._tests = fingerprints({c.name: c.test for c in clients})

    def update(self, state: State) -> None:
        """Before a round: let those leave and join whom the roster wants gone or present in it."""
        federation = self._federation
        wanted = self._roster.present(federation.everyone, state.round)
        if federation.names != wanted:
            since = dict(zip(federation.names, federation.since.tolist(), strict=True))
            self._change(state, since, wanted, federation.buffers_of)

    def _change(
        self,
        state: State,
        since: Mapping[str, int],
        wanted: Sequence[str],
        buffers_of: Callable[[str], dict[str, Tensor]],
    ) -> None:
        """From those present (and since when), whose rows are in `state`, to those who are wanted."""
        federation, blueprint, before = self._federation, self._federation.blueprint, list(since)
        rows = self._method.personal(state, federation)
        personal = rows if len(rows) == len(before) else rows[:1].expand(len(before), -1)  # the one that all share
        left = [name for name in before if name not in wanted]
        joined = [name for name in wanted if name not in before]
        for name in left:
            self.left[name] = blueprint.numbers(personal[before.index(name)], buffers_of(name))
            if self._folder is not None:
                write_model(self._folder, name, blueprint.own(self.left[name]))
        federation.attend(wanted, dict(since) | dict.fromkeys(joined, state.round))
        seats = [None if name in joined else before.index(name) for name in wanted]
        sound = [seat for seat in seats if seat is not None and seat not in state.aside]
        state.aside = {k for k, seat in enumerate(seats) if seat in state.aside}
        mean = personal[sound].mean(0) if sound else blueprint.start
        start = torch.stack([self._begin(k, seats, personal, mean) for k in range(len(seats))])
        self._method.seat(state, federation, seats, start, self._roster)
        for verb, names in (("left", left), ("joined", joined)):
            if names:
                self.changes.append({"round": state.round, verb: names})
                self._tell(event=verb, round=state.round, clients=names)

    def _begin(self, k: int, seats: list[int | None], personal: Tensor, mean: Tensor) -> Tensor:
        """What client k begins with [d] if it is new, as the roster says; its buffers too."""
        federation, blueprint, start = self._federation, self._federation.blueprint, self._roster.start
        seat, name = seats[k], federation.names[k]
        if seat is not None:
            return personal[seat]
        if start == "own":
            own = self._roster.model(name) or self.left.get(name)
            if own is None:
                raise ConfigError(_bring_a_model(name))
            federation.welcome(k, own)
            return blueprint.row(own, name)
        federation.welcome(k, blueprint.buffers)
        if start == "mean":
            federation.inherit(k, [seat is not None for seat in seats])
            return mean
        return blueprint.start

    # Checkpoints

    def tensors(self) -> dict[str, Tensor]:
        return {f"left/{name}/{key}": t for name, own in self.left.items() for key, t in own.items()}

    def facts(self) -> dict[str, Any]:
        federation = self._federation
        return {
            "clients": federation.everyone, "present": federation.names, "since": federation.since.tolist(),
            "changes": self.changes, "roster": self._roster.model_dump(mode="json"), "data": self._data,
            "tests": self._tests,
        }  # fmt: skip

    def restore(self, state: State, facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Go back to a checkpoint, and let those leave and join who are no longer, or newly, wanted now."""
        federation, clients, was = self._federation, facts["clients"], facts["present"]
        device = federation.device
        self.changes = facts["changes"]
        for key, tensor in tensors.items():
            if key.startswith("left/"):
                name, _, leaf = key.removeprefix("left/").partition("/")
                self.left.setdefault(name, {})[leaf] = tensor.to(device)
        wanted = self._roster.present(federation.everyone, state.round)
        self._refuse_too_late(state.round, clients, was, wanted)
        _refuse_others("training", facts["data"], self._data)
        _refuse_others("test", facts.get("tests", {}), self._tests)  # which earlier versions did not write
        known = [k for k, name in enumerate(clients) if name in federation.everyone]
        places = [federation.everyone.index(clients[k]) for k in known]
        for name, rows in federation.buffers.items():
            rows[places] = tensors[f"buffers/{name}"][known].to(device)

        def buffers_of(name: str) -> dict[str, Tensor]:
            return {b: tensors[f"buffers/{b}"][clients.index(name)].to(device) for b in federation.buffers}

        since = dict(zip(was, facts["since"], strict=True))
        if was == wanted or state.round == self._training.rounds:
            federation.attend(was, since)
        else:
            self._change(state, since, wanted, buffers_of)

    def _refuse_too_late(self, round: int, clients: list[str], was: list[str], wanted: list[str]) -> None:
        """What can no longer be done is refused before anything is."""
        everyone, coming = self._federation.everyone, set(wanted)
        for change in self._roster.changes:
            if change.round > round:
                coming.update(self._roster.present(everyone, change.round))
        if round == self._training.rounds:
            for verb, names in (("join", set(wanted) - set(was)), ("leave", set(was) - set(wanted))):
                if names:
                    raise CheckpointError(
                        f"this run is finished, so {min(names)!r} can no longer {verb}; start a new one"
                    )
        if not set(was) & set(everyone):
            raise CheckpointError("none of the clients of this run is among those given; start a new run")
        for name in everyone:
            if name not in coming and name not in was and name not in self.left:
                raise CheckpointError(
                    f"roster: {name!r} was to take part before round {round}, but the run got there without it; leave "
                    "it out"
                )
        if isinstance(self._method, CoBo) and self._method.output == "uniform" and clients != everyone:
            raise CheckpointError("output = 'uniform' gives the models of one round, so the clients cannot change")


def _refuse_others(kind: str, were: Mapping[str, str | None], are: Mapping[str, str | None]) -> None:
    """A client who is here again has the samples that it had."""
    for name, samples in were.items():
        if are.get(name, samples) != samples:
            raise CheckpointError(
                f"client {name!r} has other {kind} samples than when this run was started; give it the same, or "
                "another name"
            )


def _bring_a_model(name: str) -> str:
    return (
        f"roster: start = 'own', but {name!r} brings no model; name one in roster.models, or set start to 'mean' or "
        "'common'"
    )
