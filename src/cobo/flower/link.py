"""The server's link to clients through Flower's grid: who is there, who they are, orders out and replies in."""

import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import TypeVar

import httpx
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

import cobo
from cobo.errors import Interrupted
from cobo.federation import Federation
from cobo.flower.plan import Plan
from cobo.flower.records import Said, pack, unpack, unreadable
from cobo.flower.wire import Hello, Order, Reply
from cobo.training.events import Listener

POLL, GREET, AGAIN = 0.2, 3.0, 30.0  # seconds between two looks for replies, for newcomers, for those refused before
Who = TypeVar("Who", str, int)
UNAVAILABLE = (3, 4, 5)  # Flower's codes for nodes and messages that are gone


class GridLink:
    """Nodes are known by the names of their clients, once they have said hello and are found to fit.

    Whoever can stop the run from outside of the ServerApp gives `stopped`, at which waiting for replies ends.
    """

    def __init__(
        self,
        grid: Grid,
        plan: Plan,
        federation: Federation,
        tell: Listener,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._grid, self._plan, self._tell, self._stopped = grid, plan, tell, stopped
        self._blueprint = federation.blueprint
        self._known: dict[int, Hello] = {}  # by node
        self._greeted: dict[str, int] = {}  # node by message, until it answers
        self._strangers: dict[int, tuple[float, str]] = {}  # nodes that could not take part: since when, and why

    def present(self) -> Mapping[str, Hello]:
        here = {node.node_id for node in self._grid.get_nodes()}
        self._known = {node: hello for node, hello in self._known.items() if node in here}
        self._strangers = {node: refused for node, refused in self._strangers.items() if node in here}
        return {hello.name: hello for hello in self._known.values()}

    def exchange(self, orders: Mapping[str, Order], timeout: float) -> dict[str, Reply | str]:
        end = time.monotonic() + (timeout if orders else min(timeout, 5.0))
        self._greet()
        greeted = time.monotonic()
        nodes = {hello.name: node for node, hello in self._known.items()}
        asked = {name: Message(pack(order), nodes[name], "train", ttl=timeout) for name, order in orders.items()}
        sent = self._push(asked)
        replies: dict[str, Reply | str] = {}
        while True:
            for question in [*sent, *self._greeted]:
                message = self._pull(question)
                if message is None:
                    continue
                if question in self._greeted:
                    self._meet(self._greeted.pop(question), _said(Hello, message))
                    continue
                name, said = sent.pop(question), _said(Reply, message)
                if said is not None:
                    replies[name] = said
            if (orders and not sent) or (not orders and not self._greeted) or time.monotonic() > end:
                break
            if self._stopped():
                raise Interrupted("stopped by the user")
            time.sleep(POLL)
            if time.monotonic() - greeted > GREET:
                self._greet()
                greeted = time.monotonic()
        if not orders:
            time.sleep(POLL)
        return replies

    def _push(self, messages: Mapping[Who, Message]) -> dict[str, Who]:
        """To whom each message went, by its id; Flower has an id only for those that it could take."""
        ids = self._grid.push_messages(list(messages.values())) if messages else []
        return {id: who for id, who in zip(ids, messages, strict=False) if id}

    def _pull(self, question: str) -> Message | str | None:
        """The reply, if it is there; or, in words, why it cannot be read.

        One at a time: of several, Flower gives none if one of them is not what it should be, and forgets them all.
        """
        try:
            came = self._grid.pull_messages([question])
            return next((message for message in came if message.metadata.reply_to_message_id == question), None)
        except httpx.HTTPError:  # it is the SuperLink that does not answer
            raise
        except Exception as error:
            return unreadable(error)

    def _greet(self) -> None:
        """Ask nodes that are new, or may have mended, who they are; they may answer in a later exchange."""
        refused = {node for node, (when, _) in self._strangers.items() if time.monotonic() < when + AGAIN}
        asked = {*self._known, *refused, *self._greeted.values()}
        new = [node.node_id for node in self._grid.get_nodes() if node.node_id not in asked]
        self._greeted |= self._push({n: Message(RecordDict(), n, "query.hello", ttl=self._plan.timeout) for n in new})

    def _meet(self, node: int, hello: Hello | str | None) -> None:
        if not isinstance(hello, Hello):
            if hello:
                self._refuse(node, f"node {node}", hello)
            return
        why = self._unfit(node, hello)
        if why:
            self._refuse(node, hello.name or f"node {node}", why)
        else:
            self._known[node] = hello
            self._strangers.pop(node, None)
            self._tell({"event": "connected", "client": hello.name, "node": str(node)})

    def _unfit(self, node: int, hello: Hello) -> str:
        mine = versions()
        registered = {n.node_id: n.name for n in self._grid.get_nodes()}
        start = self._blueprint.start
        if hello.problem:
            return hello.problem
        if {"cobo": hello.cobo, "flwr": hello.flwr} != mine:
            theirs, ours = f"cobo {hello.cobo} and flwr {hello.flwr}", f"cobo {mine['cobo']} and flwr {mine['flwr']}"
            return f"it has {theirs}, the server {ours}; install the same versions"
        if hello.name not in self._plan.clients:
            return f"it is not in clients = {', '.join(self._plan.clients)}"
        if any(registered.values()) and registered.get(node) != hello.name:
            return f"its key is registered as {registered.get(node)!r}, not as {hello.name!r}"
        if any(known.name == hello.name for known in self._known.values()):
            return "another node that is connected has this name"
        if (hello.parameters, hello.dtype) != (len(start), str(start.dtype)):
            return f"its model has {hello.parameters} parameters of {hello.dtype}, not {len(start)} of {start.dtype}"
        return "" if hello.samples > 0 else "it has no samples"

    def _refuse(self, node: int, who: str, why: str) -> None:
        known = self._strangers.get(node, (0.0, ""))[1]
        self._strangers[node] = (time.monotonic(), why)
        if why != known:
            self._tell({"event": "refused", "client": who, "message": why})


def _said(kind: type[Said], message: Message | str) -> Said | str | None:
    """What a message says or, in words, why nothing; None if its node is gone."""
    if isinstance(message, str):
        return message
    if message.has_error():
        gone = message.error.code in UNAVAILABLE
        return None if gone else f"its ClientApp failed: {_last_line(message.error.reason)}"
    try:
        return unpack(kind, message.content)
    except ValueError as error:
        return str(error)


def versions() -> dict[str, str]:
    return {"cobo": cobo.__version__, "flwr": version("flwr")}


def _last_line(text: str | None) -> str:
    lines = (text or "").strip().splitlines()
    return lines[-1][:200] if lines else "no reason given"
