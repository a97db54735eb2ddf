"""Where and when a run happens: in this process or in those of torchrun, at once or in simulated time."""

from collections.abc import Callable

from cobo.engines.clocks import Clocks, Times
from cobo.engines.engine import Engine, InProcess
from cobo.engines.nonblocking import NonBlocking
from cobo.engines.ranks import join
from cobo.engines.sharded import Sharded
from cobo.engines.waiting import Waiting
from cobo.errors import ConfigError
from cobo.federation import Federation, Roster
from cobo.methods import CoBo, Method

Rates = Callable[[], list[dict[str, float]]]


def check(
    clocks: Clocks | None, federation: Federation, method: Method, optimizer: str, roster: Roster, rates: Rates
) -> None:
    """Refuse, with a `ConfigError`, clocks that do not suit the clients, or CoBo's way to be run without waiting."""
    if federation.spread and (clocks is not None or roster.changes):
        what = "a roster" if clocks is None else "clocks"
        raise ConfigError(f"{what} cannot be had under torchrun: leave it out, or run without torchrun")
    if clocks is None:
        return
    Times(clocks, federation.everyone, federation.seed)
    if clocks.blocking or not isinstance(method, CoBo):
        return
    cannot = "clocks: blocking = false is not possible with"
    if method.mixing != "explicit":
        raise ConfigError(f"{cannot} cobo.mixing = {method.mixing!r}, which needs all models at once; set 'explicit'")
    if method.output == "uniform":
        raise ConfigError(f"{cannot} cobo.output = 'uniform', as clients are in different rounds; set 'last'")
    if optimizer == "adamw":
        raise ConfigError(f"{cannot} optimizer = 'adamw', whose step counter is one for all clients; set 'sgd'")
    if roster.changes:
        raise ConfigError(f"{cannot} a roster: clients are in different rounds; let them wait, or all stay")
    if federation.policy == "shared":
        raise ConfigError(f"{cannot} buffers = 'shared', which are averaged by all at once; set 'local' or 'none'")
    for lr in {rate["lr"] for rate in rates()}:
        method.check(federation, lr)


def make_engine(clocks: Clocks | None, federation: Federation, method: Method, rates: Rates) -> Engine:
    """The engine that clocks ask for: only CoBo need not wait. `rates` are the optimiser's settings in every round."""
    if clocks is None:
        return InProcess(federation, method)
    if clocks.blocking or not isinstance(method, CoBo):
        return Waiting(federation, method, clocks)
    return NonBlocking(federation, method, clocks, rates())


__all__ = ["Clocks", "Engine", "NonBlocking", "Sharded", "Waiting", "check", "join", "make_engine"]
