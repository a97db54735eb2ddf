"""An experiment: settings in a TOML file, and a federation built from them."""

import tomllib
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from pydantic import Field, field_validator
from torch import nn

from cobo.compute.task import Loss
from cobo.config import Settings
from cobo.errors import ConfigError
from cobo.federation import Client
from cobo.methods import METHODS, Method
from cobo.training.settings import OWN, Training

APART = ("leave_out", "search")  # settings that no run depends on: what `all` means, and where `cobo tune` looks
TARGETS = ("target_accuracy", "target_perplexity")  # what runs are judged by, when they are over
TABLES = ("roster", "clocks")  # settings that have settings


class Range(Settings):
    """Between which values to search, on a log scale."""

    low: float
    high: float


class Parts(NamedTuple):
    """What `cobo.fit` needs: clients, a model, a loss."""

    clients: list[Client]
    model: Callable[[], nn.Module]
    loss: str | Loss


class Experiment(Training):
    """Settings of an experiment: those of training, its own, and a table for each method.

    A method's table may also hold the settings of training in `OWN`, and `preset = "paper"`.
    """

    what: ClassVar[str]
    members: ClassVar[tuple[str, ...]] = ("roster", "without")  # settings that say who takes part, and no more

    experiment: str
    target_accuracy: float | None = Field(default=None, ge=0, le=100)
    target_perplexity: float | None = Field(default=None, ge=1)
    threads: int | None = Field(default=None, ge=1)  # of torch; small models are faster, and better company, with one
    without: tuple[str, ...] = ()  # clients who take no part
    leave_out: tuple[str, ...] = ()  # methods that `all` does not mean: they cost much more, or cannot be run here
    methods: dict[str, dict[str, Any]] = Field(default_factory=dict)
    search: dict[str, dict[str, Range | list[Any]]] = Field(default_factory=dict)  # where `cobo tune` looks, by method

    @field_validator("search")
    @classmethod
    def _can_be_searched(cls, search: dict[str, dict[str, Range | list[Any]]]) -> dict[str, dict[str, Any]]:
        for method, ranges in search.items():
            if method not in METHODS:
                raise ValueError(f"tables of methods, of which {method!r} is none: {', '.join(METHODS)}")
            for name, values in ranges.items():
                field = {**Training.model_fields, **METHODS[method].model_fields}.get(name)
                if field is None or name in set(Training.model_fields) - set(OWN):
                    raise ValueError(f"tables of settings, of which {method} has no {name}")
                if values == []:
                    raise ValueError(f"lists of one value or more; {method}.{name} has none")
                if isinstance(values, Range) and not (field.annotation is float and 0 < values.low < values.high):
                    raise ValueError(f"lists or, for numbers above 0, {{low, high}}; {method}.{name} is not")
        return search

    @field_validator("leave_out")
    @classmethod
    def _are_methods(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not set(names) <= set(METHODS):
            raise ValueError(f"a list of methods, of which there are {', '.join(METHODS)}")
        return names

    def parts(self, seed: int, *, validation: float = 0.0) -> Parts:
        """What `build` gives, but for those clients who take no part."""
        parts = self.build(seed, validation=validation)
        names = [client.name for client in parts.clients]
        for name in self.without:
            if name not in names:
                raise ConfigError(f"without: there is no client {name!r}; there are: {', '.join(names)}")
        return parts._replace(clients=[client for client in parts.clients if client.name not in self.without])

    @abstractmethod
    def build(self, seed: int, *, validation: float = 0.0) -> Parts:
        """The clients and the model; all that is random follows from the seed.

        With `validation`, that share of the training samples (or what `judged_by` makes of it) judges the clients, none
        of which trains on it; test samples are not looked at.
        """

    def let_go(self) -> None:
        """Of what `build` keeps in this process from one time to the next."""

    def judged_by(self, share: float) -> float:
        """The share of the training samples that judges where a search asks for `share`."""
        return share

    def method(self, name: str) -> Method:
        """A method with the settings that this experiment gives it."""
        if name not in METHODS:
            raise ConfigError(f"method {name!r} is not known; it should be one of {', '.join(METHODS)}")
        kind = METHODS[name]
        shared = [k for k in self.methods.get(name, {}) if k in Training.model_fields and k not in OWN]
        if shared:
            raise ConfigError(
                f"{name}.{shared[0]} is not allowed; {shared[0]} is the same for all methods, of which each may have "
                f"its own {', '.join(OWN)}"
            )
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
        settings = self.model_dump(mode="json", exclude_none=True)
        roster = self.roster.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
        settings["roster"] = {key: value for key, value in roster.items() if value}
        unset = {key for key in ("roster", "without", "leave_out", "search") if not settings[key]}
        return {k: v for k, v in settings.items() if k not in {"seed", *unset}}

    def usual(self) -> dict[str, Any]:
        """The settings that this experiment has where none are given, in the same form."""
        return type(self)(experiment=self.experiment).plain()


def load_experiment(
    name: str, known: Mapping[str, type[Experiment]], changes: Sequence[str] = (), tuned: str | None = None
) -> Experiment:
    """An experiment by its name or by the path of a TOML file.

    With `tuned` (a file that `cobo tune` wrote, or "paper") the methods' tables are those of that file. KEY=VALUE
    `changes` come last, METHOD.preset=VALUE first among them.
    """
    if name in known:
        table = _read(files("cobo.experiments") / f"{name}.toml")
    elif Path(name).suffix == ".toml" and Path(name).is_file():
        table = _read(Path(name))
    else:
        missing = "is no file that is there" if Path(name).suffix == ".toml" else "is not known"
        raise ConfigError(f"experiment {name!r} {missing}; it should be one of {', '.join(known)}, or a .toml file")
    kind = str(table.get("experiment"))
    if "experiment" not in table:
        raise ConfigError(f"{name} does not say which experiment it is; add a line such as experiment = 'digits'")
    if kind not in known:
        raise ConfigError(f"{name}: experiment = {kind!r} is not known; it should be one of {', '.join(known)}")
    if tuned is not None:
        before, table["methods"] = table.get("methods", {}), _tuned(tuned, kind)
        if tuned == "paper":  # what belongs to the experiment is kept
            cobo = before.get("cobo", {})
            kept = {"ifca": before.get("ifca", {}), "cobo": cobo if cobo.get("preset") == "paper" else {}}
            for method, key in (("ifca", "participation"), ("cobo", "time_rate")):
                if key in kept[method]:
                    table["methods"][method][key] = kept[method][key]
    for change in sorted(changes, key=lambda change: not change.partition("=")[0].strip().endswith(".preset")):
        override(table, change)
    experiment = known[kind](**table)
    for method in experiment.methods:
        experiment.method(method)
    return experiment


def _tuned(name: str, experiment: str) -> dict[str, Any]:
    """The methods' tables of a tuned file, or the values that the paper's authors set by hand."""
    path = files("cobo.experiments") / "paper.toml" if name == "paper" else Path(name)
    if path.is_dir():
        path = path / "tuned.toml"
    if not path.is_file():
        raise ConfigError(f"--tuned {name!r} is not there; it should be a file that `cobo tune` wrote, or paper")
    table = _read(path)
    methods = table.get("methods")
    if not isinstance(methods, dict) or not all(isinstance(value, dict) for value in methods.values()):
        raise ConfigError(f"--tuned {name!r} has no [methods.NAME] tables; it should be a file that `cobo tune` wrote")
    if experiment not in table.get("experiments", [experiment]):
        raise ConfigError(
            f"--tuned {name!r} is for {', '.join(table['experiments'])}; {experiment!r} has the paper's values where "
            "it gives any"
        )
    if table.get("experiment", experiment) != experiment:
        raise ConfigError(f"--tuned {name!r} was tuned for {table['experiment']!r}, not for {experiment!r}")
    return methods


def _read(path: Path | Traversable) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def override(table: dict[str, Any], change: str) -> None:
    """Apply KEY=VALUE to a table of settings; the value is read as TOML.

    METHOD.KEY reaches a method's table, clocks.KEY and roster.KEY theirs. METHOD.preset=NAME takes that preset as it
    is: of the method's table only what belongs to training stays.

    >>> table = {"lr": 0.1, "methods": {"cobo": {"rho": 1.0, "lr": 0.2}}}
    >>> override(table, "cobo.rho=2.5"); override(table, "lr=0.3"); table
    {'lr': 0.3, 'methods': {'cobo': {'rho': 2.5}}}
    """
    key, equals, text = change.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ConfigError(f"--set {change!r} is not allowed; it should be KEY=VALUE")
    value = read_value(text, f"--set {change!r}")
    owner, dot, leaf = key.partition(".")
    if key in ("seed", "experiment", "methods") or leaf == "seed":
        raise ConfigError(f"--set {change!r} is not allowed; the seed has --seed or --seeds, the experiment its name")
    if not dot:
        table[key] = value
        if key in OWN:  # for every method, also those that have their own
            methods = _inside(table, "methods")
            for name in methods:
                _inside(methods, name).pop(key, None)
    elif owner in METHODS:
        own = _inside(_inside(table, "methods"), owner)
        if leaf == "preset":
            for name in own.keys() - OWN:
                del own[name]
        own[leaf] = value
    elif owner in TABLES:
        _inside(table, owner)[leaf] = value
    else:
        known = ", ".join([*METHODS, *TABLES])
        raise ConfigError(f"--set {change!r}: {owner!r} has no settings of its own; known are {known}")


def _inside(table: dict[str, Any], key: str) -> dict[str, Any]:
    """A table in a table, made if it is not there."""
    found = table.setdefault(key, {})
    if not isinstance(found, dict):
        raise ConfigError(f"{key} = {found!r} is not allowed; it should be a table of settings")
    return found


def read_value(text: str, where: str) -> Any:
    """A value as TOML; what is not TOML is a string, so that words need no quotes.

    >>> read_value("0.5", "here"), read_value("mixed", "here"), read_value("[1, 2]", "here")
    (0.5, 'mixed', [1, 2])
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError as error:
        if text.strip().startswith(("{", "[")):
            raise ConfigError(f"{where} is not valid TOML: {error}") from None
        return text.strip()
