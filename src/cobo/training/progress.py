"""Progress for people: a live bar on a terminal, plain lines elsewhere."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from cobo.training.events import Event


class LiveProgress:
    """Rounds, rate, time left, current accuracy or perplexity, and how much of W is at rest."""

    def __init__(self, label: str, console: Console | None = None) -> None:
        self._label = label
        self._console = console or Console(stderr=True)
        self._live = self._console.is_terminal
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=10),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[score]}"),
            console=self._console,
            disable=not self._live,
            transient=False,
        )
        self._task: TaskID | None = None
        self._told = -1.0
        self._first = (0, 0.0)
        self._rounds = 0
        self._aside = ""

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def __call__(self, event: Event) -> None:
        kind = event["event"]
        if kind == "started":
            self._rounds = event["rounds"]
            self._first = (event["round"], time.monotonic())
            self._task = self._bar.add_task(
                self._label, total=self._rounds, completed=event["round"], rate="", score=""
            )
        elif kind == "round" and self._task is not None and self._live:
            self._bar.update(self._task, completed=event["round"], rate=self._rate(event["round"]))
        elif kind == "evaluated":
            self._evaluated(event)
        elif kind == "set aside":
            names = ", ".join(event["clients"])
            if names != self._aside:
                self._aside = names
                self._say(f"{self._label}: round {event['round']}: gradient not finite, set aside: {names}")
        elif kind in ("joined", "left", "left out"):
            self._say(f"{self._label}: round {event['round']}: {kind}: {', '.join(event['clients'])}")
        elif kind == "refused":
            self._say(f"{self._label}: refused {event['client']}: {event['message']}")
        elif kind == "warning":
            self._say(f"{self._label}: {event['message']}")

    def _evaluated(self, event: Event) -> None:
        score = describe(event)
        if self._live and self._task is not None:
            brief = score.removeprefix("accuracy ").replace("perplexity", "ppl").replace("W at rest", "at rest")
            self._bar.update(self._task, completed=event["round"], score=brief)
            return
        share = event["round"] / self._rounds
        if share >= self._told + 0.1 or event["round"] == self._rounds:
            self._told = share
            self._say(f"{self._label}: round {event['round']}/{self._rounds} {self._rate(event['round'])} {score}")

    def _rate(self, round: int) -> str:
        first, since = self._first
        seconds = max(time.monotonic() - since, 1e-6)
        done = round - first
        return f"{seconds / done:.3g} s each" if 0 < done < seconds else f"{done / seconds:.0f}/s"

    def _say(self, line: str) -> None:
        if self._live:
            self._bar.console.print(line, markup=False, highlight=False)
        else:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()


def describe(event: Event) -> str:
    """The state of a run in a few words."""
    parts = []
    if event.get("accuracy") is not None:
        parts.append(f"accuracy {event['accuracy']:.1f} %")
    elif event.get("perplexity") is not None:
        parts.append(f"perplexity {event['perplexity']:.4g}")
    elif event.get("loss") is not None:
        parts.append(f"loss {event['loss']:.4g}")
    if event.get("settled") is not None:
        groups = event["groups"]
        parts.append(f"{groups} group{'s' * (groups > 1)}, W at rest {100 * event['settled']:.0f} %")
    return ", ".join(parts)
