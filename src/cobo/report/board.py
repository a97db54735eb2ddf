"""Many runs at a glance: a bar over all of them, one for each run at work, and the table so far."""

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cobo.training.events import Event
from cobo.training.progress import describe


class Board:
    """On a terminal it is live; elsewhere each run leaves one line.

    `table` makes the table of what is finished; it is drawn again after every run.
    """

    def __init__(
        self, runs: int, rounds: int, table: Callable[[], RenderableType | None], console: Console | None = None
    ) -> None:
        self._console = console or Console(stderr=True)
        self._runs, self._make_table = runs, table
        self.rounds = rounds
        self.bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[score]}"),
        )
        self._live = Live(console=self._console, refresh_per_second=4, transient=True)
        self._all = self.bars.add_task("all runs", total=runs, score="")
        self._at_work: list[Line] = []
        self._over: list[Line] = []  # shown until the next run begins
        self._done = 0
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

    def begin(self, label: str) -> "Line":
        """The next run; the line that shows it is to hear its events."""
        for line in self._over:
            self.bars.remove_task(line.bar)
        self._over = []
        self._at_work.append(Line(self, label))
        return self._at_work[-1]

    def skip(self) -> None:
        """A run that was finished before."""
        self._done += 1
        self.advance()
        self._draw()

    def end(self, line: "Line") -> None:
        """A run has come to its end."""
        self._at_work.remove(line)
        self._over.append(line)
        self._done += 1
        self.advance()
        if not self._console.is_terminal:  # there, the table says it
            self._say(f"[{self._done}/{self._runs}] {line.label}: {line.score}")
        self._draw()

    def advance(self) -> None:
        """The bar over all runs follows those at work."""
        self.bars.update(self._all, completed=self._done + sum(line.share for line in self._at_work))

    def warn(self, line: str) -> None:
        """Say it, once."""
        if line not in self._warned:
            self._warned.add(line)
            self._say(line)

    def _draw(self) -> None:
        if self._console.is_terminal:
            table = self._make_table()
            self._live.update(Group(self.bars) if table is None else Group(table, self.bars))

    def _say(self, line: str) -> None:
        if self._console.is_terminal:
            self._live.console.print(line, markup=False, highlight=False)
        else:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()


class Line:
    """One run on the board."""

    def __init__(self, board: Board, label: str) -> None:
        self._board, self.label = board, label
        self.share, self.score = 0.0, ""
        self._rounds = board.rounds
        self.bar = board.bars.add_task(label, total=board.rounds, score="")

    def __call__(self, event: Event) -> None:
        kind, board = event["event"], self._board
        if kind == "started":
            self._rounds = event["rounds"]
        if kind in ("started", "round"):
            self.share = event["round"] / self._rounds
            board.bars.update(self.bar, completed=event["round"], total=self._rounds)
            board.advance()
        elif kind == "evaluated":
            self.score = describe(event)
            board.bars.update(self.bar, score=self.score)
        elif kind in ("warning", "set aside", "joined", "left"):
            happened = (
                "gradient not finite, set aside" if kind == "set aside" else f"round {event.get('round')}: {kind}"
            )
            message = event.get("message") or f"{happened}: {', '.join(event['clients'])}"
            board.warn(f"{self.label}: {message}")

    def end(self) -> None:
        self._board.end(self)
