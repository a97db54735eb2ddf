"""What happens in a run, told as plain dicts to whoever listens: progress, files, TensorBoard, your own function.

{"event": "started", "rounds", "round", "executor", ...}      {"event": "round", "round"}
{"event": "evaluated", "round", "accuracy" or "perplexity", "loss", ...}
{"event": "set aside", "round", "clients"}
{"event": "joined" | "left", "round", "clients"}              {"event": "warning", "message"}
{"event": "checkpoint", "round"}                              {"event": "finished" | "interrupted" | "failed"}
With Flower also {"event": "connected", "client"}, {"event": "left out", "round", "clients"} (no reply in time) and
{"event": "refused", "client", "message"} (a reply or a client that cannot be used).
"""

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

Event = dict[str, Any]
Listener = Callable[[Event], None]


class EventLog:
    """Appends events as JSON lines (all but the ticking of rounds)."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115, closed in __exit__

    def __enter__(self) -> Self:
        return self

    def __call__(self, event: Event) -> None:
        if event["event"] != "round":
            stamped = {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), **event}
            self._file.write(json.dumps(stamped) + "\n")
            self._file.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


class TensorBoard:
    """Writes the same metrics to TensorBoard (extra `cobo[tensorboard]`)."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def __call__(self, event: Event) -> None:
        if event["event"] == "evaluated":
            for name in ("accuracy", "perplexity", "loss", "settled", "gradients", "time"):
                if event.get(name) is not None:
                    self._writer.add_scalar(name, event[name], event["round"])
            for client, values in event["clients"].items():
                for name, value in values.items():
                    if value is not None:
                        self._writer.add_scalar(f"{name}/{client}", value, event["round"])
        elif event["event"] in ("finished", "interrupted", "failed"):
            self._writer.close()
