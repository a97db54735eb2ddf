"""What a CoBo round costs beside its gradients: ratios, all taken in one run.

    python benchmarks/round.py

For each case: the time of a CoBo round over the time of the same number of bare gradients (models and batches
lying ready, the faster executor), the peak of memory beyond X in multiples of n d 4 bytes, and for the MLP how many
times faster the round is than the plain-Python version in tests/plain.py. Medians of interleaved repetitions.
"""

import gc
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from plain import PlainCoBo

import cobo
from cobo import draws
from cobo.compute.looped import Looped
from cobo.compute.vectorised import Vectorised
from cobo.federation import Federation
from cobo.methods import State
from cobo.models import cnn, mlp

ROUNDS = 30


def clients(n: int, shape: tuple[int, ...]) -> list[cobo.Client]:
    generator = torch.Generator().manual_seed(0)
    return [
        cobo.Client(
            f"client{k}",
            train=(torch.randn(200, *shape, generator=generator), torch.randint(0, 10, (200,), generator=generator)),
        )
        for k in range(n)
    ]


def median_ratio(over: list[float], under: list[float]) -> float:
    return float(np.median(over) / np.median(under))


def timed(action) -> float:
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_beyond(action) -> int:
    """Bytes by which the resident set peaks above where it stood before (Linux: the high-water mark is reset)."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = resident()
    action()
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 - before


def case(name: str, model: nn.Module, n: int, shape: tuple[int, ...], batch: int, plain: bool) -> None:
    people = clients(n, shape)
    method = cobo.CoBo(sampling="constant", rho=0.5, gamma=0.01)
    federation = Federation(people, model, batch_size=batch)
    X = nn.Parameter(federation.start)
    state = State(X, torch.optim.SGD([X], lr=0.1), rounds=1000, tensors=method.start(federation))

    def cobo_round() -> None:
        method.round(state, federation)
        state.round += 1

    first = peak_beyond(cobo_round)
    before = federation.computed
    cobo_round()
    computed = federation.computed - before

    rows = state.X[torch.randint(0, n, (3 * n,))].contiguous()
    keys = draws.combine(federation.keys("batch")[np.arange(3 * n) % n], 0)
    fields = federation._batch(np.arange(3 * n) % n, keys)
    executors = [kind(federation.blueprint, federation._train.layout) for kind in (Looped, Vectorised)]
    out = torch.empty_like(rows)

    def bare(executor, count: int) -> None:
        for a in range(0, count, federation.models_at_once):
            part = slice(a, min(a + federation.models_at_once, count))
            pieces, _ = executor.gradients(rows[part], tuple(f[part] for f in fields), {}, keys[part])
            torch.cat(pieces, 1, out=out[part])

    times: dict[str, list[float]] = {"round": [], "looped": [], "vectorised": []}
    per_gradient = []
    for executor in executors:
        bare(executor, n)
    for _ in range(ROUNDS):
        before = federation.computed
        seconds = timed(cobo_round)
        computed = federation.computed - before
        times["round"].append(seconds / computed)
        for executor in executors:
            count = min(computed, 3 * n)
            times[executor.name].append(timed(lambda e=executor, c=count: bare(e, c)) / count)
        per_gradient.append(seconds)
    faster = min(("looped", "vectorised"), key=lambda k: np.median(times[k]))
    print(f"{name}: n = {n}, d = {federation.blueprint.size:,}, batch {batch}")
    print(f"  executor by rule {federation.chosen.executor.name}, faster here {faster}")
    for kind in ("looped", "vectorised"):
        print(f"  bare gradient, {kind}: {1e3 * np.median(times[kind]):.3f} ms")
    print(f"  round / same number of bare gradients: {median_ratio(times['round'], times[faster]):.2f}")
    print(f"  peak memory beyond X: {first / (n * federation.blueprint.size * 4):.2f} x n d 4 bytes")
    if plain:
        slow = PlainCoBo(
            people, model, nn.functional.cross_entropy, rho=0.01, gamma=0.01, lr=0.1, batch_size=batch, seed=0
        )
        seconds = [timed(lambda t=t: slow.round(t)) for t in range(3)]
        print(f"  plain Python round / round: {median_ratio(seconds, per_gradient):.1f}")


def main() -> None:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    print(f"commit {commit}, {platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}")
    torch.manual_seed(0)
    case("MLP 784-64-10", mlp(784, [64], 10), 80, (784,), 32, plain=True)
    case("small CNN 28x28", cnn(1, 10), 8, (1, 28, 28), 32, plain=False)


if __name__ == "__main__":
    main()
