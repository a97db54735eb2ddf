"""Pretrains the small GPT that `language-small` starts from, on the English of docstrings, and writes it to a folder.

    python benchmarks/pretrain.py out/small_gpt        (ten minutes on two cores)

The text is prose of Python's own documentation and of the packages that cobo's `.venv` has (SOURCES), 13 million
characters, so nothing has to be fetched: the model knows English, and none of the languages that clients then teach it.
2.6 million parameters, a byte-level tokenizer of 4,096 words of the same text: GPT-2's design, a hundredth of its size.
Written is what any model of Hugging Face is: config.json, model.safetensors (bfloat16) and tokenizer.json.
"""

import ast
import math
import random
import re
import sys
import sysconfig
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import torch
from origin import origin
from tokenizers import ByteLevelBPETokenizer
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from cobo import attention
from cobo.compute.allocator import keep_freed_memory

SOURCES = (
    "numpy", "scipy", "sklearn", "matplotlib", "torch", "transformers", "peft", "networkx", "sympy", "sqlalchemy"
)  # fmt: skip
END = "<|endoftext|>"  # token 0
WORDS, LAYERS, WIDTH, HEADS, CONTEXT = 4096, 4, 192, 6, 256
STEPS, BATCH, LR, WARM = 2500, 16, 3e-3, 100
HELD_OUT = 100_000  # tokens, to judge by


def prose(folder: Path) -> Iterator[str]:
    """A document for each docstring: its paragraphs that are mostly words, each once."""
    seen: set[str] = set()
    for path in sorted(folder.rglob("*.py")):
        if {"site-packages", "tests", "test"} & set(path.relative_to(folder).parts):
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue  # templates and samples of broken code
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                paragraphs = map(unbroken, re.split(r"\n\s*\n", ast.get_docstring(node) or ""))
                if kept := [p for p in dict.fromkeys(paragraphs) if p not in seen and reads_well(p)]:
                    seen.update(kept)
                    yield "\n".join(kept)


def unbroken(paragraph: str) -> str:
    return " ".join(paragraph.split())


def reads_well(paragraph: str) -> bool:
    plain = sum(c.isalpha() or c in " ,.'" for c in paragraph)
    return len(paragraph) >= 60 and ">>>" not in paragraph and plain >= 0.93 * len(paragraph)


def english() -> list[str]:
    folders = [Path(sysconfig.get_paths()["stdlib"])]
    folders += [Path(str(spec.origin)).parent for name in SOURCES if (spec := find_spec(name))]
    if len(folders) <= len(SOURCES):
        sys.exit(f"not all of {', '.join(SOURCES)} are installed; run this with the python of .venv")
    documents = [document for folder in folders for document in prose(folder)]
    random.Random(0).shuffle(documents)
    return documents


def loss(model: nn.Module, windows: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(windows[:, :-1]).logits
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].flatten())


@torch.no_grad()
def judged(model: nn.Module, tokens: Tensor) -> float:
    windows = tokens.unfold(0, CONTEXT + 1, CONTEXT)
    return sum(loss(model, w).item() * len(w) for w in windows.split(BATCH)) / len(windows)


def trained(text: Tensor, held_out: Tensor) -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=WORDS, bos_token_id=0, eos_token_id=0, n_positions=CONTEXT, n_embd=WIDTH, n_layer=LAYERS,
        n_head=HEADS, activation_function="gelu_pytorch_tanh", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    attention.use_it(model)
    matrices, vectors = ([p for p in model.parameters() if (p.dim() > 1) == matrix] for matrix in (True, False))
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / WARM) * (1 + math.cos(math.pi * step / STEPS)) / 2
    )
    begun = time.perf_counter()
    for step in range(STEPS):
        starts = torch.randint(len(text) - CONTEXT, (BATCH, 1))
        value = loss(model, text[starts + torch.arange(CONTEXT + 1)])
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if (step + 1) % 100 == 0:
            seconds = time.perf_counter() - begun
            print(f"step {step + 1}: loss {judged(model, held_out):.3f} on held-out text, {seconds:.0f} s", flush=True)
    return model


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    out = Path(sys.argv[1])
    keep_freed_memory()
    torch.manual_seed(0)
    print(*(f"{key}: {value}" for key, value in origin().items()), sep=", ")
    documents = english()
    trainer = ByteLevelBPETokenizer()
    trainer.train_from_iterator(documents, vocab_size=WORDS, special_tokens=[END], show_progress=False)
    tokens = torch.tensor([token for found in trainer.encode_batch(documents) for token in (*found.ids, 0)])
    print(f"{sum(map(len, documents)):,} characters, {len(tokens):,} tokens", flush=True)
    model = trained(tokens[:-HELD_OUT], tokens[-HELD_OUT:])
    model.to(torch.bfloat16).save_pretrained(out)
    PreTrainedTokenizerFast(tokenizer_object=trainer._tokenizer, eos_token=END, bos_token=END).save_pretrained(out)


if __name__ == "__main__":
    main()
