"""Many runs at a glance: a bar over all of them, one for the run at hand, and the table so far."""

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from cobo.training.events import Event
from cobo.training.progress import describe


class Board:
    """Listens to one run after another. On a terminal it is live; elsewhere each run leaves one line.

    `table` makes the table of what is finished; it is drawn again after every run.
    """

    def __init__(
        self, runs: int, rounds: int, table: Callable[[], RenderableType | None], console: Console | None = None
    ) -> None:
        self._console = console or Console(stderr=True)
        self._runs, self._rounds, self._make_table = runs, rounds, table
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[score]}"),
        )
        self._live = Live(console=self._console, refresh_per_second=4, transient=True)
        self._all = self._bars.add_task("all runs", total=runs, score="")
        self._one: TaskID = self._bars.add_task("", total=rounds, score="", visible=False)
        self._done = 0
        self._label = self._score = ""
        self._warned: set[str] = set()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._draw()
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def begin(self, label: str) -> None:
        """The next run."""
        self._label, self._score = label, ""
        self._bars.reset(self._one, description=label, total=self._rounds, completed=0, score="", visible=True)

    def skip(self) -> None:
        """A run that was finished before."""
        self._done += 1
        self._bars.update(self._all, completed=self._done)
        self._draw()

    def end(self) -> None:
        """The run at hand has come to its end."""
        self._done += 1
        self._bars.update(self._all, completed=self._done)
        if not self._console.is_terminal:  # there, the table says it
            self._say(f"[{self._done}/{self._runs}] {self._label}: {self._score}")
        self._draw()

    def __call__(self, event: Event) -> None:
        kind = event["event"]
        if kind == "round":
            self._bars.update(self._one, completed=event["round"])
            self._bars.update(self._all, completed=self._done + event["round"] / self._rounds)
        elif kind == "evaluated":
            self._score = describe(event)
            self._bars.update(self._one, score=self._score)
        elif kind in ("warning", "set aside", "joined", "left"):
            happened = (
                "gradient not finite, set aside" if kind == "set aside" else f"round {event.get('round')}: {kind}"
            )
            message = event.get("message") or f"{happened}: {', '.join(event['clients'])}"
            line = f"{self._label}: {message}"
            if line not in self._warned:
                self._warned.add(line)
                self._say(line)

    def _draw(self) -> None:
        if self._console.is_terminal:
            table = self._make_table()
            self._live.update(Group(self._bars) if table is None else Group(table, self._bars))

    def _say(self, line: str) -> None:
        if self._console.is_terminal:
            self._live.console.print(line, markup=False, highlight=False)
        else:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()
