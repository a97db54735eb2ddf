"""Why CoBo's weights are late on images, and what the parts of its burst of selection are worth.

    python benchmarks/selection.py signals cross-silo-small
    python benchmarks/selection.py variants cross-silo-small

`signals`: the cosine of two clients' gradients at their midpoint, in a group and across groups, on one batch each, on
eight batches and on all samples, while models train together (W = 1) or each alone. `variants`: the preset, and the
preset with one part of its burst taken back; how soon the groups are right for good, and where accuracy ends. Seeds
from 100 on, which no table reports; judged by validation samples, 20 % of the training samples.
"""

import argparse
from collections.abc import Sequence
from statistics import fmean, stdev

import numpy as np
import torch
from origin import origin

from cobo import fit
from cobo.collaboration import mixing
from cobo.compute.allocator import keep_freed_memory
from cobo.compute.task import Task
from cobo.experiments import EXPERIMENTS, Experiment, load_experiment
from cobo.experiments.tune import VALIDATION
from cobo.federation import Federation
from cobo.federation.augment import AUGMENTATIONS
from cobo.methods import CoBo
from cobo.report.milestones import groups_right_from
from cobo.training.result import Result

STAGES = (0, 20, 60, 120, 200, 300)
MOST = 60  # pairs of each kind
REPEATS = 8

PARTS = ("ask", "rate", "switch", "turns", "gamma", "slack", "ramp")
# With 8 clients and 4,000 rounds, time_rate = 250 goes on without a jump at half of the rounds, as the default does.
DEFAULTS = [*(f"cobo.{name}={CoBo.model_fields[name].default}" for name in PARTS), "cobo.time_rate=250"]

# What `rate` and `time_rate` have to be for the same number of gradients without `ask`.
VARIANTS: dict[str, dict[str, list[str]]] = {
    "cross-silo-small": {
        "the preset": [],
        "one batch a question, eight times as many questions": ["cobo.ask=1", "cobo.rate=1.28", "cobo.time_rate=0.008"],
        "turns drawn one by one": ["cobo.turns=random"],
        "weights move slowly (gamma 0.05, the default), more are asked": ["cobo.gamma=0.05"],
        "no burst: the same gradients, evenly over all rounds": ["cobo.sampling=constant", "cobo.rate=0.0162"],
        "the pull is there at once": ["cobo.ramp=0.0"],
        "less is remembered (slack 4)": ["cobo.slack=4.0"],
        "little is remembered (slack 1, the default)": ["cobo.slack=1.0"],
        "CoBo's defaults, with this learning rate and rho": DEFAULTS,
    },
    "cross-device-small": {
        "the preset": [],
        "turns drawn one by one": ["cobo.turns=random"],
        "weights move slowly (gamma 0.05, the default)": ["cobo.gamma=0.05"],
        "no burst: the same gradients, evenly over all rounds": ["cobo.sampling=constant", "cobo.rate=0.12"],
    },
}  # fmt: skip


def some_pairs(groups: Sequence[object]) -> tuple[np.ndarray, np.ndarray]:
    """Pairs [p, 2] inside groups and across, at most `MOST` of each, and which are inside."""
    i, j = np.triu_indices(len(groups), 1)
    inside = np.array([groups[a] == groups[b] for a, b in zip(i, j, strict=True)])
    random = np.random.default_rng(0)
    kinds = [np.flatnonzero(inside), np.flatnonzero(~inside)]
    chosen = np.concatenate([random.permutation(kind)[:MOST] for kind in kinds])
    return np.stack([i[chosen], j[chosen]], axis=1), inside[chosen]


def signals(experiment: Experiment, seed: int) -> None:
    """A table of cosines: mean and standard deviation over pairs and batches."""
    method, lr = experiment.method("cobo"), experiment.training("cobo", seed)["lr"]
    print("| trained | round | one batch: inside | across | 8 batches: inside | across | all: inside | across |")
    print("|---|---|---|---|---|---|---|---|")
    for together in (True, False):
        parts = experiment.parts(seed)
        federation = Federation(
            parts.clients, parts.model, task=Task(parts.loss), batch_size=experiment.batch_size, seed=seed,
            augment=AUGMENTATIONS[experiment.augment],
        )  # fmt: skip
        pairs, inside = some_pairs(federation.groups)
        models = torch.nn.Parameter(federation.start)
        optimizer = torch.optim.SGD([models], lr=lr, momentum=experiment.momentum)
        W = torch.full((len(federation), len(federation)), float(together))
        for t in range(max(STAGES) + 1):
            if t in STAGES:
                cells = []
                for batches, repeats in ((1, REPEATS), (8, 2), (None, 1)):
                    asked = [
                        federation.products(models.data, pairs, 10**6 + k, batches=batches) for k in range(repeats)
                    ]
                    c = np.stack([(p.inner / (p.norm_i * p.norm_j)).numpy() for p in asked])
                    cells += [f"{c[:, kind].mean():+.2f} ± {c[:, kind].std():.2f}" for kind in (inside, ~inside)]
                print(f"| {'together' if together else 'alone'} | {t} | {' | '.join(cells)} |", flush=True)
            models.grad = federation.gradients(models.data, round=t).rows
            mixing.pull_together(models.data, W, lr * method.rho, pull=method.pull, step=method.mixing)
            optimizer.step()


def right_from(result: Result) -> str:
    """The share of the rounds (percent) after which the groups of W are right for good."""
    run = {"names": result.names, "true_groups": result.true_groups, "method": result.method}
    first = groups_right_from(run, result.snapshots)
    return "-" if first is None else f"{100 * first / result.training['rounds']:.1f}"


def variants(name: str, seeds: Sequence[int], rounds: int | None) -> None:
    print("| variant | accuracy % | gradients / Local's | groups right from (% of rounds), each seed |")
    print("|---|---|---|---|")
    for variant, changes in VARIANTS[name].items():
        more = [] if rounds is None else [f"rounds={rounds}"]
        experiment = load_experiment(name, EXPERIMENTS, [*changes, *more])
        results = []
        for seed in seeds:
            parts = experiment.parts(seed, validation=VALIDATION)
            training = experiment.training("cobo", seed) | {"evaluate_every": experiment.rounds}
            method = experiment.method("cobo")
            results.append(fit(parts.clients, model=parts.model, loss=parts.loss, method=method, **training))
        scores = [result.history[-1]["accuracy"] for result in results]
        alone = experiment.rounds * len(results[0].names)
        cost = fmean(result.history[-1]["gradients"] for result in results) / alone
        right = ", ".join(right_from(result) for result in results)
        spread = f" ± {stdev(scores):.1f}" if len(scores) > 1 else ""
        print(f"| {variant} | {fmean(scores):.1f}{spread} | {cost:.2f} | {right} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["signals", "variants"])
    parser.add_argument("experiment", choices=list(VARIANTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[100, 101, 102])
    parser.add_argument("--rounds", type=int)
    options = parser.parse_args()
    keep_freed_memory()
    experiment = load_experiment(options.experiment, EXPERIMENTS)
    torch.set_num_threads(experiment.threads)
    print(*(f"{key}: {value}" for key, value in origin().items()), sep=", ", end="\n\n")
    if options.what == "signals":
        signals(experiment, options.seeds[0])
    else:
        variants(options.experiment, options.seeds, options.rounds)


if __name__ == "__main__":
    main()
