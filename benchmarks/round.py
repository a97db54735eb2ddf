"""What a CoBo round costs beside its gradients: ratios, all taken in one run.

    python benchmarks/round.py

A round is compared with the same number of gradients, computed right after it, in two ways: *bare*, by the faster
executor on models and batches that lie ready; and *asked*, `Federation.gradients` on models that lie ready, which draws
the batches too. Both deliver rows [m, d]. W is all ones ("start": everyone mixes with everyone, the dearest case) or
has settled into the true groups. Ratios are medians over repetitions, so that a noisy machine does little harm.
Also: the peak of memory beyond X, and how many times faster than the plain-Python version in tests/plain.py.
The small image experiments are measured with their own settings, in the burst of selection, where CIFAR-100 is present.
"""

import gc
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from plain import PlainCoBo

import cobo
from cobo import draws
from cobo.compute.allocator import keep_freed_memory
from cobo.compute.executor import Choice
from cobo.compute.looped import Looped
from cobo.compute.vectorised import Vectorised
from cobo.data import DATA
from cobo.experiments import EXPERIMENTS, load_experiment
from cobo.federation import Federation
from cobo.federation.augment import AUGMENTATIONS, Augmentation
from cobo.methods import State
from cobo.models import cnn, mlp

ROUNDS = 60
GROUP = 8
METHOD = cobo.CoBo(sampling="constant")

Model = nn.Module | Callable[[], nn.Module]


def clients(n: int, shape: tuple[int, ...]) -> list[cobo.Client]:
    """Groups of eight that label the same clusters differently."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(10, *shape, generator=generator)
    people = []
    for k in range(n):
        y = torch.randint(0, 10, (200,), generator=generator)
        x = centres[y] + torch.randn(200, *shape, generator=generator)
        people.append(cobo.Client(f"client{k}", train=(x, (y + k // GROUP) % 10), group=k // GROUP))
    return people


def timed(action: Callable[[], object]) -> float:
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def peak_beyond(action: Callable[[], object]) -> int:
    """Bytes by which the resident set peaks above where it stood before (Linux: the high-water mark is reset)."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    action()
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 - before


def memory() -> None:
    """Peak beyond X and the data in the first rounds, before any freed memory is kept."""

    def rounds(federation: Federation, X: nn.Parameter) -> None:
        state = State(X, torch.optim.SGD([X], lr=0.01), rounds=1000, tensors=METHOD.start(federation))
        for state.round in range(5):
            METHOD.round(state, federation)

    few, many = (Federation(clients(n, (784,)), mlp(784, [64], 10), batch_size=32) for n in (2, 80))
    rounds(few, nn.Parameter(few.start))  # so that the libraries have what they need for themselves
    X = nn.Parameter(many.start)
    multiple = peak_beyond(lambda: rounds(many, X)) / (X.numel() * 4)
    print(f"MLP 784-64-10, n = 80: peak memory beyond X {multiple:.2f} x n d 4 bytes")


