"""What runs will take, in a line or two before the first one starts."""

import os
from collections.abc import Sequence
from typing import NamedTuple

import torch

from cobo.engines import join
from cobo.experiments.job import Job
from cobo.federation import Federation
from cobo.training import checkpoint
from cobo.training.estimate import at_hand, in_words, memory, pace, seconds
from cobo.training.settings import Training

WORTH_SAYING = 60.0  # seconds


class Expected(NamedTuple):
    """What runs of one experiment take: one after the other, and the heaviest of them."""

    size: str
    device: torch.device
    gradient: float
    seconds: float
    rounds: int
    memory: int


def expect(federation: Federation, jobs: Sequence[Job], *, resume: bool) -> Expected:
    """Of runs that train this federation, as far as they are not done."""
    speed, time, rounds, needed = pace(federation), 0.0, 0, 0
    for job in jobs:
        method = job.experiment.method(job.method)
        training = Training(**job.experiment.training(job.method, job.seed))
        done = checkpoint.newest(job.place / "checkpoint") if resume else 0
        time += seconds(federation, method, training, speed, done)
        rounds += training.rounds - done
        needed = max(needed, memory(federation, method, training))
    size = f"{len(federation)} clients x {federation.blueprint.size:,} parameters"
    return Expected(size, federation.device, speed.gradient, time, rounds, needed)


def outlook(jobs: Sequence[Job], expected: Sequence[Expected], at_once: int = 1) -> list[str]:
    """Lines to show: size, memory and time of all these runs; none if short.

    So many runs at once take that much more memory, and less time if there is a core or a GPU for each, as do
    processes that share a run. More memory than a device has gets a line of its own, however short the runs are.
    """
    at_once = min(at_once, len(jobs))
    heaviest = max(expected, key=lambda those: those.memory)
    gpus = torch.cuda.device_count() if heaviest.device.type == "cuda" and heaviest.device.index is None else 0
    side_by_side = min(at_once, gpus or max(1, (os.cpu_count() or 1) // torch.get_num_threads()))
    time, needed = sum(those.seconds for those in expected) / (side_by_side * join().size), heaviest.memory * at_once
    rounds = sum(those.rounds for those in expected)
    names = dict.fromkeys(job.method for job in jobs)
    what = f"{jobs[0].experiment.experiment}, {next(iter(names)) if len(names) == 1 else f'{len(names)} methods'}"
    what += f", {len(jobs)} runs" if len(jobs) > 1 else ""
    what += f", {at_once} at once" if at_once > 1 else ""
    lines = []
    if time > WORTH_SAYING:
        lines.append(
            f"{what}: {heaviest.size}, about {needed / 1e9:.1f} GB; one gradient takes {heaviest.gradient:.2g} s here: "
            f"{rounds:,} round{'s' * (rounds > 1)} about {in_words(time)}"
        )
    there = at_hand(heaviest.device)
    together = heaviest.memory * -(-at_once // max(1, gpus))  # on one device
    if there is not None and together > there:
        lines.append(
            f"{what}: needs about {together / 1e9:.1f} GB, but {heaviest.device} has {there / 1e9:.1f} GB: take a "
            "smaller model, fewer clients, or a device that has more"
        )
    return lines
