"""An experiment: settings in a TOML file, and a federation built from them."""

import tomllib
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from pydantic import Field
from torch import nn

from cobo.compute.task import Loss
from cobo.errors import ConfigError
from cobo.federation import Client
from cobo.methods import METHODS, Method
from cobo.training.settings import Training


class Parts(NamedTuple):
    """What `cobo.fit` needs: clients, a model, a loss."""

    clients: list[Client]
    model: Callable[[], nn.Module]
    loss: str | Loss


class Experiment(Training):
    """Settings of an experiment: those of training, its own, and a table for each method.

    A method's table may also hold settings of training (its own learning rate, say), and `preset = "paper"`.
    """

    what: ClassVar[str]

    experiment: str
    target_accuracy: float | None = Field(default=None, ge=0, le=100)
    threads: int | None = Field(default=None, ge=1)  # of torch; small models are faster, and better company, with one
    methods: dict[str, dict[str, Any]] = Field(default_factory=dict)

    @abstractmethod
    def build(self, seed: int) -> Parts:
        """The clients and the model; all that is random follows from the seed."""

    def method(self, name: str) -> Method:
        """A method with the settings that this experiment gives it."""
        if name not in METHODS:
            raise ConfigError(f"method {name!r} is not known; it should be one of {', '.join(METHODS)}")
        kind = METHODS[name]
        own = {k: v for k, v in self.methods.get(name, {}).items() if k not in Training.model_fields}
        preset = own.pop("preset", None)
        if preset is not None and preset not in kind.presets:
            known = ", ".join(kind.presets) or "none"
            raise ConfigError(f"{name}: preset = {preset!r} is not known; there is: {known}")
        return kind(**{**kind.presets.get(preset, {}), **own})

    def training(self, name: str, seed: int) -> dict[str, Any]:
        """The settings of training for one method and seed."""
        table = self.methods.get(name, {})
        own = {k: v for k, v in table.items() if k in Training.model_fields}
        return {**{k: getattr(self, k) for k in Training.model_fields}, **own, "seed": seed}

    def plain(self) -> dict[str, Any]:
        """The resolved settings as TOML can hold them: no seed, nothing unset."""
        return {k: v for k, v in self.model_dump(mode="json").items() if v is not None and k != "seed"}


def load_experiment(name: str, known: Mapping[str, type[Experiment]], changes: Sequence[str] = ()) -> Experiment:
    """An experiment by its name or by the path of a TOML file, with KEY=VALUE changes applied."""
    path = Path(name)
    if name in known:
        text = (files("cobo.experiments") / f"{name}.toml").read_text(encoding="utf-8")
    elif path.suffix == ".toml" and path.is_file():
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{name} cannot be read: {error}") from None
    else:
        raise ConfigError(f"experiment {name!r} is not known; it should be one of {', '.join(known)}, or a .toml file")
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name} is not valid TOML: {error}") from None
    kind = str(table.get("experiment"))
    if kind not in known:
        raise ConfigError(f"{name}: experiment = {kind!r} is not known; it should be one of {', '.join(known)}")
    for change in changes:
        override(table, change)
    experiment = known[kind](**table)
    for method in experiment.methods:
        experiment.method(method)
    return experiment


def override(table: dict[str, Any], change: str) -> None:
    """Apply KEY=VALUE to a table of settings; the value is read as TOML, METHOD.KEY reaches a method's table.

    >>> table = {"lr": 0.1, "methods": {"cobo": {"rho": 1.0}}}
    >>> override(table, "cobo.rho=2.5"); override(table, "lr=0.3"); table
    {'lr': 0.3, 'methods': {'cobo': {'rho': 2.5}}}
    """
    key, equals, text = change.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ConfigError(f"--set {change!r} is not allowed; it should be KEY=VALUE")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    owner, dot, leaf = key.partition(".")
    if key in ("seed", "experiment", "methods") or leaf == "seed":
        raise ConfigError(f"--set {change!r} is not allowed; the seed has --seed or --seeds, the experiment its name")
    if not dot:
        table[key] = value
    elif owner in METHODS:
        table.setdefault("methods", {}).setdefault(owner, {})[leaf] = value
    else:
        raise ConfigError(f"--set {change!r}: {owner!r} is not a method; known are {', '.join(METHODS)}")
