"""What the runs of an experiment will take, in a line or two before the first one starts."""

from collections.abc import Sequence
from pathlib import Path

import torch

from cobo.compute.task import Task
from cobo.experiments.experiment import Experiment
from cobo.training import checkpoint
from cobo.training.estimate import at_hand, in_words, memory, pace, seconds
from cobo.training.fit import federate
from cobo.training.settings import Training

WORTH_SAYING = 60.0  # seconds


def outlook(
    experiment: Experiment, runs: Sequence[tuple[str, int]], folder: Path, *, resume: bool, at_once: int = 1
) -> list[str]:
    """Lines to show: size, memory and time of these runs (method, seed) as far as they are not done; none if short.

    So many runs at once take that much more memory, and less time if there is a core for each. More memory than there
    is gets a line of its own, however short the runs are.
    """
    if experiment.threads is not None:
        torch.set_num_threads(experiment.threads)
    places = {(method, seed): folder / method / f"seed-{seed}" for method, seed in runs}
    left = [run for run, place in places.items() if not (resume and (place / "result.json").exists())]
    if not left:
        return []
    parts = experiment.parts(left[0][1])
    settings = {method: Training(**experiment.training(method, seed)) for method, seed in left}
    federation = federate(parts.clients, parts.model, Task(parts.loss), settings[left[0][0]])
    speed, time, rounds, needed = pace(federation), 0.0, 0, 0
    for method, seed in left:
        chosen, training = experiment.method(method), settings[method]
        done = checkpoint.newest(places[method, seed] / "checkpoint") if resume else 0
        time += seconds(federation, chosen, training, speed, done)
        rounds += training.rounds - done
        needed = max(needed, memory(federation, chosen, training))
    at_once = min(at_once, len(left))
    time, needed = time / at_once, needed * at_once
    names = dict.fromkeys(method for method, _ in left)
    what = next(iter(names)) if len(names) == 1 else f"{len(names)} methods"
    what += f", {len(left)} runs" if len(left) > 1 else ""
    what += f", {at_once} at once" if at_once > 1 else ""
    lines = []
    if time > WORTH_SAYING:
        lines.append(
            f"{experiment.experiment}, {what}: {len(federation)} clients x {federation.blueprint.size:,} parameters, "
            f"about {needed / 1e9:.1f} GB; one gradient takes {speed.gradient:.2g} s here: "
            f"{rounds:,} round{'s' * (rounds > 1)} about {in_words(time)}"
        )
    there = at_hand(federation.device)
    if there is not None and needed > there:
        lines.append(
            f"{experiment.experiment}, {what}: needs about {needed / 1e9:.1f} GB, but {federation.device} has "
            f"{there / 1e9:.1f} GB: take a smaller model, fewer clients, or a device that has more"
        )
    return lines
