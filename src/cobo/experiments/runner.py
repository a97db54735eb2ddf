"""Runs of an experiment in a folder: methods times seeds, each resumable."""

import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tomli_w
import torch

from cobo.compute.allocator import give_back_freed_memory
from cobo.compute.task import Task
from cobo.engines import join
from cobo.errors import CheckpointError, ConfigError, RunError
from cobo.experiments.experiment import APART, Experiment
from cobo.experiments.job import Job, Watcher
from cobo.experiments.outlook import Expected, expect, outlook
from cobo.experiments.side_by_side import run_side_by_side
from cobo.federation import Federation
from cobo.training import membership
from cobo.training.checkpoint import write_atomic, write_new
from cobo.training.events import Event, Listener
from cobo.training.fit import federate, fit, refuse_overwriting
from cobo.training.result import Result
from cobo.training.settings import Training

Say = Callable[[str], None]


class Claim:
    """Keeps runs with different settings out of one folder.

    A listener: experiment.toml is written when the first run really starts; a refused one leaves nothing behind.
    Only who takes part may change when a run goes on that has the folder for `alone`.
    """

    def __init__(self, folder: Path, experiment: Experiment, *, alone: bool = False) -> None:
        self._path = folder / "experiment.toml"
        self._experiment, self._settings = experiment, experiment.plain()
        self._new = not self._path.exists()
        self._changed = not self._new and self._differs(alone=alone)

    def _differs(self, *, alone: bool) -> bool:
        """Whether others take part than the file says; a `CheckpointError` if anything else is different."""
        experiment, changed = self._experiment, False
        try:
            stored = tomllib.loads(self._path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{self._path} is damaged: {error}; mend it or use another --out") from None
        stored = {**experiment.usual(), **stored}  # a setting that there was not yet when the file was written
        for key in {**stored, **self._settings}:
            if stored.get(key) == self._settings.get(key) or key in APART:
                continue
            if not (alone and key in experiment.members):
                where, was, now = _difference(key, stored.get(key), self._settings.get(key))
                raise CheckpointError(
                    f"{self._path.parent} holds runs with {where} = {was!r}, not {now!r}; use the same settings or "
                    "another --out"
                )
            changed = True
        return changed

    def __call__(self, event: Event) -> None:
        if event["event"] != "started":
            return
        content = tomli_w.dumps(self._settings).encode()
        if self._changed:
            write_atomic(self._path, content)
        elif self._new and not write_new(self._path, content):  # another command was faster
            self._differs(alone=False)


def _difference(key: str, stored: Any, given: Any) -> tuple[str, Any, Any]:
    """Where two different settings differ: for tables, the first entry that does."""
    if isinstance(stored, dict) and isinstance(given, dict):
        first = next(k for k in {**stored, **given} if stored.get(k) != given.get(k))
        return _difference(f"{key}.{first}", stored.get(first), given.get(first))
    return key, stored, given


def compare(
    experiment: Experiment,
    methods: Sequence[str],
    seeds: Sequence[int],
    folder: Path,
    *,
    resume: bool,
    watch: Watcher,
    at_once: int = 1,
    say: Say | None = None,
) -> None:
    """Methods times seeds; all methods have their first seed before any has its second: a table to look at early."""
    jobs = [Job(experiment, m, seed, folder, f"{m} seed {seed}") for seed in seeds for m in methods]
    run_all(jobs, resume=resume, watch=watch, at_once=at_once, say=say)


def check(experiment: Experiment, methods: Sequence[str], seed: int, *, validation: float = 0.0) -> Federation:
    """Refuse what cannot work, for any of the methods, before anything runs; the federation that they would train."""
    if experiment.threads is not None:
        torch.set_num_threads(experiment.threads)
    parts = experiment.parts(seed, validation=validation)
    settings = {method: Training(**experiment.training(method, seed)) for method in methods}
    federation = federate(parts.clients, parts.model, Task(parts.loss), settings[methods[0]])
    for method in methods:
        membership.check(federation, experiment.method(method), settings[method])
    return federation


def run_all(jobs: Sequence[Job], *, resume: bool, watch: Watcher, at_once: int = 1, say: Say | None = None) -> None:
    """Runs one after the other, or so many at once in processes of their own; the finished are left as they are.

    What cannot work for one of them is refused before any runs; then `say` is told what they will take. A run that
    fails (diverges) does not keep the others from running; the failure is raised at the end.
    """
    ranks = join()
    if at_once > 1 and ranks.size > 1:
        raise ConfigError("--jobs cannot be had under torchrun, whose processes share each run; leave one of them out")
    resume = resume or ranks.first(lambda: any(ranks.begun(job.place) for job in jobs))

    def to_be_run() -> list[bool]:
        for folder, experiment in {job.folder: job.experiment for job in jobs}.items():
            Claim(folder, experiment)
        waiting = prepare(jobs, resume=resume, at_once=at_once, say=say)
        return [job in waiting for job in jobs]

    waiting = [job for job, wanted in zip(jobs, ranks.first(to_be_run), strict=True) if wanted]
    for _ in range(len(jobs) - len(waiting)):
        watch.skip()
    if at_once > 1:
        for job in waiting:
            job.experiment.let_go()  # each process has its own
        give_back_freed_memory()
        failures = run_side_by_side(waiting, at_once, resume=resume, watch=watch)
    else:
        failures = _run_in_turn(waiting, resume=resume, watch=watch)
    if failures:
        more = f" ({len(failures) - 1} more did too)" if len(failures) > 1 else ""
        raise RunError(failures[0] + more)


def prepare(jobs: Sequence[Job], *, resume: bool, at_once: int = 1, say: Say | None = None) -> list[Job]:
    """Those that are to be run. Refuses folders that are taken and what cannot work, then says what they will take."""
    if not resume:
        for job in jobs:
            refuse_overwriting(job.place)
    waiting = [job for job in jobs if not (resume and job.finished)]
    expected: list[Expected] = []
    for folder in dict.fromkeys(job.folder for job in waiting):
        mine = [job for job in waiting if job.folder == folder]
        federation = check(mine[0].experiment, list(dict.fromkeys(job.method for job in mine)), mine[0].seed)
        expected += [] if say is None else [expect(federation, mine, resume=resume)]
        del federation
        torch.cuda.empty_cache()  # runs in processes of their own need the GPU's memory; without a GPU, nothing
    if say is not None and waiting:
        for line in outlook(waiting, expected, at_once):
            say(line)
    return waiting


def _run_in_turn(jobs: Sequence[Job], *, resume: bool, watch: Watcher) -> list[str]:
    failures = []
    for job in jobs:
        heard = watch.begin(job.label)
        try:
            run(job.experiment, job.method, job.seed, job.folder, resume=resume, listeners=[heard], progress=False)
        except RunError as error:
            failures.append(f"{job.label} failed: {error}")
        heard.end()
    return failures


def run(
    experiment: Experiment,
    method: str,
    seed: int,
    folder: Path,
    *,
    resume: bool,
    listeners: Sequence[Listener] = (),
    progress: bool = True,
    say: Say | None = None,
) -> Result:
    """One method with one seed, recorded in FOLDER/METHOD/seed-K; `say` is told first what it will take."""
    if experiment.threads is not None:
        torch.set_num_threads(experiment.threads)
    chosen = experiment.method(method)
    job = Job(experiment, method, seed, folder, f"{method} seed {seed}")
    mine, ranks, claims = job.place, join(), []
    resume = resume or ranks.first(lambda: ranks.begun(mine))

    def claim() -> None:
        others = [path for path in folder.glob("*/seed-*") if path != mine]
        claims.append(Claim(folder, experiment, alone=resume and not others and not job.finished))
        if say is not None:
            prepare([job], resume=resume, say=say)

    ranks.first(claim)
    parts = experiment.parts(seed)
    settings: dict[str, Any] = experiment.training(method, seed)
    return fit(
        parts.clients,
        model=parts.model,
        loss=parts.loss,
        method=chosen,
        out=mine,
        resume=resume,
        listeners=[*claims, *listeners],
        progress=progress,
        label=job.label,
        **settings,
    )
