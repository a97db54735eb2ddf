"""A child of `compare --jobs`: runs what its parent asks for, one run after the other, and tells it all events.

Asked for in JSON lines on stdin, told in JSON lines on stdout (`side_by_side`). A run that fails is told of like one
that does not; all other errors end the process as they end the command.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cobo.errors import RunError
from cobo.experiments.experiment import Experiment
from cobo.experiments.runner import run

PAUSE = 0.1  # seconds between two rounds that are told of


def work(known: Mapping[str, type[Experiment]]) -> None:
    """Until there is nothing more to do. If the parent is gone, telling it fails: so ends, within a round, the run."""
    tell = _pipe()
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


def _pipe() -> Callable[[dict[str, Any]], None]:
    """To the parent. What others print to stdout goes to stderr from now on."""
    pipe = open(os.dup(1), "w", encoding="utf-8")  # noqa: SIM115, open as long as the process
    os.dup2(2, 1)

    def tell(message: dict[str, Any]) -> None:
        pipe.write(json.dumps(message) + "\n")
        pipe.flush()

    return tell


def _seldom(tell: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    """Of the ticking of rounds, some."""
    last = 0.0

    def tell_some(event: dict[str, Any]) -> None:
        nonlocal last
        if event["event"] == "round":
            if time.monotonic() < last + PAUSE:
                return
            last = time.monotonic()
        tell(event)

    return tell_some
