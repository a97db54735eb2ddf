"""Runs of an experiment in a folder: methods times seeds, each resumable."""

import tomllib
from pathlib import Path
from typing import Any

import tomli_w

from cobo.errors import CheckpointError
from cobo.experiments.experiment import Experiment
from cobo.training.checkpoint import write_atomic
from cobo.training.events import Listener
from cobo.training.fit import fit
from cobo.training.result import Result


def claim(folder: Path, experiment: Experiment) -> None:
    """Write experiment.toml, or make sure that what is in the folder has the same settings."""
    path = folder / "experiment.toml"
    settings = experiment.plain()
    if path.exists():
        stored = tomllib.loads(path.read_text(encoding="utf-8"))
        for key in {**stored, **settings}:
            if stored.get(key) != settings.get(key):
                raise CheckpointError(
                    f"{folder} holds runs with {key} = {stored.get(key)!r}, not {settings.get(key)!r}; "
                    "use the same settings or another --out"
                )
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(path, tomli_w.dumps(settings).encode())


def run(
    experiment: Experiment,
    method: str,
    seed: int,
    folder: Path,
    *,
    resume: bool,
    listeners: list[Listener] | None = None,
) -> Result:
    """One method with one seed, recorded in FOLDER/METHOD/seed-K."""
    chosen = experiment.method(method)
    parts = experiment.build(seed)
    claim(folder, experiment)
    settings: dict[str, Any] = experiment.training(method, seed)
    return fit(
        parts.clients,
        model=parts.model,
        loss=parts.loss,
        method=chosen,
        out=folder / method / f"seed-{seed}",
        resume=resume,
        listeners=listeners or (),
        progress=True,
        label=f"{method} seed {seed}",
        **settings,
    )
