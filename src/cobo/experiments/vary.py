"""An ablation: the comparison repeated for each value of one setting.

A method on which the setting has no bearing (`cobo.rho` is nothing to Local) would do the same runs again: it is run
once, with the first value, and its runs count for all.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from cobo.errors import CheckpointError, ConfigError
from cobo.experiments.experiment import APART, TARGETS, Experiment, load_experiment, read_value
from cobo.experiments.job import Job, Watcher
from cobo.experiments.runner import Say, run_all

OPENING, CLOSING, QUOTES = "[{", "]}", "\"'"


class Value(NamedTuple):
    """A value of the setting, the experiment with it, and the folder of its runs."""

    value: Any
    text: str
    experiment: Experiment
    folder: Path


class Variation:
    """One setting, its values, and the methods that are compared at each."""

    def __init__(self, key: str, values: Sequence[Value], methods: Sequence[str]) -> None:
        self.key, self.values, self.methods = key, list(values), list(methods)
        if self.shared == self.methods:
            raise ConfigError(
                f"{key} is no setting of {', '.join(methods)}; choose --methods on which it has a bearing"
            )

    def home(self, value: Value, method: str) -> Value:
        """The first value with which this method does the same runs: they are in its folder."""
        settings = _settings(value.experiment, method)
        return next(other for other in self.values if _settings(other.experiment, method) == settings)

    @cached_property
    def shared(self) -> list[str]:
        """Methods that do the same runs with all values."""
        return [m for m in self.methods if all(self.home(value, m) is self.values[0] for value in self.values)]

    def jobs(self, seeds: Sequence[int]) -> list[Job]:
        """Every value has its first seed before any has its second."""
        leaf = self.key.rpartition(".")[2]
        return [
            Job(value.experiment, method, seed, value.folder,
                f"{method} seed {seed}" if method in self.shared else f"{leaf}={value.text} {method} seed {seed}")
            for seed in seeds
            for value in self.values
            for method in self.methods
            if self.home(value, method) is value
        ]  # fmt: skip

    def run(
        self, seeds: Sequence[int], *, resume: bool, watch: Watcher, at_once: int = 1, say: Say | None = None
    ) -> None:
        """Like `compare`: all is checked before anything runs, and what is finished is left as it is."""
        run_all(self.jobs(seeds), resume=resume, watch=watch, at_once=at_once, say=say)


def load_values(
    name: str,
    known: Mapping[str, type[Experiment]],
    setting: str,
    folder: Path,
    changes: Sequence[str] = (),
    tuned: str | None = None,
) -> tuple[str, list[Value]]:
    """The key of KEY=V1,V2,... and its values: experiments with that setting, each with a folder in `folder`."""
    key, texts = split(setting)
    values: list[Value] = []
    for text in texts:
        value = read_value(text, repr(setting))
        said = value if isinstance(value, str) else text
        experiment = load_experiment(name, known, [*changes, f"{key}={text}"], tuned)
        place = folder / safe(f"{key}={said}")
        for other in values:
            if experiment == other.experiment:
                raise ConfigError(f"{setting!r}: {said} is the same as {other.text}; give each value once")
            if place == other.folder:
                raise ConfigError(f"{setting!r}: {said} and {other.text} give one name for a folder, {place.name}")
        values.append(Value(value, said, experiment, place))
    return key, values


def stored(folder: Path, known: Mapping[str, type[Experiment]]) -> Variation | None:
    """The variation whose runs, and results.json, are in a folder; None if it holds none. Values begun are in it."""
    path = folder / "results.json"
    try:
        results = json.loads(path.read_text()) if path.is_file() else {}
    except ValueError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None
    if "varied" not in results:
        return None
    begun = [at for at in results["values"] if (folder / at["folder"] / "experiment.toml").is_file()]
    places = [folder / at["folder"] for at in begun]
    experiments = [load_experiment(str(place / "experiment.toml"), known) for place in places]
    values = [Value(at["value"], at["text"], *more) for at, *more in zip(begun, experiments, places, strict=True)]
    return Variation(results["varied"], values, list(dict.fromkeys(m for at in begun for m in at["methods"])))


def split(setting: str) -> tuple[str, list[str]]:
    """KEY=V1,V2,... at the commas that are not inside brackets or quotes.

    >>> split("hidden=[64],[64, 32]")
    ('hidden', ['[64]', '[64, 32]'])
    """
    key, equals, rest = setting.partition("=")
    texts, depth, quote = [""], 0, ""
    for letter in rest:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in QUOTES:
            quote = letter
        else:
            depth += (letter in OPENING) - (letter in CLOSING)
        if letter == "," and not depth and not quote:
            texts.append("")
        else:
            texts[-1] += letter
    texts = [text.strip() for text in texts]
    if not equals or not key.strip() or "" in texts or len(texts) < 2:
        raise ConfigError(f"{setting!r} is not allowed; it should be KEY=V1,V2,... with two values or more")
    return key.strip(), texts


def safe(name: str) -> str:
    """A name for a folder, on any system.

    >>> safe("hidden=[64, 32]")
    'hidden=_64,_32_'
    """
    return re.sub(r"[^\w.,=+-]", "_", name)[:120]


def _settings(experiment: Experiment, method: str) -> dict[str, Any]:
    """All that the runs of one method follow from."""
    settings = {k: v for k, v in experiment.plain().items() if k not in TARGETS and k not in APART}
    return {**settings, "methods": settings["methods"].get(method, {})}
