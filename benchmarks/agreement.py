"""How far languages agree: gradients of four texts at one model that all share, as it is trained.

    python benchmarks/agreement.py
    python benchmarks/agreement.py corpus=libreoffice-help --rounds 0

For each number of rounds, everyone trains one model (FedAvg, the learning rate of `language-small`, no schedule); there
the gradient of each text is taken on 32 batches of its own. Of each pair: the inner product, as the paper's selection
has it; the cosine of the gradients on a batch each (with its spread), on eight and on all, which is what
`CoBo(ask=...)` sees; and the cosine without noise, the product over what batches of one text agree by themselves.
Training text only, seed 1000, which no comparison reports.
"""

import argparse
from itertools import combinations

import torch
from origin import origin
from torch import Tensor, nn

from cobo import fit
from cobo.compute.allocator import keep_freed_memory
from cobo.experiments import EXPERIMENTS, load_experiment
from cobo.experiments.tune import VALIDATION

BATCHES = 32
SEED = 1000


def shared(experiment, rounds: int) -> tuple[list, nn.Module]:
    """The clients, and the model that they have trained together."""
    parts = experiment.parts(SEED, validation=VALIDATION)
    if not rounds:
        torch.manual_seed(0)
        return parts.clients, parts.model()
    training = experiment.training("fedavg", SEED) | {"rounds": rounds, "evaluate_every": rounds}
    result = fit(parts.clients, model=parts.model, loss=parts.loss, method=experiment.method("fedavg"), **training)
    return parts.clients, result.models[parts.clients[0].name]


def gradients(model: nn.Module, tokens: Tensor, context: int, batch: int, halved: bool, seed: int) -> Tensor:
    """[BATCHES, d]: on windows side by side, drawn without replacement."""
    trained = [p for p in model.parameters() if p.requires_grad]
    order = torch.randperm((len(tokens) - 1) // context, generator=torch.Generator().manual_seed(seed))
    rows = []
    for starts in (order[: BATCHES * batch] * context).split(batch):
        windows = tokens[starts[:, None] + torch.arange(context + 1)].long()
        with torch.autocast("cpu", torch.bfloat16, enabled=halved):
            logits = model(windows[:, :-1]).logits
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].flatten())
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, trained)]))
    return torch.stack(rows)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return nn.functional.cosine_similarity(a, b, dim=-1)


def row(name: str, a: Tensor, b: Tensor) -> str:
    one = nn.functional.normalize(a) @ nn.functional.normalize(b).T
    eight = cosine(a.unflatten(0, (-1, 8)).mean(1), b.unflatten(0, (-1, 8)).mean(1))
    product = (a.mean(0) * b.mean(0)).sum()
    noiseless = product / (agreement(a) * agreement(b)).sqrt()
    cells = [f"{product:.4f}", f"{one.mean():.2f} ± {one.std():.2f}", f"{eight.mean():.2f} ± {eight.std():.2f}"]
    return f"| {name} | {' | '.join(cells)} | {cosine(a.mean(0), b.mean(0)):.2f} | {noiseless:.2f} |"


def agreement(a: Tensor) -> Tensor:
    """The mean product of two different batches of one text: the squared length of its gradient, without noise."""
    products = a @ a.T
    return (products.sum() - products.diagonal().sum()) / (len(a) * (len(a) - 1))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--rounds", type=int, nargs="+", default=[0, 12, 40])
    options = parser.parse_args()
    keep_freed_memory()
    changes = ["tokens=40000", "test_share=0.02", "judge_tokens=1000", "schedule=constant", *options.changes]
    experiment = load_experiment("language-small", EXPERIMENTS, changes)
    torch.set_num_threads(experiment.threads)
    halved = experiment.plain()["precision"] == "bfloat16"
    print(*(f"{key}: {value}" for key, value in origin().items()), sep=", ", end="\n\n")
    for rounds in options.rounds:
        clients, model = shared(experiment, rounds)
        texts = {
            client.name: gradients(model, client.train.tokens, experiment.context, experiment.batch_size, halved, k)
            for k, client in enumerate(clients, 1)
        }
        print(f"{experiment.corpus}, after {rounds} rounds together\n")
        print("| pair | product | cosine, a batch each | eight | 32 | without noise |\n|---|---|---|---|---|---|")
        for one, other in combinations(texts, 2):
            print(row(f"{one}, {other}", texts[one], texts[other]))
        print(flush=True)


if __name__ == "__main__":
    main()
