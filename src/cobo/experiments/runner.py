"""Runs of an experiment in a folder: methods times seeds, each resumable."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import tomli_w
import torch

from cobo.errors import CheckpointError, RunError
from cobo.experiments.experiment import Experiment
from cobo.training.checkpoint import write_atomic
from cobo.training.events import Event, Listener
from cobo.training.fit import fit
from cobo.training.result import Result


class Claim:
    """Keeps runs with different settings out of one folder.

    A listener: experiment.toml is written when the first run really starts; a refused one leaves nothing behind.
    Only who takes part may change when a run goes on that has the folder for `alone`.
    """

    def __init__(self, folder: Path, experiment: Experiment, *, alone: bool = False) -> None:
        self._path = folder / "experiment.toml"
        self._settings = experiment.plain()
        self._changed = not self._path.exists()
        if self._changed:
            return
        try:
            stored = tomllib.loads(self._path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{self._path} is damaged: {error}; mend it or use another --out") from None
        stored = {**experiment.usual(), **stored}  # a setting that there was not yet when the file was written
        for key in {**stored, **self._settings}:
            if stored.get(key) == self._settings.get(key) or key == "leave_out":  # what `all` means, not what comes out
                continue
            if not (alone and key in experiment.members):
                where, was, now = _difference(key, stored.get(key), self._settings.get(key))
                raise CheckpointError(
                    f"{folder} holds runs with {where} = {was!r}, not {now!r}; use the same settings or another --out"
                )
            self._changed = True

    def __call__(self, event: Event) -> None:
        if event["event"] == "started" and self._changed:
            write_atomic(self._path, tomli_w.dumps(self._settings).encode())


def _difference(key: str, stored: Any, given: Any) -> tuple[str, Any, Any]:
    """Where two different settings differ: for tables, the first entry that does."""
    if isinstance(stored, dict) and isinstance(given, dict):
        first = next(k for k in {**stored, **given} if stored.get(k) != given.get(k))
        return _difference(f"{key}.{first}", stored.get(first), given.get(first))
    return key, stored, given


class Watcher(Protocol):
    """Hears every event of the runs, and where one begins and ends."""

    def __call__(self, event: Event) -> None: ...

    def begin(self, label: str) -> None: ...

    def skip(self) -> None: ...

    def end(self) -> None: ...


def compare(
    experiment: Experiment, methods: Sequence[str], seeds: Sequence[int], folder: Path, *, resume: bool, watch: Watcher
) -> None:
    """Methods times seeds, one run after the other; those that are finished are left as they are.

    All methods have their first seed before any has its second, so that there is a table to look at early. A run that
    fails (diverges) does not keep the others from running; the failure is raised at the end.
    """
    Claim(folder, experiment)
    failures = []
    for seed in seeds:
        for method in methods:
            if resume and (folder / method / f"seed-{seed}" / "result.json").exists():
                watch.skip()
                continue
            watch.begin(f"{method} seed {seed}")
            try:
                run(experiment, method, seed, folder, resume=resume, listeners=[watch], progress=False)
            except RunError as error:
                failures.append(f"{method} seed {seed} failed: {error}")
            watch.end()
    if failures:
        more = f" ({len(failures) - 1} more did too)" if len(failures) > 1 else ""
        raise RunError(failures[0] + more)


def run(
    experiment: Experiment,
    method: str,
    seed: int,
    folder: Path,
    *,
    resume: bool,
    listeners: Sequence[Listener] = (),
    progress: bool = True,
) -> Result:
    """One method with one seed, recorded in FOLDER/METHOD/seed-K."""
    if experiment.threads is not None:
        torch.set_num_threads(experiment.threads)
    chosen = experiment.method(method)
    mine = folder / method / f"seed-{seed}"
    others = [path for path in folder.glob("*/seed-*") if path != mine]
    finished = (mine / "result.json").exists()
    claim = Claim(folder, experiment, alone=resume and not others and not finished)
    parts = experiment.parts(seed)
    settings: dict[str, Any] = experiment.training(method, seed)
    return fit(
        parts.clients,
        model=parts.model,
        loss=parts.loss,
        method=chosen,
        out=mine,
        resume=resume,
        listeners=[claim, *listeners],
        progress=progress,
        label=f"{method} seed {seed}",
        **settings,
    )
