"""A child of `compare --jobs`: runs what its parent asks for, one run after the other, and tells it all events.

Asked for in JSON lines on stdin, told in JSON lines through a pipe of its own (`side_by_side`): whatever a library
prints does no harm. A run that fails is told of like one that does not; all other errors end the process as they end
the command.
"""

import json
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cobo.errors import RunError
from cobo.experiments.experiment import Experiment
from cobo.experiments.runner import run

PAUSE = 0.1  # seconds between two rounds that are told of


def work(known: Mapping[str, type[Experiment]], pipe: int) -> None:
    """Until there is nothing more to do. If the parent is gone, telling it fails: so ends, within a round, the run."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the parent says "stop" by it, whoever ignored it before
    tell = _teller(pipe)
    for line in sys.stdin:
        asked = json.loads(line)
        settings, folder = asked["settings"], Path(asked["folder"])
        failure = None
        try:
            experiment = known[settings["experiment"]](**settings)
            listeners = [_seldom(tell)]
            run(experiment, asked["method"], asked["seed"], folder, resume=asked["resume"], listeners=listeners,
                progress=False)  # fmt: skip
        except RunError as error:
            failure = str(error)
        tell({"ended": True, "failure": failure})


def _teller(pipe: int) -> Callable[[dict[str, Any]], None]:
    file = open(pipe, "w", encoding="utf-8")  # noqa: SIM115, open as long as the process

    def tell(message: dict[str, Any]) -> None:
        file.write(json.dumps(message) + "\n")
        file.flush()

    return tell


def _seldom(tell: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    """Of the ticking of rounds, some; of W, which is in its file, nothing."""
    last = 0.0

    def tell_some(event: dict[str, Any]) -> None:
        nonlocal last
        if event["event"] == "round":
            if time.monotonic() < last + PAUSE:
                return
            last = time.monotonic()
        if event["event"] != "weights":
            tell(event)

    return tell_some
