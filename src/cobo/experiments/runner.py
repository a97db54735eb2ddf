"""Runs of an experiment in a folder: methods times seeds, each resumable."""

import tomllib
from pathlib import Path
from typing import Any

import tomli_w
import torch

from cobo.errors import CheckpointError
from cobo.experiments.experiment import Experiment
from cobo.training.checkpoint import write_atomic
from cobo.training.events import Event, Listener
from cobo.training.fit import fit
from cobo.training.result import Result


class Claim:
    """Keeps runs with different settings out of one folder.

    A listener: experiment.toml is written when the first run really starts; a refused one leaves nothing behind.
    """

    def __init__(self, folder: Path, experiment: Experiment) -> None:
        self._path = folder / "experiment.toml"
        self._settings = experiment.plain()
        if not self._path.exists():
            return
        try:
            stored = tomllib.loads(self._path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{self._path} is damaged: {error}; mend it or use another --out") from None
        for key in {**stored, **self._settings}:
            if stored.get(key) != self._settings.get(key):
                raise CheckpointError(
                    f"{folder} holds runs with {key} = {stored.get(key)!r}, not {self._settings.get(key)!r}; "
                    "use the same settings or another --out"
                )

    def __call__(self, event: Event) -> None:
        if event["event"] == "started" and not self._path.exists():
            write_atomic(self._path, tomli_w.dumps(self._settings).encode())


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
    if experiment.threads is not None:
        torch.set_num_threads(experiment.threads)
    chosen = experiment.method(method)
    parts = experiment.build(seed)
    claim = Claim(folder, experiment)
    settings: dict[str, Any] = experiment.training(method, seed)
    return fit(
        parts.clients,
        model=parts.model,
        loss=parts.loss,
        method=chosen,
        out=folder / method / f"seed-{seed}",
        resume=resume,
        listeners=[claim, *(listeners or ())],
        progress=True,
        label=f"{method} seed {seed}",
        **settings,
    )
