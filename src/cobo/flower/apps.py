"""The two apps of a Flower project: `server_app(model)` and `client_app(client, model=...)`."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import nn

from cobo.compute.task import Loss, Objective, Task
from cobo.errors import CoboError
from cobo.federation import Client
from cobo.flower.link import GridLink, versions
from cobo.flower.party import Party
from cobo.flower.plan import Plan
from cobo.flower.records import pack, unpack
from cobo.flower.server import serve
from cobo.flower.wire import Hello, Order, Reply
from cobo.training.events import Event

Model = nn.Module | Callable[[], nn.Module]
LOG = logging.getLogger("flwr")


def server_app(model: Model) -> ServerApp:
    """The server: `model` is the same as the clients' (only its start and its size are used)."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            plan = Plan.of(context.run_config)
            serve(plan, model, lambda server, tell: GridLink(grid, plan, server.remote, tell), say)
        except CoboError as error:
            LOG.error("cobo: %s", error)
            raise

    return app


def client_app(
    client: Callable[[Context], Client],
    *,
    model: Model,
    loss: str | Loss = "cross_entropy",
    objective: Objective | None = None,
) -> ClientApp:
    """A client: `client(context)` loads its data and gives it a name; `context.node_config` is its SuperNode's own.

    Personal models are kept in the folder `state` of the node-config, or in ~/.local/state/cobo.
    """

    def party(context: Context) -> Party:
        plan = Plan.of(context.run_config)
        plan.check()
        return Party(client(context), model, Task(loss, objective), plan, state_folder(context))

    return answering(party)


def answering(party: Callable[[Context], Party]) -> ClientApp:
    """A ClientApp whose orders are answered by a party; it is made anew for every message, as processes are."""
    app = ClientApp()

    @app.query("hello")
    def hello(message: Message, context: Context) -> Message:
        return Message(_packed_hello(party, context), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        order = unpack(Order, message.content)
        try:
            reply = party(context).answer(order)
        except CoboError as error:
            reply = Reply("", order.run, order.round, problem=str(error))
        return Message(pack(reply), reply_to=message)

    return app


def _packed_hello(party: Callable[[Context], Party], context: Context) -> RecordDict:
    try:
        mine = party(context)
    except CoboError as error:
        return pack(Hello("", problem=str(error)))
    start = mine.federation.blueprint.start
    samples = int(mine.federation.samples[0])
    return pack(Hello(mine.name, **versions(), parameters=len(start), dtype=str(start.dtype), samples=samples))


def state_folder(context: Context) -> Path:
    usual = Path(os.environ.get("XDG_STATE_HOME", "~/.local/state")) / "cobo"
    return Path(str(context.node_config.get("state", usual))).expanduser()


def say(event: Event) -> None:
    """Events as lines of Flower's log."""
    told: dict[str, Any] = {k: v for k, v in event.items() if k != "event"}
    if event["event"] == "evaluated":
        told = {k: event[k] for k in ("round", "accuracy", "perplexity", "loss", "groups", "bytes") if k in event}
    if event["event"] != "round":
        level = logging.WARNING if event["event"] in ("refused", "left out", "warning", "failed") else logging.INFO
        LOG.log(level, "cobo %s: %s", event["event"], ", ".join(f"{k} {v}" for k, v in told.items()))
