"""Who helps whom: every pair of the four languages trained together, beside each alone.

    python benchmarks/partners.py
    python benchmarks/partners.py corpus=libreoffice-help cobo.rho=50 --of catalan

A pair is CoBo's outer problem with W held at 1: the learning rate, rounds, text and pull that CoBo has in
`language-small`, but for what is set otherwise, and nobody is asked; who is alone has Local's learning rate. What a
client's perplexity is beside each partner is what its weights ought to say, whatever gradients say. Two more tables
need no training: everyone's text read with the adapter that another trained alone, which is what one text teaches about
another, and with the midpoint of both adapters. Judged by validation text, seed 1000, which no comparison reports.
`--of` leaves out pairs without it.
"""

import argparse
from itertools import combinations

import torch
from origin import origin
from torch import nn

from cobo import Local, fit
from cobo.compute.allocator import keep_freed_memory
from cobo.compute.task import Task
from cobo.experiments import EXPERIMENTS, load_experiment
from cobo.experiments.language import LANGUAGES
from cobo.experiments.tune import VALIDATION
from cobo.federation import Federation

SEED = 1000
Found = dict[tuple[str, str], float]


def show(title: str, names: list[str], found: Found) -> None:
    print(f"{title}\n\n| | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
    for one in names:
        cells = [f"{found[one, other]:.2f}" if (one, other) in found else "" for other in names]
        print(f"| {one} | {' | '.join(cells)} |")
    print(flush=True)


def trained(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad])


def without_training(federation: Federation, X: torch.Tensor) -> tuple[Found, Found]:
    """Everyone's text with everyone's adapter, and with the mean of that and its own."""
    names = federation.names
    other, middle = {}, {}
    for turn in range(len(names)):
        columns = names[turn:] + names[:turn]
        for found, rows in ((other, X.roll(-turn, 0)), (middle, (X + X.roll(-turn, 0)) / 2)):
            for name, column, score in zip(names, columns, federation.evaluate(rows), strict=True):
                found[name, column] = score["perplexity"]
    return other, middle


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--of", choices=list(LANGUAGES))
    options = parser.parse_args()
    keep_freed_memory()
    experiment = load_experiment("language-small", EXPERIMENTS, options.changes)
    torch.set_num_threads(experiment.threads)
    parts = experiment.parts(SEED, validation=VALIDATION)
    preset = experiment.method("cobo")
    # Nobody is asked, and W rests at 1.
    together = preset.replace(domain="box", self_weight=False, gamma=0.0, sampling="time", time_rate=1e-9, wait=0.0)
    print(*(f"{key}: {value}" for key, value in origin().items()), sep=", ", end="\n\n")
    names = [client.name for client in parts.clients]
    found: Found = {}
    for who in [parts.clients, *map(list, combinations(parts.clients, 2))]:
        if options.of not in (None, *(client.name for client in who)):
            continue
        method = together if len(who) == 2 else Local()
        training = experiment.training(method.name, SEED) | {"evaluate_every": experiment.rounds}
        result = fit(who, model=parts.model, loss=parts.loss, method=method, **training)
        partners = names if len(who) > 2 else reversed(result.names)  # who is alone is its own
        for name, partner, score in zip(result.names, partners, result.history[-1]["client_perplexity"], strict=True):
            found[name, partner] = score
        if len(who) > 2:
            batch, precision = experiment.batch_size, training["precision"]
            federation = Federation(who, parts.model, task=Task(parts.loss), batch_size=batch, precision=precision)
            X = torch.stack([trained(result.models[name]) for name in names])
            other, middle = without_training(federation, X)
    of = f"{experiment.corpus}, {experiment.rounds} rounds, perplexity of each row's text"
    show(f"{of}: trained with the column's client, rho {preset.rho:g} (alone on the diagonal)", names, found)
    show(f"{of}: with the adapter that the column's client trained alone", names, other)
    show(f"{of}: with the midpoint of both adapters, each trained alone", names, middle)


if __name__ == "__main__":
    main()
