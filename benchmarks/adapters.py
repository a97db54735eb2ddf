"""What adapters on a language model cost beside the model's passes: memory and time, all taken in one run.

    python benchmarks/adapters.py
    python benchmarks/adapters.py small       memory with a small base alone, which is made here

Memory: how far the resident set peaks above the base, which is loaded before, during a whole `cobo.fit` of CoBo with
AdamW (evaluations, checkpoints, adapters written), for 4 and for 64 clients, each in a process of its own; beside it
what plain passes on one batch take at their peak, and the promise: six rows of adapters for each client, and a pass on
a batch. With a small base of random numbers too, as beside a small adapter Python's own objects are large. Time: a
round of CoBo over as many plain passes of the same model on batches that lie ready, one after the other in turns;
medians, so that a noisy machine does little harm; the goal is 1.10. All with the settings of `language-small`: its
precision, batch, method and optimiser; but pairs are asked in every round.
"""

import ctypes
import gc
import os
import platform
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
from round import peak_beyond, timed
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

import cobo
from cobo.compute.task import Task
from cobo.experiments import EXPERIMENTS, load_experiment
from cobo.federation import Federation
from cobo.federation.windows import Windows
from cobo.language import LanguageModel
from cobo.methods import State

PRESET = load_experiment("language-small", EXPERIMENTS)
MODEL, PRECISION = PRESET.model, PRESET.precision
BATCH, CONTEXT = PRESET.batch_size, PRESET.context
METHOD = PRESET.method("cobo").replace(wait=0.0, rate=1.0, ask=1)  # some pairs in every round, a batch each
REPEATS = 5
GOAL = 1.10


def give_back() -> None:
    """Freed memory to the system, so that the next peak is seen."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def clients(base: LanguageModel, n: int) -> list[cobo.Client]:
    """Parties with random tokens: costs do not depend on what they say."""
    generator = torch.Generator().manual_seed(0)
    known = base.base.config.vocab_size
    texts = [torch.randint(known, (4_000,), generator=generator) for _ in range(n)]
    return [
        cobo.Client(
            f"client{k}",
            Windows(text, CONTEXT, reads=base.reads),
            Windows.side_by_side(text[: CONTEXT + 1], CONTEXT, reads=base.reads),
        )
        for k, text in enumerate(texts)
    ]


class Case:
    """Parties with adapters, trained by CoBo with AdamW."""

    def __init__(self, base: LanguageModel, n: int) -> None:
        task = Task("next_token")
        self.federation = Federation(
            clients(base, n), base.adapters(rank=PRESET.rank), task=task, batch_size=BATCH, precision=PRECISION
        )
        X = nn.Parameter(self.federation.start)
        optimizer = PRESET.make_optimizer(X)
        self.state = State(X, optimizer, rounds=1000, tensors=METHOD.start(self.federation))

    def round(self) -> int:
        before = self.federation.computed
        METHOD.round(self.state, self.federation)
        self.state.round += 1
        return self.federation.computed - before


class Bare:
    """The same model as anyone would train it: forward and backward on one batch that lies ready."""

    def __init__(self, base: LanguageModel) -> None:
        self.model = base.adapters(rank=PRESET.rank)()
        self.tokens = torch.randint(base.base.config.vocab_size, (BATCH, CONTEXT + 1))

    def __call__(self) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=PRECISION == "bfloat16"):
            logits = self.model(self.tokens[:, :-1]).logits
        nn.functional.cross_entropy(logits.float().flatten(0, 1), self.tokens[:, 1:].flatten()).backward()
        self.model.zero_grad()


def passes(base: LanguageModel) -> None:
    bare = Bare(base)
    for _ in range(4):
        bare()


def small(folder: str) -> str:
    """A Llama of 12 layers in a folder, and a tokenizer, which nobody asks anything."""
    config = LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=12, num_attention_heads=4
    )
    logging.disable_progress_bar()
    LlamaForCausalLM(config).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0}))).save_pretrained(folder)
    return folder


def memory(which: str, n: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        base = LanguageModel(small(folder) if which == "small" else MODEL, dtype=PRECISION)
    weights = sum(p.numel() * p.element_size() for p in base.base.parameters())
    one_pass = peak_beyond(lambda: passes(base))
    give_back()
    row = sum(p.nbytes for p in base.adapters(rank=PRESET.rank)().parameters() if p.requires_grad)

    few = METHOD.replace(rate=min(METHOD.rate, 4 / n))  # pairs, as each costs the same memory

    def fit() -> None:
        with tempfile.TemporaryDirectory() as folder:
            cobo.fit(
                clients(base, n), model=base.adapters(rank=PRESET.rank), loss="next_token", method=few, out=folder,
                **{**PRESET.training("cobo", 0), "rounds": 2, "evaluate_every": 1},
            )  # fmt: skip

    peak = peak_beyond(fit)
    allowed = 6 * n * row + one_pass
    print(
        f"{which} base of {weights / 1e6:.0f} MB, {n} clients: an adapter {row / 1e6:.2f} MB, "
        f"a pass {one_pass / 1e6:.0f} MB; "
        f"peak beyond the base {peak / 1e6:.0f} MB, promised {allowed / 1e6:.0f} MB: {peak / allowed:.2f} of it, "
        f"{(peak - one_pass) / (n * row):.1f} adapters a client: {'met' if peak <= allowed else 'missed'}",
        flush=True,
    )


def speed() -> None:
    base = LanguageModel(MODEL, dtype=PRECISION)
    case, bare = Case(base, 4), Bare(base)
    ratios = []
    for k in range(REPEATS + 2):
        begun = time.perf_counter()
        count = case.round()
        taken = time.perf_counter() - begun
        if k >= 2:
            ratios.append(taken / timed(lambda c=count: [bare() for _ in range(c)]))
    low, middle, high = np.percentile(ratios, [25, 50, 75])
    print(
        f"a round of CoBo / its bare passes: {middle:.2f} (quartiles {low:.2f} to {high:.2f}), goal {GOAL:.2f}: "
        f"{'met' if middle <= GOAL else 'missed'}",
        flush=True,
    )


def main() -> None:
    torch.set_num_threads(PRESET.threads or torch.get_num_threads())
    match sys.argv[1:]:
        case [which, n]:
            memory(which, int(n))
            return
        case ["small"]:
            bases = ["small"]
        case []:
            bases = ["small", "preset"]
        case _:
            sys.exit(__doc__)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    print(
        f"commit {commit}, {platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, "
        f"preset {MODEL}, {PRECISION}",
        flush=True,
    )
    for which in bases:
        for n in (4, 64):
            subprocess.run([sys.executable, __file__, which, str(n)], check=True)
    if "preset" in bases:
        speed()


if __name__ == "__main__":
    main()
