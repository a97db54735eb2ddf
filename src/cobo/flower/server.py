"""The server's rounds, whatever carries the messages: orders out, replies in, checked; then a checkpoint."""

import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from cobo.errors import CoboError, ConfigError, RunError
from cobo.flower.checks import Checks, impossible
from cobo.flower.journal import Journal
from cobo.flower.plan import Plan
from cobo.flower.rules import Orders, Remote, make_rule
from cobo.flower.wire import TENSORS, Hello, Order, Reply
from cobo.training.checkpoint import sweep
from cobo.training.events import EventLog, Listener
from cobo.training.fit import refuse_overwriting
from cobo.training.lock import only_one
from cobo.training.result import Result


class Link(Protocol):
    """Carries messages to clients and back."""

    def present(self) -> Mapping[str, Hello]:
        """Those who are there and have introduced themselves, by name."""

    def exchange(self, orders: Mapping[str, Order], timeout: float) -> dict[str, Reply | str]:
        """Replies by name or, in words, why there is none; nothing of who did not answer in time. Greets newcomers."""


class Server:
    """One run; `tell` hears its events."""

    def __init__(self, plan: Plan, model: nn.Module | Callable[[], nn.Module], folder: Path, tell: Listener) -> None:
        plan.check()
        self.plan, self._tell = plan, tell
        self.remote = Remote(plan, model)
        self.rule = make_rule(plan, self.remote)
        self.run = uuid.uuid4().hex
        self.last = dict.fromkeys(plan.clients, -1)  # the round of each client that counted last
        self.since: dict[str, int] = {}  # who has taken part, from which round on
        self.lost: set[str] = set()  # who needs a model to go on with
        self._waited_for: list[str] = []  # while W rests
        self.checks = Checks(self.rule, self.remote.names, plan.tolerance)
        self.journal = Journal(plan, folder, lambda why: tell({"event": "warning", "message": why}))

    @property
    def round(self) -> int:
        return self.rule.state.round

    def restore(self) -> None:
        found = self.journal.restore()
        if found is None:
            return
        facts = found.facts
        self.run, self.last, self.since = facts["run"], facts["last"], facts["since"]
        self.lost, self.checks.longest = set(facts["lost"]), facts["longest"]
        self.remote.counted[:] = facts["samples"]
        self.remote.since[:] = [self.since.get(name, 0) for name in self.remote.names]
        self.rule.restore(found.tensors)
        self.rule.state.round = facts["round"]

    def go(self, link: Link) -> None:
        """All rounds, and one exchange more, in which clients get the last pull and are judged."""
        plan, needed = self.plan, self.plan.fewest or len(self.plan.clients)
        self._tell({"event": "started", "round": self.round, "rounds": plan.rounds, "method": plan.method.name,
                    "clients": list(plan.clients), "executor": "flower", "id": self.run,
                    "run": self.journal.facts})  # fmt: skip
        heard = time.monotonic()
        while self.round <= plan.rounds:
            present = link.present()
            here = [name for name in plan.clients if name in present]
            if len(here) >= needed:
                orders = self._orders(present, here)
                replies = link.exchange({self.remote.names[i]: o for i, o in orders.items()}, plan.timeout)
                if self._take(orders, replies, here):
                    heard, needed = time.monotonic(), 1
                    continue
            elif time.monotonic() - heard < plan.patience:
                link.exchange({}, plan.timeout)
            if time.monotonic() - heard >= plan.patience:
                raise RunError(self._nobody(here, needed))
        self.result.save(self.journal.folder)
        self._tell({"event": "finished", "round": plan.rounds, "seconds": self.journal.seconds})

    @property
    def result(self) -> Result:
        """All but the models, which are with their clients."""
        return self.journal.result(self.rule.weights, [name for name in self.plan.clients if name in self.since])

    def _nobody(self, here: list[str], needed: int) -> str:
        after = f"after {self.plan.patience:g} s (patience)"
        if len(here) >= needed:
            return f"round {self.round}: no reply that can be used {after}; events.jsonl says why for each client"
        missing = ", ".join(name for name in self.plan.clients if name not in here)
        there = ", ".join(here) or "none"
        return (
            f"{needed} clients are needed, connected are {there} {after}; start the SuperNodes of {missing}, whose "
            "client names must be those in run-config, or set fewest"
        )

    def _orders(self, present: Mapping[str, Hello], here: list[str]) -> Orders:
        plan, names, round = self.plan, self.remote.names, self.round
        last = round == plan.rounds
        begun = [names.index(name) for name in self.since]
        orders: Orders = {}
        for name in here:
            i = names.index(name)
            if last and name not in self.since:
                continue
            start = None
            if name not in self.since:
                self.remote.since[i] = round
                start = self.rule.start(i, begun)
            elif name in self.lost:
                start = self.rule.start(i, [])
            self.remote.counted[i] = present[name].samples
            orders[i] = Order(
                self.run, round, self.last[name], steps=0 if last else plan.local_steps,
                evaluate=last or round % plan.cadence == 0, start=None if start is None else start.clone(),
            )  # fmt: skip
        if not last:
            self.rule.state.optimizer.param_groups[0].update(plan.rate(round))
        return self.rule.ask(orders)

    def _take(self, orders: Orders, heard: Mapping[str, Reply | str], here: list[str]) -> bool:
        """A round with what came back; False if nothing can be used, so that it has to be tried again."""
        names, round = self.remote.names, self.round
        replies = {i: r for i in orders if isinstance(r := heard.get(names[i]), Reply)}
        bad = self.checks.sift(orders, replies, self.run, round)
        bad |= {i: why for i in orders if isinstance(why := heard.get(names[i]), str)}
        silent = [names[i] for i in orders if names[i] not in heard] + [n for n in self.since if n not in here]
        for i, why in bad.items():
            self._tell({"event": "refused", "round": round, "client": names[i], "message": why})
        self.lost |= {names[i] for i, reply in replies.items() if reply.lost}
        if silent:
            self._tell({"event": "left out", "round": round, "clients": silent})
        good = {i: reply for i, reply in replies.items() if i not in bad}
        if not good:
            return False
        journal, W = self.journal, self.rule.weights
        journal.bytes += sum(_size(o) for o in orders.values()) + sum(_size(r) for r in good.values())
        journal.gradients += sum(reply.gradients for reply in good.values())
        if any(order.evaluate for order in orders.values()):
            line = journal.measure(round, W, {names[i]: self._scores(names[i], good[i]) for i in sorted(good)})
            self._tell({"event": "evaluated", **line})
        if round < self.plan.rounds:
            self.rule.hear(orders, good)
            self._say_whether_w_rests([name for i, name in enumerate(names) if i not in good])
            joined = [names[i] for i in good if names[i] not in self.since]
            if joined and self.since:
                self._tell({"event": "joined", "round": round, "clients": joined})
            for i in good:
                self.last[names[i]] = round
                self.since.setdefault(names[i], round)
                self.lost.discard(names[i])
        self.rule.state.round += 1
        self._tell({"event": "round", "round": self.round})
        if round < self.plan.rounds:
            facts = {"run": self.run, "last": self.last, "since": self.since, "lost": sorted(self.lost),
                     "longest": self.checks.longest, "samples": self.remote.counted.tolist()}  # fmt: skip
            journal.save(self.round, self.rule.tensors(), facts)
        return True

    def _scores(self, name: str, reply: Reply) -> dict[str, float]:
        """Without those that cannot be, which would spoil everyone's mean."""
        wrong = impossible(reply.measured)
        if wrong:
            told = ", ".join(f"{score} {reply.measured[score]:g}" for score in wrong)
            message = f"{name} has measured {told}, which cannot be and is left out of the mean"
            self._tell({"event": "warning", "round": self.round, "client": name, "message": message})
        return {score: value for score, value in reply.measured.items() if score not in wrong}

    def _say_whether_w_rests(self, missing: list[str]) -> None:
        """On a simplex, a name that never comes would else silently keep W as it was for the whole run."""
        if self.plan.on_simplex and missing and missing != self._waited_for:
            why = f"W rests without {', '.join(missing)}: on a simplex weights sum to one over all clients"
            remedy = "set cobo.domain = 'box' if clients come and go, and leave out of clients who does not come"
            self._tell({"event": "warning", "round": self.round, "message": f"{why}; {remedy}"})
        self._waited_for = missing


def serve(
    plan: Plan,
    model: nn.Module | Callable[[], nn.Module],
    link: Callable[[Server, Listener], Link],
    listener: Listener,
) -> Server:
    """A whole run, recorded in the plan's folder, begun or gone on with."""
    folder = Path(plan.out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"out = {plan.out!r} cannot be used as a folder: {error.strerror}; choose another") from None
    if not plan.resume:
        refuse_overwriting(folder)
    with ExitStack() as stack:
        stack.enter_context(only_one(folder))
        sweep(folder)
        log = stack.enter_context(EventLog(folder / "events.jsonl"))

        def tell(event: dict[str, Any]) -> None:
            log(event)
            listener(event)

        server = Server(plan, model, folder, tell)
        if plan.resume:
            server.restore()
        try:
            server.go(link(server, tell))
        except Exception as error:
            why = str(error) if isinstance(error, CoboError) else f"{type(error).__name__}: {error}"
            tell({"event": "failed", "round": server.round, "message": why})
            raise
    return server


def _size(message: Order | Reply) -> int:
    """Bytes of numbers in a message."""
    vectors = (getattr(message, name) for name in TENSORS[type(message)])
    return sum(v.nbytes for v in vectors if v is not None)
