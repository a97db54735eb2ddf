"""What runs will take, said before they start: time by trying a gradient and an evaluation, memory by counting."""

import os
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from cobo.federation import Federation
from cobo.federation.samples import Samples, held
from cobo.methods import Method
from cobo.training.settings import Training

PROGRAM = 300_000_000  # bytes of Python, torch and what else is loaded


class Pace(NamedTuple):
    """How long one gradient on a batch, and the evaluation of one test sample, take here, in seconds."""

    gradient: float
    sample: float


def pace(federation: Federation) -> Pace:
    """Measured; of the federation nothing changes."""
    device = federation.device
    return Pace(_least(federation.rehearse, device), _least(federation.rehearse_evaluation, device))


def _least(rehearse: Callable[[], int], device: torch.device, most: int = 3, enough: float = 1.0) -> float:
    """The shortest time for one of those that a rehearsal is of; the first may have had to warm up."""
    times: list[float] = []
    begun = time.perf_counter()
    while len(times) < most and time.perf_counter() - begun < enough:
        start = time.perf_counter()
        count = rehearse()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if not count:
            return 0.0
        times.append((time.perf_counter() - start) / count)
    return min(times)


def seconds(federation: Federation, method: Method, training: Training, speed: Pace, done: int = 0) -> float:
    """How long a run takes from round `done` on: its gradients and its evaluations."""
    left = training.rounds - done
    gradients = left * method.gradients_per_round(federation, training.rounds)
    judged = sum(len(client.test) for client in federation.clients if client.test is not None)
    evaluations = -(-left // training.cadence) + (done == 0)
    return gradients * speed.gradient + evaluations * judged * speed.sample


def memory(federation: Federation, method: Method, training: Training) -> int:
    """Bytes on the device: models, their gradients and frozen base, the optimiser's memory, activations, samples.

    A round takes what the method says, the models that are handed out at the end no more; checkpoints take none.
    Activations count twice, for what lies between layers on the way back. Measured beside it in docs/images.md.
    """
    blueprint = federation.blueprint
    remembered = 2 if training.optimizer == "adamw" else int(training.momentum > 0)
    rows = (2 + remembered) * method.trained(federation) + method.beside(federation)
    if federation.chosen.executor.name == "looped":
        rows += 2 * federation.models_at_once
    samples = _bytes([client.train for client in federation.clients])  # all of them, behind one index
    if federation.device.type == "cpu":  # the clients' own are there, too, and the program
        samples += samples + _bytes([client.test for client in federation.clients]) + PROGRAM
    models = rows * blueprint.size * blueprint.start.element_size() + blueprint.frozen
    return models + 2 * federation.activations(method.batches) + samples


def _bytes(samples: Sequence[Samples | None]) -> int:
    """Of samples that are at hand, each counted once."""
    fields = [f for s in samples if s is not None for f in held(s)]
    return sum({f.data_ptr(): f.nbytes for f in fields}.values())


def at_hand(device: torch.device) -> int | None:
    """The bytes of memory of a device, if that can be found out."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def in_words(seconds: float) -> str:
    """A time for people.

    >>> in_words(200), in_words(10_000), in_words(400_000), in_words(2e7)
    ('3 min', '2.8 h', '111 h', '231 days')
    """
    hours = seconds / 3600
    if hours < 1.5:
        return f"{max(1, round(seconds / 60))} min"
    if hours >= 240:
        return f"{hours / 24:,.0f} days"
    return f"{hours:.1f} h" if hours < 10 else f"{hours:.0f} h"
