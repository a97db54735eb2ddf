"""Who takes part when: clients that join or leave at a round, by name."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_serializer, field_validator, model_validator
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from cobo.config import Settings
from cobo.errors import ConfigError


class Change(Settings):
    """One client joins or leaves: it takes part in rounds from `round` on, or in those before it.

    >>> Change(round=300, join="north").name
    'north'
    """

    round: int = Field(ge=1)
    join: str | None = None
    leave: str | None = None

    @model_validator(mode="after")
    def _says_one_thing(self) -> Self:
        if (self.join is None) == (self.leave is None):
            raise ValueError(f"the event of round {self.round} should say either join or leave, with a client's name")
        return self

    @property
    def name(self) -> str:
        return self.join or self.leave or ""

    @property
    def verb(self) -> str:
        return "joins" if self.join else "leaves"


class Roster(Settings):
    """The changes of a run, and how a newcomer begins.

    Whoever joins before it ever leaves is not there at first; all others are. A newcomer's weights are, by `weights`, 1
    to and from everyone, or what one probing round says: 1 with those whose gradients at the midpoint agree with its
    own, 0 with the others. Its model is, by `start`,

        common   the start that all clients had
        peers    the same, but after the probe the mean of those it is connected with; other methods than CoBo do
                 not know them, and begin at the common start
        mean     the mean of all who are present and stay
        own      the one in `models` (a module, a state_dict, the path of a safetensors file) or the one it left with

    >>> roster = Roster(changes=[{"round": 300, "join": "c"}, {"round": 500, "leave": "a"}])
    >>> [roster.present(["a", "b", "c"], round) for round in (0, 300, 500)]
    [['a', 'b'], ['a', 'b', 'c'], ['b', 'c']]
    """

    changes: tuple[Change, ...] = ()
    start: Literal["peers", "mean", "common", "own"] = "peers"
    weights: Literal["probe", "one"] = "probe"
    models: dict[str, Any] = Field(default_factory=dict)

    @field_validator("changes", mode="before")
    @classmethod
    def _is_a_list(cls, changes: Any) -> Any:
        if not isinstance(changes, (list, tuple)) or not all(isinstance(c, (dict, Change)) for c in changes):
            raise ValueError('a list such as [{round = 300, join = "north"}, {round = 500, leave = "south"}]')
        return changes

    @field_validator("models")
    @classmethod
    def _found_from_anywhere(cls, models: dict[str, Any]) -> dict[str, Any]:
        return {
            name: Path(given).absolute() if isinstance(given, (str, Path)) else given for name, given in models.items()
        }

    @model_validator(mode="after")
    def _probes_for_peers(self) -> Self:
        if self.start == "peers" and self.weights == "one":
            raise ValueError("start = 'peers' needs weights = 'probe'; or set start to 'mean', 'common' or 'own'")
        if self.models and self.start != "own":
            raise ValueError(f"models are used with start = 'own' only, not with {self.start!r}")
        return self

    @field_serializer("models", when_used="json")
    def _as_text(self, models: dict[str, Any]) -> dict[str, str]:
        return {k: str(v) if isinstance(v, (str, Path)) else f"a {type(v).__name__}" for k, v in models.items()}

    def present(self, everyone: Sequence[str], round: int) -> list[str]:
        """Those of `everyone` that take part in a round, in the same order."""
        there = self._at_first(everyone)
        for change in self._in_order():
            if change.round <= round:
                (there.add if change.join else there.discard)(change.name)
        return [name for name in everyone if name in there]

    def stages(self, everyone: Sequence[str], rounds: int) -> list[list[str]]:
        """Who is there at first and after every change; a roster that cannot be followed is refused."""
        known = set(everyone)
        for name in [*(change.name for change in self.changes), *self.models]:
            if name not in known:
                raise ConfigError(f"roster: there is no client {name!r}; there are: {_listed(everyone)}")
        there = self._at_first(everyone)
        listed: dict[str, Change] = {}
        for change in self.changes:
            before = listed.setdefault(change.name, change)
            if change.round < before.round:
                raise ConfigError(
                    f"roster: {change.name!r} {change.verb} at round {change.round}, before it {before.verb} at round "
                    f"{before.round}; list its changes in the order in which they happen"
                )
            listed[change.name] = change
        last: dict[str, int] = {}
        for change in self._in_order():
            name, verb = change.name, change.verb
            if change.round >= rounds:
                raise ConfigError(
                    f"roster: {name!r} {verb} at round {change.round}, but the run has only rounds 0 to {rounds - 1}"
                )
            if last.get(name) == change.round:
                raise ConfigError(f"roster: {name!r} changes twice at round {change.round}; keep one of the two")
            last[name] = change.round
            if change.join and name in there:
                raise ConfigError(f"roster: {name!r} joins at round {change.round}, but it is already there")
            if change.leave and name not in there:
                raise ConfigError(f"roster: {name!r} leaves at round {change.round}, but it is not there then")
            (there.add if change.join else there.discard)(name)
        stages = []
        for round in [0, *sorted({change.round for change in self.changes})]:
            stages.append(self.present(everyone, round))
            if not stages[-1]:
                raise ConfigError(f"roster: nobody is there from round {round} on; at least one client should be")
        return stages

    def model(self, name: str) -> Mapping[str, Tensor] | None:
        """The model that was given for a client, as a state_dict."""
        given = self.models.get(name)
        if given is None:
            return None
        if isinstance(given, nn.Module):
            return given.state_dict()
        if isinstance(given, Mapping):
            return given
        if not isinstance(given, (str, Path)):
            raise ConfigError(
                f"roster: the model of {name!r} is a {type(given).__name__}; it should be a module, a state_dict or "
                "the path of a safetensors file"
            )
        try:
            tensors: dict[str, Tensor] = load_file(given)
        except (OSError, SafetensorError) as error:
            raise ConfigError(
                f"roster: the model of {name!r}, {given}, cannot be read as safetensors: {error}"
            ) from None
        return tensors

    def _in_order(self) -> list[Change]:
        return sorted(self.changes, key=lambda change: change.round)

    def _at_first(self, everyone: Sequence[str]) -> set[str]:
        first: dict[str, bool] = {}
        for change in self._in_order():
            first.setdefault(change.name, change.join is not None)
        return {name for name in everyone if not first.get(name, False)}


def _listed(names: Sequence[str], most: int = 10) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")
