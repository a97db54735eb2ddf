"""Runs of all methods, to be made in one process and in those of torchrun: `ranked.py OUT ROUNDS [CASE ...]`.

Each case shows something that could go wrong when rows are spread: see its name. With `--stop ROUND` each of them gets
a Ctrl-C there, with `--resume` they go on.
"""

import argparse
import os
import signal
from contextlib import suppress
from pathlib import Path

import torch
from torch import nn

import cobo
from cobo.engines import join
from cobo.errors import Interrupted
from cobo.methods import IFCA, CoBo, Ditto, FedAvg, FederatedClustering, FineTunedFedAvg, Local, Oracle
from cobo.models import mlp


def party(k: int, broken: bool) -> cobo.Client:
    """Two kinds of labels, different amounts of data; with `broken`, one has only numbers that are none."""
    generator = torch.Generator().manual_seed(k)
    y = torch.randint(0, 2, (20 + 7 * k,), generator=generator)
    x = torch.randn(len(y), 2, generator=generator) + 3 * (y[:, None] - 0.5)
    y = y if k < 4 else 1 - y
    x = torch.full_like(x, torch.nan) if broken and k == 2 else x
    return cobo.Client("abcdefg"[k], train=(x, y), test=(x, y), group=int(k < 4))


def net() -> nn.Module:
    return mlp(2, [8], 2)


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 2))


CASES = {
    "local": {"method": Local()},
    "fedavg": {"method": FedAvg()},
    "fedavg, some, several steps": {"method": FedAvg(participation=0.3, local_steps=3)},
    "finetune": {"method": FineTunedFedAvg(participation=0.5)},
    "ditto": {"method": Ditto(lam=0.5)},
    "ditto, some": {"method": Ditto(lam=0.5, participation=0.3), "optimizer": "adamw", "lr": 0.01},
    "ifca": {"method": IFCA(initialisations=2)},
    "ifca, some": {"method": IFCA(initialisations=2, participation=0.3, compare="all")},
    "fc": {"method": FederatedClustering(), "models_at_once": 10},
    "fc, momentum": {"method": FederatedClustering(client_momentum=0.5), "buffers": "local", "model": normed},
    "oracle": {"method": Oracle()},
    "cobo": {"method": CoBo(gamma=0.3)},
    "cobo, adamw": {"method": CoBo(gamma=0.3), "optimizer": "adamw", "lr": 0.01},
    "cobo, paper": {"method": CoBo.paper(gamma=0.3, sampling="every"), "models_at_once": 5},
    "cobo, coupled": {"method": CoBo(gamma=0.3, mixing="coupled"), "optimizer": "adamw", "lr": 0.01},
    "cobo, implicit": {"method": CoBo(gamma=0.3, mixing="implicit", output="uniform"), "model": normed},
    "cobo, simplex": {"method": CoBo(gamma=0.3, domain="simplex", self_weight=True, ask=2)},
    "cobo, all samples": {"method": CoBo(gamma=0.3, ask="all", turns="even"), "batch_size": None},
    "cobo, parted asked rarely": {"method": CoBo(gamma=2.0, switch=0.2, time_rate=1e-3, turns="even")},
    "cobo, shared buffers": {"method": CoBo(gamma=0.3), "buffers": "shared", "model": normed},
    "cobo, one set aside": {"method": CoBo(gamma=0.3), "broken": True},
    "oracle, one set aside": {"method": Oracle(), "broken": True},
    "cobo, dropout": {"method": CoBo(gamma=0.3), "model": dropping, "schedule": "cosine"},
}


def run(name: str, out: Path, **changes) -> cobo.Result:
    settings = {"model": net, "lr": 0.1, "momentum": 0.9, "batch_size": 6, "evaluate_every": 20}
    settings |= {"seed": 3, **CASES[name], **changes}
    broken = settings.pop("broken", False)
    parties = [party(k, broken) for k in range(7)]
    return cobo.fit(parties, out=out / name, **settings)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("rounds", type=int)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--stop", type=int)
    parser.add_argument("--resume", action="store_true")
    given = parser.parse_args()

    def stop(event: dict) -> None:  # the first process alone hears of it
        if event["event"] == "round" and event["round"] == given.stop:
            signal.raise_signal(signal.SIGINT)

    torch.set_num_threads(1)
    for case in given.cases:
        with suppress(Interrupted):
            run(case, given.out, rounds=given.rounds, resume=given.resume, listeners=[stop])
    join().leave()
    os._exit(0)  # as the command line does: threads of torch's can bring a process down when Python ends
