"""An experiment on Flower's simulation: real messages, virtual nodes, in processes that Ray starts here."""

import contextlib
import json
import logging
import os
import threading
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import ray
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from safetensors.torch import load_file

from cobo.compute.task import Task
from cobo.errors import ConfigError, Interrupted
from cobo.experiments import EXPERIMENTS, Experiment
from cobo.experiments.experiment import Parts
from cobo.experiments.runner import Claim
from cobo.flower.apps import answering
from cobo.flower.link import GridLink
from cobo.flower.party import Party
from cobo.flower.plan import Plan
from cobo.flower.rules import Remote
from cobo.flower.server import Server, serve
from cobo.training.architecture import describe
from cobo.training.events import Event, Listener
from cobo.training.fit import refuse_overwriting
from cobo.training.result import Result
from cobo.training.settings import Training

METHODS = ("cobo", "local", "fedavg", "ditto")


def simulate(
    experiment: Experiment,
    method: str,
    seed: int,
    folder: Path,
    *,
    local_steps: int | None,
    resume: bool,
    listener: Listener,
) -> Result:
    """One method with one seed, recorded in FOLDER/METHOD/seed-K, with the clients' disks in its `parties`.

    Without `local_steps` they are the method's own (FedAvg, Ditto), or 1.
    """
    if method not in METHODS:
        raise ConfigError(f"method {method!r} cannot be run with Flower; it should be one of {', '.join(METHODS)}")
    place = folder / method / f"seed-{seed}"
    experiment = _with_steps(experiment, method, local_steps)
    claim = Claim(folder, experiment)
    parts = experiment.parts(seed)
    plan = _plan(experiment, method, seed, parts, place, resume, local_steps or 1)
    plan.check()
    if not resume:
        refuse_overwriting(place)
    Remote(plan, parts.model)  # as the server will; what cannot work is refused before Ray is started
    table = experiment.model_dump_json(exclude_none=True)
    servers: list[Server] = []
    server, stopped = ServerApp(), threading.Event()

    def tell(event: Event) -> None:
        claim(event)
        listener(event)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        def link(server: Server, heard: Listener) -> GridLink:
            return GridLink(grid, plan, server.remote, heard, stopped.is_set)

        with contextlib.suppress(Interrupted):  # Ctrl-C is raised in the main thread, too
            servers.append(serve(plan, parts.model, link, tell))

    def party(context: Context) -> Party:
        parts = _parts(experiment.experiment, table, seed)
        client = parts.clients[int(context.node_config["partition-id"])]
        return Party(client, parts.model, Task(parts.loss), plan, place / "parties")

    _quietly(server, answering(party), len(parts.clients), stopped)
    result = _with_models(servers[0], parts, place)
    result.save(place)
    return result


def _with_steps(experiment: Experiment, method: str, asked: int | None) -> Experiment:
    """The experiment with the steps that were asked for, if they are one of the method's settings."""
    own = experiment.methods.get(method, {})
    if asked is None or "local_steps" not in type(experiment.method(method)).model_fields:
        return experiment
    if own.get("local_steps", asked) != asked:
        given = own["local_steps"]
        raise ConfigError(f"--local-steps {asked} and {method}.local_steps = {given} are not the same; give one")
    return experiment.replace(methods={**experiment.methods, method: {**own, "local_steps": asked}})


def _plan(
    experiment: Experiment, method: str, seed: int, parts: Parts, place: Path, resume: bool, local_steps: int
) -> Plan:
    own = experiment.method(method).model_dump()
    local_steps = own.pop("local_steps", local_steps)
    training = Training(**experiment.training(method, seed)).model_dump()
    clients = tuple(client.name for client in parts.clients)
    ours: dict[str, Any] = {"clients": clients, "chosen": method, "own": own, "local_steps": local_steps}
    return Plan(**training, **ours, out=str(place), resume=resume)


@cache
def _parts(kind: str, table: str, seed: int) -> Parts:
    """The experiment's clients and model, made once in each of Ray's processes."""
    return EXPERIMENTS[kind](**json.loads(table)).parts(seed)


def _quietly(server: ServerApp, client: object, nodes: int, stopped: threading.Event) -> None:
    """Flower's simulation, with nothing sent to Flower, and no process left behind.

    The ServerApp has a thread of its own, which Python waits for and nobody else tells that all is over.
    """
    usual = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    for name, value in usual.items():
        os.environ.setdefault(name, value)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    try:
        run_simulation(server, client, nodes, backend_config=resources)  # type: ignore[arg-type]
    finally:
        stopped.set()
        with contextlib.suppress(Exception):
            ray.shutdown()


def _with_models(server: Server, parts: Parts, place: Path) -> Result:
    """The result with the personal models, which in a simulation are all on this disk."""
    result, blueprint = server.result, server.remote.blueprint
    places = {name: place / "parties" / server.run / name / "models" / f"{name}.safetensors" for name in result.present}
    states = {name: load_file(path) for name, path in places.items()}
    own = next(iter(states.values()))
    return replace(
        result,
        states=states,
        shared={name: t for name, t in blueprint.module.state_dict().items() if name not in own},
        true_groups=[client.group for client in parts.clients],
        architecture=describe(blueprint.module),
    )
