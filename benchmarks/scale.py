"""What a CoBo round costs against the number of clients and of torchrun's processes: ratios, and how fast they grow.

    python benchmarks/scale.py [--most 1024] [--ranks 1,2,4] [--rounds 20]

Constant sampling (n pairs a round in expectation), a small MLP, groups of eight. Each number of processes is one start
of torchrun, which measures 8, 16, 32, ... clients. Time is the median over rounds of what the slowest process takes;
work is the processor time of all together, which a busy machine disturbs less; bytes are what all processes give each
other. W has found the groups, so that only pairs and a few groups cross the border between two processes; at "start"
everyone mixes with everyone, and all rows go everywhere. The exponent is the slope over the upper half of the
doublings, where fixed costs no longer hide it: at most 1.1 is what is promised, and more is a failure.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent))
from round import METHOD, clients

from cobo.compute.allocator import keep_freed_memory
from cobo.engines import Sharded, join
from cobo.engines.ranks import Ranks
from cobo.federation import Federation
from cobo.methods import State
from cobo.models import mlp

WARM = 3
STEEPEST = 1.1


def measure(n: int, rounds: int, *, settled: bool) -> dict[str, float]:
    """Seconds, processor seconds and bytes of a round."""
    ranks, people = join(), clients(n, (16,))
    model, options = mlp(16, [32], 10), {"batch_size": 32}
    if isinstance(ranks, Ranks):
        federation: Federation = Sharded(people, model, ranks=ranks, **options)
    else:
        federation = Federation(people, model, **options)
    X = nn.Parameter(METHOD.rows(federation))
    state = State(X, torch.optim.SGD([X], lr=0.01), rounds=1000, tensors=METHOD.start(federation))
    if settled:
        block = torch.tensor([[float(a.group == b.group) for b in people] for a in people])
        state.tensors |= {"weights": block, "evidence": 3 * block - 1}
    taken = []
    for state.round in range(WARM + rounds):
        if state.round == WARM:
            work, sent = time.process_time(), ranks.sent
        begun = time.perf_counter()
        METHOD.round(state, federation)
        taken.append(time.perf_counter() - begun)
    microseconds, travelled = ranks.total(round(1e6 * (time.process_time() - work)), ranks.sent - sent)
    slowest = np.max(ranks.collect(taken), axis=0) if isinstance(ranks, Ranks) else taken
    return {
        "seconds": float(np.median(slowest[WARM:])),
        "work": microseconds / 1e6 / rounds,
        "bytes": travelled / rounds,
    }


def worker(most: int, rounds: int) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    sizes = [8 << k for k in range((most // 8).bit_length())]
    found = {f"{n}": measure(n, rounds, settled=True) for n in sizes}
    found |= {f"{n} start": measure(n, rounds, settled=False) for n in sizes if n in (64, most)}
    if join().leads:
        print(json.dumps(found), flush=True)
    join().leave()
    os._exit(0)  # a thread of torch's that is still there when Python ends can bring the process down


def torchrun(ranks: int, most: int, rounds: int) -> dict[str, dict[str, float]]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += [__file__, "--worker", "--most", str(most), "--rounds", str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def exponent(sizes: list[int], values: list[float]) -> float:
    """The slope on log scales over the upper half."""
    upper = slice(len(sizes) // 2, None)
    return float(np.polyfit(np.log(sizes[upper]), np.log(values[upper]), 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--most", type=int, default=1024)
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--worker", action="store_true")
    given = parser.parse_args()
    if given.worker:
        return worker(given.most, given.rounds)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    print(f"commit {commit}, {platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}")
    alone: dict[str, dict[str, float]] = {}
    steep: list[str] = []
    for ranks in (int(part) for part in given.ranks.split(",")):
        found = torchrun(ranks, given.most, given.rounds)
        alone = alone or found
        sizes = [int(name) for name in found if name.isdigit()]
        first = found[str(sizes[0])]
        print(f"{ranks} process{'es' * (ranks > 1)}: against {sizes[0]} clients; against one process; bytes a round")
        for name, at in found.items():
            to_first, to_alone = (
                f"time x {at['seconds'] / base['seconds']:.2f}, work x {at['work'] / base['work']:.2f}"
                for base in (first, alone[name])
            )
            print(f"  n = {name:10s} {to_first}; {to_alone}; {at['bytes'] / 1e3:,.1f} kB")
        for what in ("seconds", "work", *(["bytes"] if ranks > 1 else [])):
            slope = exponent(sizes, [found[str(n)][what] for n in sizes])
            print(f"  {what} as n^{slope:.2f}")
            steep += [f"{what} of {ranks}"] * (slope > STEEPEST)
    if steep:
        sys.exit(f"more than n^{STEEPEST}: {', '.join(steep)}")


if __name__ == "__main__":
    main()
