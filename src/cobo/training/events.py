"""What happens in a run, told as plain dicts to whoever listens: progress, files, trackers, your own function.

{"event": "started", "rounds", "round", "executor", "run", ...}    {"event": "round", "round"}
{"event": "evaluated", "round", "accuracy" or "perplexity", "loss", ...}
{"event": "weights", "round", "weights"}: W as an array, after an evaluation, for methods that have one
{"event": "set aside", "round", "clients"}
{"event": "joined" | "left", "round", "clients"}              {"event": "warning", "message"}
{"event": "checkpoint", "round"}                              {"event": "finished" | "interrupted" | "failed"}
With Flower also {"event": "connected", "client"}, {"event": "left out", "round", "clients"} (no reply in time) and
{"event": "refused", "client", "message"} (a reply or a client that cannot be used); "started" has the run's "id".
"""

import contextlib
import json
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from cobo.errors import RunWarning

Event = dict[str, Any]
Listener = Callable[[Event], None]


def read_events(path: Path) -> list[Event]:
    """All but evaluations, which are in the metrics. What a kill left of a line, or is being written, is left out."""
    found = []
    for line in path.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n") and b'"event": "evaluated"' not in line[:80]:
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
    return [event for event in found if isinstance(event, dict) and "event" in event]


class EventLog:
    """Appends events as JSON lines (all but the ticking of rounds, and W, which has a file of its own)."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115, closed in __exit__

    def __enter__(self) -> Self:
        return self

    def __call__(self, event: Event) -> None:
        if event["event"] not in ("round", "weights"):
            stamped = {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), **event}
            self._file.write(json.dumps(stamped) + "\n")
            self._file.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def as_warnings(caller: FrameType) -> Listener:
    """Makes a run's warnings Python's own, of the line that the caller is at: who shows nothing still says them."""
    place = caller.f_code.co_filename, caller.f_lineno
    registry = caller.f_globals.setdefault("__warningregistry__", {})  # Python's: what was said there is not repeated

    def hear(event: Event) -> None:
        if event["event"] == "warning":
            warnings.warn_explicit(event["message"], RunWarning, *place, registry=registry)

    return hear
