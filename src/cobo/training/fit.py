"""`cobo.fit`: from clients and a model to one personal model per client."""

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import nn

from cobo.compute.on_demand import Models
from cobo.compute.task import Loss, Objective, Task
from cobo.engines import Sharded, join
from cobo.engines.ranks import Ranks
from cobo.errors import CheckpointError, ConfigError
from cobo.federation import Client, Federation
from cobo.federation.augment import AUGMENTATIONS
from cobo.methods import CoBo, Method
from cobo.training.architecture import describe
from cobo.training.checkpoint import made, sweep
from cobo.training.environment import environment
from cobo.training.events import EventLog, Listener, as_warnings
from cobo.training.lock import only_one
from cobo.training.loop import Run
from cobo.training.membership import check
from cobo.training.progress import LiveProgress
from cobo.training.records import listed
from cobo.training.result import Result
from cobo.training.resume import restore
from cobo.training.settings import Training


def fit(
    clients: Sequence[Client],
    *,
    model: nn.Module | Callable[[], nn.Module],
    method: Method | None = None,
    loss: str | Loss = "cross_entropy",
    objective: Objective | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    listeners: Sequence[Listener] = (),
    progress: bool = False,
    label: str | None = None,
    **training: Any,
) -> Result:
    """Train one personal model per client, and learn who should learn from whom.

    `training` takes rounds, lr, batch_size, accumulate, momentum, weight_decay, optimizer, schedule, seed,
    evaluate_every, buffers, precision, augment, executor, models_at_once, device, roster and clocks, see
    `cobo.Training`. With `out`, the run is recorded in that folder and can be resumed from its last checkpoint after
    any kind of end. `progress` shows a bar and says what the run warns of; without it, that is a Python warning,
    `cobo.errors.RunWarning`. `listeners` are functions that hear every event of the run (`cobo.training.events`). Under
    torchrun the clients are spread over its processes (docs/engines.md), of which the first records, shows and hears;
    the others' results have the models of their own clients only.

    >>> import torch
    >>> def party(name, slope):
    ...     x = torch.linspace(-1, 1, 20)[:, None]
    ...     return Client(name, train=(x, slope * x), test=(x, slope * x))
    >>> result = fit([party("a", 1.0), party("b", 1.0), party("c", -1.0)], model=nn.Linear(1, 1),
    ...              loss="mse", rounds=200, lr=0.2)
    >>> result.groups()
    [['a', 'b'], ['c']]
    """
    warns = as_warnings(sys._getframe(1))
    method = CoBo() if method is None else method
    if not isinstance(method, Method):
        raise ConfigError(f"method = {method!r} should be a method of cobo, such as cobo.CoBo()")
    ranks = join()  # before anything is put on a GPU
    settings = Training(**training)
    if out is not None and not isinstance(out, (str, Path)):
        raise ConfigError(f"out = {out!r} is not allowed; it should be the path of a folder")
    folder = None if out is None else Path(out)
    if folder is None and resume:
        raise ConfigError("resume = True needs a folder to resume from; set out=")
    if folder is not None and not resume:
        resume = ranks.first(lambda: ranks.begun(folder))
    federation = federate(clients, model, Task(loss, objective), settings)
    check(federation, method, settings)
    with ExitStack() as stack:
        heard = list(listeners) if ranks.leads else []

        def claim(folder: Path) -> None:
            _claim(folder, resume)
            stack.enter_context(only_one(folder))
            ranks.begin(folder)
            sweep(folder)
            heard.append(stack.enter_context(EventLog(folder / "events.jsonl")))

        if folder is not None:
            ranks.first(lambda: claim(folder))
        if ranks.leads:
            heard.append(stack.enter_context(LiveProgress(label or method.name)) if progress else warns)
        run = Run(federation, method, settings, folder=folder, listeners=heard)
        if folder is not None and resume:
            restore(run, folder)
        run.go()
        run.take_output()
        result = _result(run)
        if folder is not None and ranks.leads:
            result.save(folder)
    return result


def federate(
    clients: Sequence[Client], model: nn.Module | Callable[[], nn.Module], task: Task, settings: Training
) -> Federation:
    """The federation that a run with these settings trains; under torchrun, this process's part of it."""
    ranks = join()
    options: dict[str, Any] = {
        "task": task,
        "seed": settings.seed,
        "batch_size": settings.batch_size,
        "accumulate": settings.accumulate,
        "augment": AUGMENTATIONS[settings.augment] if isinstance(settings.augment, str) else settings.augment,
        "buffers": settings.buffers,
        "precision": settings.precision,
        "executor": settings.executor,
        "models_at_once": settings.models_at_once,
        "device": ranks.device(settings.device),
    }
    if isinstance(ranks, Ranks):
        return Sharded(clients, model, ranks=ranks, **options)
    return Federation(clients, model, **options)


def refuse_overwriting(folder: Path) -> None:
    """A folder that holds a run is only touched to go on with it."""
    if (folder / "metrics.jsonl").exists():
        raise CheckpointError(
            f"{folder} already holds a run; resume it (resume=True, --resume) or choose another folder"
        )


def _claim(folder: Path, resume: bool) -> None:
    made(folder)
    if not resume:
        refuse_overwriting(folder)


def _result(run: Run) -> Result:
    federation, names, blueprint = run.federation, run.federation.everyone, run.federation.blueprint
    run.state.optimizer.state.clear()  # only training needs it, and it is larger than the models that are made next
    run.state.gradient = run.state.X[:0]
    federation.complete_buffers()
    rows = federation.whole(run.personal)
    if join().leads:
        here = federation.build(rows).numbers
        numbers = {name: here[name] if name in here else run.members.left[name] for name in names}
        models = Models(numbers, blueprint.build)
    else:
        models = federation.build(run.personal, federation.mine)
    whole = blueprint.load(blueprint.start, blueprint.buffers).state_dict()  # no view of a row, which would keep X
    own = blueprint.own(whole)
    return Result(
        **run.facts,
        models=models,
        weights=run.weights,
        history=[listed(line, names) for line in run.history],
        present=federation.names,
        changes=run.members.changes,
        snapshots=run.snapshots,
        states={name: blueprint.own(numbers) for name, numbers in models.numbers.items()},
        shared={name: t for name, t in whole.items() if name not in own},
        architecture=describe(blueprint.module),
        base=blueprint.base,
        environment=environment(),
    )
