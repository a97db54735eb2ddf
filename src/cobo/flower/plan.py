"""The settings of a run with Flower, the same for server and clients: Flower hands both the same `run-config`."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

from pydantic import Field, field_validator

from cobo.errors import ConfigError
from cobo.federation.client import check_names
from cobo.methods import METHODS, CoBo, FedAvg, Method
from cobo.training.settings import Training

CANNOT = {"roster", "clocks"}


class Plan(Training):
    """Settings of training, of the method, and of Flower.

    `clients` are the names of all who may take part; who connects under another name is refused. The run begins, and
    goes on after a stop, when `fewest` of them (by default all) are there; without, it gives up after `patience`
    seconds. A round waits at most `timeout` seconds for replies. Between two exchanges a client takes `local_steps`
    steps. A reply is refused if a vector in it is longer than `tolerance` times the longest that its client has sent.

    >>> Plan.of({"clients": "north, south", "method": "cobo", "cobo.rho": 0.3, "local-steps": 5}).method.rho
    0.3
    """

    clients: tuple[str, ...]
    chosen: Literal["cobo", "local", "fedavg", "ditto"] = "cobo"
    own: dict[str, Any] = Field(default_factory=dict)  # settings of the method
    local_steps: int = Field(default=1, ge=1)
    timeout: float = Field(default=600.0, gt=0)
    patience: float = Field(default=600.0, gt=0)
    fewest: int | None = Field(default=None, ge=1)
    tolerance: float = Field(default=10.0, ge=1)
    out: str = "runs/flower"
    resume: bool = False

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Plan":
        """From a run-config: keys may have dashes, METHOD.KEY are the method's, `clients` has commas."""
        table: dict[str, Any] = {"own": {}}
        chosen = str(config.get("method", "cobo"))
        for key, value in config.items():
            owner, dot, leaf = key.replace("-", "_").rpartition(".")
            if leaf in ("chosen", "own") or (dot and owner not in METHODS):
                raise ConfigError(f"run-config: {key} is not known; settings of methods are METHOD.KEY, as cobo.rho")
            if leaf == "clients" and isinstance(value, str):
                value = [name.strip() for name in value.split(",") if name.strip()]
            if not dot:
                table["chosen" if leaf == "method" else leaf] = value
            elif owner == chosen:
                table["own"][leaf] = value
        if "clients" not in table:
            raise ConfigError("run-config needs clients = 'NAME, NAME, ...': the names of all who may take part")
        return cls(**table)

    @field_validator("clients")
    @classmethod
    def _are_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        check_names(names)
        return names

    def check(self) -> None:
        """Refuse what cannot work over Flower."""
        method, cannot = self.method, "is not possible over Flower"
        if self.clocks is not None or self.roster.changes or self.roster.models:
            raise ConfigError(f"clocks and roster: simulated {cannot}; clients simply come and go")
        if self.buffers == "shared":
            raise ConfigError(f"buffers = 'shared' {cannot}: running statistics stay with the client; set 'local'")
        if isinstance(method, CoBo) and method.output == "uniform":
            raise ConfigError(f"cobo.output = 'uniform' {cannot}, as clients keep their last model; set 'last'")
        if isinstance(method, CoBo) and method.mixing == "coupled":
            raise ConfigError(f"cobo.mixing = 'coupled' {cannot}: a client cannot see the others' pull; set 'explicit'")
        if isinstance(method, FedAvg) and method.participation < 1:
            raise ConfigError(f"{method.name}.participation < 1 {cannot}: who does not answer is left out anyway")
        if self.fewest is not None and self.fewest > len(self.clients):
            raise ConfigError(f"fewest = {self.fewest} clients are more than the {len(self.clients)} there are")

    @cached_property
    def method(self) -> Method:
        kind = METHODS[self.chosen]
        steps = {"local_steps": self.local_steps} if issubclass(kind, FedAvg) else {}
        return kind(**{**steps, **self.own})

    @property
    def on_simplex(self) -> bool:
        return isinstance(self.method, CoBo) and self.method.domain == "simplex"

    def rate(self, round: int) -> dict[str, float]:
        """The optimiser's learning rate and momentum in a round, as the schedule has them."""
        return self._rates[round]

    @cached_property
    def _rates(self) -> list[dict[str, float]]:
        return self.rates()

    def same(self) -> dict[str, Any]:
        """What must not change when a run goes on: all that its numbers depend on."""
        free = {
            "out",
            "resume",
            "timeout",
            "patience",
            "fewest",
            "tolerance",
            "device",
            "executor",
            "models_at_once",
            "evaluate_every",
        }
        dumped = self.model_dump(mode="json", exclude=free | CANNOT)
        return {**dumped, "own": self.method.model_dump(mode="json")}
