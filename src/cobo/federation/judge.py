"""Models judged by the clients' test samples."""

import math
from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from cobo.compute.batch import Fields
from cobo.compute.blueprint import Blueprint, Buffers
from cobo.compute.channels_last import turn_kernels, turned
from cobo.compute.task import Measured
from cobo.federation.client import Client
from cobo.federation.samples import Pool, where

# A forward pass: test samples; images, as convolutions are slower with more; tokens, which have large outputs.
SAMPLES_AT_ONCE, IMAGES_AT_ONCE, TOKENS_AT_ONCE = 1024, 256, 512
LARGEST = 700.0  # loss whose exponential, summed over clients, is a number


class Judge:
    """The test samples of everyone who has some; clients are given by their position among everyone."""

    def __init__(self, clients: Sequence[Client], blueprint: Blueprint, place: dict[str, Any]) -> None:
        tests = {k: client.test for k, client in enumerate(clients) if client.test is not None}
        self._samples = tests
        self._places = {client: k for k, client in enumerate(tests)}
        self._pool = Pool(list(tests.values()), **place) if tests else None
        self._blueprint = blueprint

    @torch.no_grad()
    def evaluate(self, models: Tensor, clients: Sequence[int], buffers: Buffers) -> list[dict[str, float]]:
        """For each client: mean loss, and accuracy (percent) or perplexity, over its whole test set, if it has one.

        Clients with the model of the first one that has the same test samples (all, if they share a model) are not
        measured again.
        """
        results: list[dict[str, float]] = []
        first: dict[Hashable, tuple[int, int]] = {}  # measured on some samples: row and client
        for row, client in enumerate(clients):
            if client not in self._samples:
                results.append({})
                continue
            r, c = first.setdefault(where(self._samples[client]), (row, client))
            same = torch.equal(models[r], models[row]) and all(torch.equal(b[c], b[client]) for b in buffers.values())
            if r < row and same:
                results.append(dict(results[r]))
            else:
                results.append(self._measured(models[row], client, buffers))
        return results

    @torch.no_grad()
    def rehearse(self, buffers: Buffers, size: int | None) -> int:
        """A model judged on a part of a client's test samples; how many. Nothing is kept."""
        if self._pool is None:
            return 0
        fields = next(self._pool.walk(0, min(size or self._at_once, self._at_once)))
        self._judged(self._loaded(self._blueprint.start, next(iter(self._places)), buffers), fields)
        return len(fields[0])

    def _measured(self, model: Tensor, client: int, buffers: Buffers) -> dict[str, float]:
        assert self._pool is not None
        totals: dict[str, float] = {}
        count = 0
        module = self._loaded(model, client, buffers)
        for fields in self._pool.walk(self._places[client], self._at_once):
            loss, right, weight = self._judged(module, fields)
            count += weight
            totals["loss"] = totals.get("loss", 0.0) + weight * loss
            if right is not None:
                totals["accuracy"] = totals.get("accuracy", 0.0) + weight * 100 * right
        means = {name: total / count if count else math.nan for name, total in totals.items()}
        if self._blueprint.task.predicts_tokens:
            means["perplexity"] = math.exp(means["loss"]) if means["loss"] < LARGEST else math.inf
        return means

    @cached_property
    def _at_once(self) -> int:
        """Test samples a forward pass."""
        assert self._pool is not None
        if self._blueprint.task.predicts_tokens:
            return max(1, TOKENS_AT_ONCE // next(self._pool.walk(0, 1))[0].shape[1])
        return IMAGES_AT_ONCE if self._blueprint.convolutional else SAMPLES_AT_ONCE

    def _loaded(self, model: Tensor, client: int, buffers: Buffers) -> nn.Module:
        """A client's model, ready to be judged."""
        module = self._blueprint.load(model, {name: b[client] for name, b in buffers.items()}).eval()
        if self._blueprint.convolutional:
            turn_kernels(self._blueprint.parameters)
        return module

    def _judged(self, module: nn.Module, fields: Fields) -> Measured:
        assert self._pool is not None
        batch = self._pool.layout.build(turned(fields) if self._blueprint.convolutional else fields)
        return self._blueprint.measure(module, batch)
