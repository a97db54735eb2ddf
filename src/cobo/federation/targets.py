"""Targets that the model does not know, found before anything runs: they would fail only when they are first drawn."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cobo.compute.blueprint import Blueprint
from cobo.compute.task import PADDING
from cobo.errors import DataError
from cobo.federation.client import Client
from cobo.federation.samples import TensorSamples
from cobo.federation.windows import Windows


def check_targets(clients: Sequence[Client], blueprint: Blueprint, trial: Any) -> None:
    """Of those clients whose samples are at hand; `trial` is a batch of the first: what the model does with it."""
    task, reads = blueprint.task, getattr(blueprint.module, "reads", None)
    for client in clients:  # a language model says which tokens it reads; those of another tokenizer are noise to it
        if reads is not None and isinstance(client.train, Windows) and client.train.reads != reads:
            raise DataError(
                f"client {client.name!r} has {client.train.reads}, but the model reads {reads}; make its client() with "
                "the model itself"
            )
    if not task.classifies and not task.predicts_tokens:
        return
    try:
        logits, tried = task.logits(blueprint.module.eval(), trial)
    except Exception:  # what does not fit at all is said by the trial of the model, which comes next
        return
    if not isinstance(logits, Tensor) or logits.ndim < 2:  # likewise
        return
    vocabulary, classes = logits.shape[-1], logits.shape[1:]
    for client in clients:
        for samples in (client.train, client.test):
            if isinstance(samples, Windows):
                _check_known(client.name, samples.tokens, vocabulary)
            elif isinstance(samples, TensorSamples) and task.predicts_tokens:
                _check_tokens(client.name, samples.fields[-1], vocabulary)
            elif isinstance(samples, TensorSamples):
                _check_classes(client.name, samples.fields[-1], classes)
    if task.classifies:  # of samples made on demand, those tried are all that is known
        _check_classes(clients[0].name, tried, classes)


def _check_classes(name: str, targets: Tensor, outputs: torch.Size) -> None:
    """Targets are class numbers, or shares of classes; `outputs` is the shape of what a model gives for a sample."""
    classes, needed = outputs[0], [len(targets), *outputs[1:]]
    if targets.is_floating_point():
        if targets.shape[1:] != outputs:
            raise DataError(
                f"client {name!r} has class labels that are real numbers; give whole ones, 0 to {classes - 1}: y.long()"
            )
        return
    if list(targets.shape) != needed:
        columns = targets.shape[1] if targets.ndim == 2 and len(needed) == 1 else 0
        remedy = {0: "", 1: ": y[:, 0]", classes: ": y.argmax(1)"}.get(columns, "")
        raise DataError(
            f"client {name!r} has class labels of shape {list(targets.shape)}, but the model needs {needed}{remedy}"
        )
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= classes:
        raise DataError(
            f"client {name!r} has class labels from {low} to {high}, but the model's {classes} outputs allow 0 to "
            f"{classes - 1}"
        )


def _check_tokens(name: str, tokens: Tensor, vocabulary: int) -> None:
    if not (tokens[:, 1:] != PADDING).any():
        raise DataError(f"client {name!r} has samples without any token to predict; all but the first are padding")
    _check_known(name, tokens[tokens != PADDING], vocabulary)


def _check_known(name: str, tokens: Tensor, vocabulary: int) -> None:
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= vocabulary:
        raise DataError(
            f"client {name!r} has tokens from {low} to {high}, but the model knows 0 to {vocabulary - 1} "
            f"(and {PADDING} is padding)"
        )
