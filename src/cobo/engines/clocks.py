"""Simulated time: how long each client takes for its work. Nobody really waits; time is only added up."""

import csv
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator
from scipy.special import ndtri

from cobo import draws
from cobo.config import Settings
from cobo.errors import ConfigError

Indices = NDArray[np.int64]


class Clocks(Settings):
    """How long clients take, and whether they wait for each other.

    `times`: all take `seconds` ("constant"); a factor exp(`spread` z), z standard normal, drawn once for each client
    ("log-normal"); `factor` times as long for the `stragglers`, or one that is drawn ("straggler"); or what a CSV
    file `trace` says, whose k-th row of a client is its k-th round, begun again when used up ("trace"). `jitter`
    is the standard deviation of a log-normal noise of every single round. A model takes `delay` to another client.

    `count` says what takes that time: a client's whole round, whatever is computed in it (its gradients are one
    batch), or each of its gradients. With `blocking = False` CoBo does not wait for anyone (`NonBlocking`), and:
    copies of peers that are more than `staleness` rounds behind do not pull; a copy that is behind at all pulls
    "once" or, until the next one comes, "always" (`copies`); and as pairs with a slow client are asked more rarely
    than the fast one steps, with `catch_up` an answer counts for all rounds gone by and not for one. (Defaults: what
    served best with a straggler on digits and Fashion-MNIST, docs/stragglers.md.)

    >>> Clocks(times="straggler", stragglers=["north"]).factor
    10.0
    """

    times: Literal["constant", "log-normal", "straggler", "trace"] = "constant"
    seconds: float = Field(default=1.0, ge=1e-9, le=1e9)
    spread: float = Field(default=0.5, ge=0, le=10)
    jitter: float = Field(default=0.0, ge=0, le=10)
    factor: float = Field(default=10.0, ge=1e-9, le=1e9)
    stragglers: list[str] = Field(default_factory=list)
    trace: str | None = None
    delay: float = Field(default=0.0, ge=0, le=1e9)
    count: Literal["rounds", "gradients"] = "rounds"
    blocking: bool = True
    staleness: int | None = Field(default=None, ge=0)
    catch_up: bool = True
    copies: Literal["once", "always"] = "once"

    @field_validator("trace", mode="before")
    @classmethod
    def _as_text(cls, trace: Any) -> Any:
        return os.path.abspath(trace) if isinstance(trace, (str, os.PathLike)) and os.fspath(trace) else trace

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.stragglers and self.times != "straggler":
            raise ValueError(f"stragglers have a meaning only with times = 'straggler', not {self.times!r}")
        if (self.trace is None) != (self.times != "trace"):
            raise ValueError("times = 'trace' and trace = the path of a CSV file need each other")
        if self.staleness is not None and self.blocking:
            raise ValueError("staleness has a meaning only with blocking = false; who waits sees no stale copies")
        return self


class Times:
    """The time of every client's k-th round, k = 0, 1, ...: a function of (seed, name, k)."""

    def __init__(self, clocks: Clocks, names: Sequence[str], seed: int) -> None:
        usual = np.full(len(names), clocks.seconds)
        if clocks.times == "log-normal":
            usual *= np.exp(clocks.spread * _normal(_keys(seed, "speed", names)))
        elif clocks.times == "straggler":
            usual[_stragglers(clocks, names, seed)] *= clocks.factor
        rows = [[t] for t in usual] if clocks.trace is None else read_trace(Path(clocks.trace), names)
        self._rows = [np.array(row) for row in rows]
        self._jitter, self._keys = clocks.jitter, _keys(seed, "jitter", names)

    def of(self, clients: Indices, k: Indices) -> NDArray[np.float64]:
        """The time of the k-th round of each of these clients."""
        times = np.array([self._rows[c][t % len(self._rows[c])] for c, t in zip(clients, k, strict=True)])
        if self._jitter:
            times = times * np.exp(self._jitter * _normal(draws.combine(self._keys[clients], k)))
        return times


def read_trace(path: Path, names: Sequence[str]) -> list[list[float]]:
    """The times in a CSV file with columns `client` and `seconds`, by client and in the order of its rows."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            table = csv.DictReader(file)
            if not {"client", "seconds"} <= set(table.fieldnames or ()):
                raise ConfigError(f"trace {path} should begin with the line: client,seconds")
            rows = [(table.line_num, row["client"], row["seconds"]) for row in table]
    except (OSError, ValueError, csv.Error) as error:
        raise ConfigError(f"trace {path} cannot be read: {error}") from None
    times: dict[str, list[float]] = {name: [] for name in names}
    for line, name, text in rows:
        if name not in times:
            raise ConfigError(f"trace {path}, line {line}: client {name!r} is not known")
        times[name].append(_seconds(text, f"trace {path}, line {line}"))
    missing = [name for name, values in times.items() if not values]
    if missing:
        raise ConfigError(f"trace {path} has no row for client {missing[0]!r}")
    return list(times.values())


def _seconds(text: str | None, where: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not 0 < value <= 1e9:
        raise ConfigError(f"{where}: seconds = {text!r} is not allowed; it should be a number greater than 0, to 1e9")
    return value


def _stragglers(clocks: Clocks, names: Sequence[str], seed: int) -> list[int]:
    unknown = [name for name in clocks.stragglers if name not in names]
    if unknown:
        raise ConfigError(f"stragglers: client {unknown[0]!r} is not known; there are {', '.join(names)}")
    if clocks.stragglers:
        return [names.index(name) for name in clocks.stragglers]
    return [int(draws.uniform(_keys(seed, "straggler", names), 1)[:, 0].argmin())]


def _keys(seed: int, purpose: str, names: Sequence[str]) -> draws.Keys:
    return np.array([draws.key(seed, purpose, name) for name in names])


def _normal(keys: draws.Keys) -> NDArray[np.float64]:
    """A standard normal number for every key."""
    drawn: NDArray[np.float64] = ndtri(draws.uniform(keys, 1)[:, 0] + 2.0**-54)  # never 0, whose quantile is infinite
    return drawn
