"""A run that is to be made, and those who watch it."""

from pathlib import Path
from typing import NamedTuple, Protocol

from cobo.experiments.experiment import Experiment
from cobo.training.events import Event


class Job(NamedTuple):
    """One method with one seed, recorded in FOLDER/METHOD/seed-K."""

    experiment: Experiment
    method: str
    seed: int
    folder: Path
    label: str

    @property
    def place(self) -> Path:
        return self.folder / self.method / f"seed-{self.seed}"

    @property
    def finished(self) -> bool:
        return (self.place / "result.json").exists()


class RunWatcher(Protocol):
    """Hears every event of one run, and that it has come to its end."""

    def __call__(self, event: Event) -> None: ...

    def end(self) -> None: ...


class Watcher(Protocol):
    """Watches many runs, also several at a time."""

    def begin(self, label: str) -> RunWatcher: ...

    def skip(self) -> None: ...
