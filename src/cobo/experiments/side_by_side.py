"""Several runs at a time, in processes of their own (`worker`), which are told what to run and tell what happens.

A process does one run after the other, as starting one takes seconds. Processes have groups of their own, so that
Ctrl-C reaches them once, through the parent, however the parent came by it. If the parent is killed they find nobody to
tell and end within a round: what is left are runs that `--resume` finishes.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch

from cobo.errors import ConfigError, Interrupted
from cobo.experiments.job import Job, RunWatcher, Watcher


def run_side_by_side(jobs: Sequence[Job], at_once: int, *, resume: bool, watch: Watcher) -> list[str]:
    """Run them, so many at once; what was said of those that failed.

    A run that is refused (settings, data) ends all others too, with their checkpoints written, as Ctrl-C does.
    """
    if os.name != "posix":
        raise ConfigError("--jobs needs Linux or macOS; leave it out, and runs go one after the other")
    crew = _Crew(jobs, at_once, resume, watch)
    with _on_ctrl_c(crew.stop):
        crew.work()
    if crew.refusal is not None:
        raise ConfigError(crew.refusal)
    if crew.stopped:
        raise Interrupted("stopped by the user")
    return crew.failures


def environment(device: str, place: int) -> dict[str, str]:
    """Of a process. Where there are several GPUs it sees one of them, so that its "cuda" is that one."""
    count = torch.cuda.device_count() if device == "cuda" else 0
    if count < 2:
        return dict(os.environ)
    known = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(str(k) for k in range(count))
    return {**os.environ, "CUDA_VISIBLE_DEVICES": known.split(",")[place % count]}


class _Worker:
    """A process, and the job it has."""

    job: Job | None = None
    heard: RunWatcher

    def __init__(self, place: int, device: str) -> None:
        self.place = place
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115, closed when the process has ended
        self.pipe, told = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "cobo", "worker", str(told)],  # whatever lies in the folder we are in
            stdin=subprocess.PIPE, stdout=self._errors, stderr=self._errors, process_group=0, pass_fds=[told],
            env=environment(device, place),
        )  # fmt: skip
        os.close(told)
        assert self._process.stdin is not None
        self._stdin = self._process.stdin
        self._rest = b""

    def give(self, job: Job, resume: bool, heard: RunWatcher) -> None:
        self.job, self.heard = job, heard
        asked = {
            "settings": job.experiment.plain(), "method": job.method, "seed": job.seed, "folder": str(job.folder),
            "resume": resume,
        }  # fmt: skip
        with suppress(BrokenPipeError):  # one that has died is found at its other end
            self._stdin.write(json.dumps(asked).encode() + b"\n")
            self._stdin.flush()

    def hear(self) -> list[dict[str, Any]] | None:
        """What it has told; None when there will be no more."""
        told = os.read(self.pipe, 1 << 16)
        *lines, self._rest = (self._rest + told).split(b"\n")
        return [json.loads(line) for line in lines] if told else None

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> tuple[int, str]:
        """Nothing more to do: its exit code, and what it said at last."""
        with suppress(BrokenPipeError):
            self._stdin.close()
        os.close(self.pipe)
        with self._process, self._errors:
            code = self._process.wait()
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace").strip()
        last = said.splitlines()[-1] if said else ""
        if last.startswith("cobo: "):
            return code, last.removeprefix("cobo: ")
        how = f"its process ended with signal {-code}" if code < 0 else f"its process ended with exit code {code}"
        if not said or self.job is None:
            return code, how
        place = self.job.place if self.job.place.is_dir() else self.job.folder
        place.mkdir(parents=True, exist_ok=True)
        path = place / "stderr.txt"
        path.write_text(said + "\n", encoding="utf-8")
        return code, f"{how} ({last}); all that it said is in {path}"


class _Crew:
    """Workers, what is left to do, and what has become of what is done."""

    def __init__(self, jobs: Sequence[Job], at_once: int, resume: bool, watch: Watcher) -> None:
        self._waiting, self._at_once, self._resume, self._watch = deque(jobs), at_once, resume, watch
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()
        self.failures: list[str] = []
        self.refusal: str | None = None
        self.stopped = False

    def work(self) -> None:
        try:
            with self._selector:
                self._give()
                while self._workers:
                    for key, _ in self._selector.select():
                        self._hear(key.data)
                    self._give()
        finally:
            for worker in self._workers:  # only if something is wrong here
                worker.kill()
                worker.end()

    def stop(self) -> None:
        """Have all write their checkpoints and end; said twice, end at once."""
        self.stopped = True
        for worker in self._workers:
            worker.interrupt()

    def _give(self) -> None:
        """Work to all who have none, or else their leave."""
        for worker in [w for w in self._workers if w.job is None]:
            if not self._waiting or self.stopped:
                self._dismiss(worker)
            else:
                self._next(worker)
        while self._waiting and len(self._workers) < self._at_once and not self.stopped:
            place = min(set(range(self._at_once)) - {worker.place for worker in self._workers})
            worker = _Worker(place, self._waiting[0].experiment.device)
            self._workers.append(worker)
            self._selector.register(worker.pipe, selectors.EVENT_READ, worker)
            self._next(worker)
            if self.stopped:  # while it was started
                worker.interrupt()

    def _next(self, worker: _Worker) -> None:
        job = self._waiting.popleft()
        worker.give(job, self._resume, self._watch.begin(job.label))

    def _hear(self, worker: _Worker) -> None:
        told = worker.hear()
        if told is None:
            self._dead(worker)
        for message in told or []:
            if "ended" in message:
                self._ended(worker, message["failure"])
            else:
                worker.heard(message)

    def _ended(self, worker: _Worker, failure: str | None) -> None:
        assert worker.job is not None
        if failure is not None:
            self.failures.append(f"{worker.job.label} failed: {failure}")
        worker.job = None
        worker.heard.end()

    def _dead(self, worker: _Worker) -> None:
        """It has ended by itself: refused what it was given, was interrupted, or something unforeseen."""
        code, said = self._dismiss(worker)
        if code == 2 and self.refusal is None:
            self.refusal = said
        if code in (2, 130, -signal.SIGINT):
            if not self.stopped:
                self.stop()
        elif worker.job is not None:
            self._ended(worker, said)

    def _dismiss(self, worker: _Worker) -> tuple[int, str]:
        self._selector.unregister(worker.pipe)
        self._workers.remove(worker)
        return worker.end()


@contextmanager
def _on_ctrl_c(act: Callable[[], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def asked(number: int, frame: Any) -> None:
        act()

    before = signal.signal(signal.SIGINT, asked)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
