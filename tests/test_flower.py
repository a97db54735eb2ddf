"""The Flower engine without a network: server and clients as they are, messages handed over in this process."""

import json
from dataclasses import replace

import pytest
import torch
from conftest import blobs
from torch import nn

import cobo
from cobo.compute.task import Task
from cobo.errors import CheckpointError, ConfigError, RunError
from cobo.flower.party import Party
from cobo.flower.plan import Plan
from cobo.flower.server import Server, serve
from cobo.flower.wire import Hello

NAMES = ("north", "south", "east")


def clients():
    return [blobs(name, seed=k, flip=name == "south", samples=40 + 10 * k) for k, name in enumerate(NAMES)]


def model():
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))


class Hand:
    """Hands orders to clients that are made anew for each one, as with Flower, and keep all they know on their disk.

    `meddle(name, order, reply)` may change a reply, or return None as if there were none.
    """

    def __init__(self, plan, state, *, meddle=None, who=lambda round: NAMES, model=model):
        self.plan, self.state, self.meddle, self.who, self.model = plan, state, meddle, who, model
        self.clients = {client.name: client for client in clients()}
        self.round, self.seen = 0, []

    def present(self):
        return {name: Hello(name, "", "", 0, "", len(self.clients[name].train)) for name in self.who(self.round)}

    def exchange(self, orders, timeout):
        replies = {}
        for name, order in orders.items():
            self.round = order.round + 1
            self.seen.append((name, order))
            reply = Party(self.clients[name], self.model, Task(), self.plan, self.state).answer(order)
            reply = reply if self.meddle is None else self.meddle(name, order, reply)
            if reply is not None:
                replies[name] = reply
        return replies


def plan_of(tmp_path, method="cobo", **settings):
    usual = {"rounds": 10, "lr": 0.1, "momentum": 0.9, "batch_size": 8, "seed": 3, "out": str(tmp_path / "out")}
    return Plan.of({"clients": ",".join(NAMES), "method": method, **usual, **settings})


def run(plan, tmp_path, **options):
    events, hand = [], Hand(plan, tmp_path / "state", **options)
    server = serve(plan, options.get("model", model), lambda tell: hand, events.append)
    return server, hand, events


def on_disk(server, tmp_path, name):
    from safetensors.torch import load_file

    state = load_file(tmp_path / "state" / server.run / name / "models" / f"{name}.safetensors")
    return flat(state)


def in_process(plan, **options):
    shared = {k: getattr(plan, k) for k in ("rounds", "lr", "momentum", "batch_size", "seed", "optimizer", "schedule")}
    return cobo.fit(clients(), model=model, method=plan.method, **(shared | options))


def flat(state):
    return torch.cat([state[name].flatten() for name in sorted(state)])


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("local", {}),
        ("fedavg", {}),
        ("fedavg", {"local-steps": 3}),
        ("ditto", {"ditto.lam": 0.5}),
        ("ditto", {"ditto.lam": 0.5, "local-steps": 3}),
        ("cobo", {"cobo.gamma": 1.0}),
        ("cobo", {"cobo.gamma": 1.0, "cobo.pull": "sum", "cobo.sampling": "every", "schedule": "cosine"}),
        ("cobo", {"cobo.gamma": 1.0, "cobo.mixing": "implicit", "cobo.ask": 2, "cobo.rho": 5.0}),
        ("cobo", {"cobo.domain": "simplex", "cobo.solver": "projected", "cobo.self-weight": True}),
        ("cobo", {"cobo.gamma": 1.0, "optimizer": "adamw", "lr": 0.01}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_the_run_is_that_of_one_process(tmp_path, method, settings):
    plan = plan_of(tmp_path, method, **settings)
    server, hand, _ = run(plan, tmp_path)
    alone = in_process(plan)
    for name in NAMES:
        torch.testing.assert_close(
            on_disk(server, tmp_path, name), flat(alone.models[name].state_dict()), rtol=0, atol=1e-4
        )
    if method == "cobo":
        torch.testing.assert_close(server.rule.weights, torch.from_numpy(alone.weights), rtol=0, atol=1e-4)
        assert not torch.equal(server.rule.weights, torch.ones(3, 3))
    last = json.loads((tmp_path / "out" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["loss"] == pytest.approx(alone.history[-1]["loss"], abs=1e-4)
    assert last["gradients"] == alone.history[-1]["gradients"]
    rounds = [order.round for name, order in hand.seen if name == "north"]
    assert rounds == list(range(11))  # one message per round, and one to end with
