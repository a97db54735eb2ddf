"""Targets that the model does not know, found before anything runs: they would fail only when they are first drawn."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from cobo.compute.blueprint import Blueprint
from cobo.compute.task import PADDING
from cobo.errors import DataError
from cobo.federation.client import Client
from cobo.federation.samples import TensorSamples
from cobo.federation.windows import Windows


def check_targets(clients: Sequence[Client], blueprint: Blueprint, trial: Any) -> None:
    """Of those clients whose samples are at hand; `trial` is a batch, from which to see what the model tells apart."""
    task, reads = blueprint.task, getattr(blueprint.module, "reads", None)
    for client in clients:  # a language model says which tokens it reads; those of another tokenizer are noise to it
        if reads is not None and isinstance(client.train, Windows) and client.train.reads != reads:
            raise DataError(
                f"client {client.name!r} has {client.train.reads}, but the model reads {reads}; make its client() with "
                "the model itself"
            )
    if not task.classifies and not task.predicts_tokens:
        return
    choices = task.choices(blueprint.module.eval(), trial)
    for client in clients:
        for samples in (client.train, client.test):
            if isinstance(samples, Windows):
                _check_known(client.name, samples.tokens, choices)
            elif isinstance(samples, TensorSamples):
                check = _check_tokens if task.predicts_tokens else _check_classes
                check(client.name, samples.fields[-1], choices)


def _check_classes(name: str, targets: Tensor, classes: int) -> None:
    if targets.is_floating_point():
        return
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