class Case:
    """One model and number of clients, with everything that is timed."""

    def __init__(
        self,
        people: list[cobo.Client],
        model: Model,
        batch: int,
        method: cobo.CoBo,
        executor: Choice,
        augment: Augmentation | None,
    ) -> None:
        self.people, self.method = people, method
        self.federation = Federation(people, model, batch_size=batch, executor=executor, augment=augment)
        n = len(people)
        X = nn.Parameter(self.federation.start)
        tensors = self.method.start(self.federation)
        self.state = State(X, torch.optim.SGD([X], lr=0.01), rounds=1000, tensors=tensors)
        who = np.arange(10 * n) % n
        keys = draws.combine(self.federation.keys("batch")[who], 0)
        self.ready = (self.state.X[torch.from_numpy(who)], who, keys, self.federation._train.draw(who, keys, batch))
        self.out = torch.empty_like(self.ready[0])
        layout = self.federation._train.layout
        self.executors = {kind.name: kind(self.federation.blueprint, layout) for kind in (Looped, Vectorised)}

    def settle(self) -> None:
        block = torch.tensor([[float(a.group == b.group) for b in self.people] for a in self.people])
        self.state.tensors |= {"weights": block, "evidence": 3 * block - 1}

    def round(self) -> int:
        before = self.federation.computed
        self.method.round(self.state, self.federation)
        self.state.round += 1
        return self.federation.computed - before

    def bare(self, kind: str, count: int) -> None:
        rows, _, keys, fields = self.ready
        for a in range(0, count, self.federation.models_at_once):
            part = slice(a, min(a + self.federation.models_at_once, count))
            given = (rows[part], tuple(f[part] for f in fields), {}, keys[part])
            torch.cat(self.executors[kind].gradients(*given)[0], 1, out=self.out[part])

    def asked(self, count: int) -> None:
        rows, who, _, _ = self.ready
        self.federation.gradients(rows[:count], who[:count], out=self.out[:count], track=False)


def compare(case: Case, kind: str) -> tuple[float, float, float]:
    to_bare, to_asked, seconds = [], [], []
    for k in range(ROUNDS + 5):
        begun = time.perf_counter()
        count = case.round()
        taken = time.perf_counter() - begun
        bare, asked = timed(lambda c=count: case.bare(kind, c)), timed(lambda c=count: case.asked(c))
        if k >= 5:
            to_bare.append(taken / bare)
            to_asked.append(taken / asked)
            seconds.append(taken)
    return float(np.median(to_bare)), float(np.median(to_asked)), float(np.median(seconds))


def report(
    name: str,
    people: list[cobo.Client],
    model: Model,
    batch: int,
    method: cobo.CoBo = METHOD,
    *,
    executor: Choice = "auto",
    augment: Augmentation | None = None,
    plain: bool = False,
) -> None:
    n, case = len(people), Case(people, model, batch, method, executor, augment)
    print(f"{name}: n = {n}, d = {case.federation.blueprint.size:,}, batch {batch}")
    per = {kind: np.median([timed(lambda k=kind: case.bare(k, n)) for _ in range(9)]) / n for kind in case.executors}
    kind = min(per, key=per.get)
    print(
        f"  bare gradient: looped {1e3 * per['looped']:.3f} ms, vectorised {1e3 * per['vectorised']:.3f} ms;", end=" "
    )
    print(f"{case.federation.chosen.executor.name} is taken")
    for when in ("start", "settled"):
        if when == "settled":
            case.settle()
        to_bare, to_asked, seconds = compare(case, kind)
        print(f"  W at {when}: round / bare gradients {to_bare:.2f}, round / asked gradients {to_asked:.2f}")
    if plain:
        loss = nn.functional.cross_entropy
        slow = PlainCoBo(people, model, loss, rho=0.01, gamma=0.01, lr=0.1, batch_size=batch, seed=0)
        waited = float(np.median([timed(lambda t=t: slow.round(t)) for t in range(3)]))
        print(f"  plain Python round / round: {waited / seconds:.1f}")


def main() -> None:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    print(f"commit {commit}, {platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}")
    torch.manual_seed(0)
    memory()
    keep_freed_memory()
    report("MLP 784-64-10", clients(80, (784,)), mlp(784, [64], 10), 32, plain=True)
    report("small CNN 28x28", clients(8, (1, 28, 28)), cnn(1, 10), 32)
    for name in ("cross-silo-small", "cross-device-small") if DATA["cifar100"].locate() else ():
        experiment = load_experiment(name, EXPERIMENTS)
        torch.set_num_threads(experiment.threads)
        parts = experiment.parts(seed=100)
        method, augment = experiment.method("cobo"), AUGMENTATIONS[experiment.augment]
        chosen = {"method": method, "executor": experiment.executor, "augment": augment}
        report(name, parts.clients, parts.model, experiment.batch_size, **chosen)


if __name__ == "__main__":
    main()
