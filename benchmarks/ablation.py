"""What each departure of CoBo's defaults from the paper is worth on `digits`: one taken back at a time.

    python benchmarks/ablation.py [--seeds 10 11 12 13 14] [--samples 50 150] [--only default ...]

Oracle recovery = (CoBo - Local) / (Oracle - Local), of mean accuracies over the seeds. The paper's variants get the
rho and gamma that were best for them on other seeds (100 to 103) in a small search.
"""

import argparse
import os
import platform
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from statistics import fmean, stdev

import torch

import cobo
from cobo.collaboration import graph
from cobo.experiments import EXPERIMENTS, load_experiment

VARIANTS: dict[str, dict[str, object]] = {
    "default": {},
    "correction = 0": {"correction": 0.0},
    "solver = projected": {"solver": "projected"},
    "signal = inner (gamma 0.02)": {"signal": "inner", "gamma": 0.02},
    "pull = sum (rho 1)": {"pull": "sum", "rho": 1.0},
    "mixing = implicit": {"mixing": "implicit"},
    "pairs = ordered": {"pairs": "ordered"},
    "sampling = constant": {"sampling": "constant"},
    "sampling = every": {"sampling": "every"},
    "paper (rho 1, gamma 0.01)": {"paper": True, "rho": 1.0, "gamma": 0.01},
    "paper, published code's pairs": {"paper": True, "rho": 1.0, "gamma": 0.01, "pairs": "symmetric"},
}


def once(job: tuple[str, int, int]) -> tuple[float, float | None, float | None, int]:
    name, samples, seed = job
    torch.set_num_threads(1)
    chosen = [f"samples={samples}", "cobo.lr=0.03", "cobo.rho=5.0", "cobo.gamma=0.05"]  # before `cobo tune` was there
    experiment = load_experiment("digits", EXPERIMENTS, chosen)
    if name in ("local", "oracle"):
        method = experiment.method(name)
    else:
        changes = dict(VARIANTS[name])
        method = (
            cobo.CoBo.paper(**changes) if changes.pop("paper", False) else experiment.method("cobo").replace(**changes)
        )
    parts = experiment.build(seed)
    training = experiment.training("cobo", seed) | {"evaluate_every": 1000}
    result = cobo.fit(parts.clients, model=parts.model, loss=parts.loss, method=method, **training)
    last = result.history[-1]
    if result.weights is None:
        return last["accuracy"], None, None, last["gradients"]
    scores = (f(result.weights, result.true_groups) for f in (graph.weights_error, graph.groups_score))
    return last["accuracy"], *scores, last["gradients"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11, 12, 13, 14])
    parser.add_argument("--samples", type=int, nargs="+", default=[150, 50])
    parser.add_argument("--only", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    options = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    print("# What each departure from the paper is worth on digits\n")
    print(f"Command: `python benchmarks/ablation.py {' '.join(sys.argv[1:])}`".rstrip() + f", commit {commit},")
    print(f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, seeds {options.seeds}.")
    print(
        "8 clients, 4 groups of 2 with permuted labels, MLP 64-64-10, 1,000 rounds, lr 0.03, momentum 0.9, batch 32.\n"
    )
    names = ["local", "oracle", *options.only]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for samples in options.samples:
            jobs = [(name, samples, seed) for name in names for seed in options.seeds]
            done = dict(zip(jobs, pool.map(once, jobs), strict=True))
            print(f"## {samples} samples per client\n")
            print("| variant | accuracy % | recovery % | W error | groups right | gradients |")
            print("|---|---|---|---|---|---|")
            mean = {n: fmean(done[n, samples, s][0] for s in options.seeds) for n in names}
            for name in names:
                runs = [done[name, samples, s] for s in options.seeds]
                spread = stdev(r[0] for r in runs)
                recovery = 100 * (mean[name] - mean["local"]) / (mean["oracle"] - mean["local"])
                error = "-" if runs[0][1] is None else f"{fmean(r[1] for r in runs):.3f}"
                right = "-" if runs[0][2] is None else f"{sum(r[2] == 1 for r in runs)} of {len(runs)}"
                gradients = round(fmean(r[3] for r in runs))
                print(
                    f"| {name} | {mean[name]:.1f} ± {spread:.1f} | {recovery:.0f} | {error} | {right} | {gradients:,} |"
                )
            print(flush=True)


if __name__ == "__main__":
    main()
