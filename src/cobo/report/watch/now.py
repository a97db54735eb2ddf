"""What the page shows of a folder now: read again when something was written, and seldom if reading takes long."""

import hashlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cobo.report.page import build
from cobo.report.summary import Results, Runs, ordered, read_runs
from cobo.report.watch.going import Going, as_runs, read_going, said

FILES = ("events.jsonl", "metrics.jsonl", "weights.safetensors", "result.json")
PAUSE = 1.0  # seconds between two readings, at least
SHARE = 20  # and so many times what a reading takes of one core: 5 % of it, however large the runs


class Now:
    """A folder as it is; `summarise` makes the table of runs. Threads may ask at the same time, one reads."""

    def __init__(self, folder: Path, summarise: Callable[[Runs], Results]) -> None:
        self._folder, self._summarise = folder, summarise
        self._lock = threading.Lock()
        self._seen, self._next = "", 0.0
        self._data: dict[str, Any] = {}

    def data(self) -> dict[str, Any]:
        """What the page shows; `version` changes with it. `now` is our time, as the browser's may differ."""
        with self._lock:
            if time.monotonic() >= self._next:
                self._look()
            return {**self._data, "now": time.time()}

    def _look(self) -> None:
        begun = time.thread_time()
        try:
            seen = self._fingerprint()
            if seen != self._seen:
                self._data = {**self._try(), "version": seen}
                self._seen = seen
        except FileNotFoundError:  # replaced or moved away just now: the next look finds what came in its place
            self._data = self._data or {**self._empty([], ""), "version": ""}
        finally:
            self._next = time.monotonic() + max(PAUSE, SHARE * (time.thread_time() - begun))

    def _try(self) -> dict[str, Any]:
        """What there is to see, or what keeps us from it: files from elsewhere may be wrong in any way."""
        try:
            return self._read()
        except FileNotFoundError:
            raise
        except Exception as error:
            return self._empty([], said(error))

    def _fingerprint(self) -> str:
        paths = [self._folder / "experiment.toml"]
        paths += [
            path for name in FILES for path in (self._folder / name, *sorted(self._folder.glob(f"*/seed-*/{name}")))
        ]
        found = hashlib.sha256(str(self._folder.resolve()).encode())
        for path in paths:
            try:
                status = path.stat()
            except OSError:
                continue
            found.update(f"{path} {status.st_ino} {status.st_size} {status.st_mtime_ns}\n".encode())
        return found.hexdigest()

    def _read(self) -> dict[str, Any]:
        """Methods of which a seed is finished are in the table with those that are; others as far as they have come."""
        finished, (going, problems) = read_runs(self._folder), read_going(self._folder)
        begun = as_runs(going)
        counted = ordered({**{m: seeds for m, seeds in begun.items() if m not in finished}, **finished})
        if not counted:
            return self._empty(going, " ".join(problems))
        results = self._summarise(counted)
        data = build.gathered(self._folder, results, counted, begun)
        data["notes"] += problems
        return {**data, "live": _live(going, sum(len(seeds) for seeds in finished.values()))}

    def _empty(self, going: list[Going], problem: str) -> dict[str, Any]:
        inside = sorted({path.parents[2].name for path in self._folder.glob("*/*/seed-*/events.jsonl")})
        notes = [problem] if problem else []
        if inside and not going:
            notes.append(f"There are folders of runs in it; watch one of them: {', '.join(inside[:12])}.")
        return {
            "title": self._folder.resolve().name, "about": str(self._folder), "scores": "", "notes": notes, "runs": [],
            "finding": "This cannot be read" if problem else "Waiting for the first evaluation of a run",
            "live": _live(going, 0),
        }  # fmt: skip


def _live(going: list[Going], finished: int) -> dict[str, Any]:
    runs = [
        {
            "label": f"{run.method} seed {run.seed}",
            **{k: getattr(run, k) for k in ("state", "round", "rounds", "heard")},
        }
        for run in going
    ]
    return {"runs": runs, "finished": finished}
