"""Algorithm 1 in plain Python: loops over clients, pairs and parameters, nothing stacked, nothing clever.

The readable version that the fast path is held against. It shares with it only what defines the random draws.
"""

import copy

import numpy as np
import torch
from torch import nn

from cobo import draws


class PlainCoBo:
    """x_i are lists of parameter tensors, W is a list of lists of numbers."""

    def __init__(self, clients, model: nn.Module, loss, *, rho, gamma, lr, batch_size, seed):
        self.names = [client.name for client in clients]
        self.data = [client.train.fields for client in clients]
        self.model, self.loss = copy.deepcopy(model), loss
        self.rho, self.gamma, self.lr = rho, gamma, lr
        self.batch_size, self.seed = batch_size, seed
        self.n = len(clients)
        self.x = [[p.detach().clone() for p in model.parameters()] for _ in range(self.n)]
        self.W = [[1.0] * self.n for _ in range(self.n)]

    def round(self, t: int) -> None:
        # Client selection at X^t.
        for i in range(self.n):
            for j in range(self.n):
                if i == j or not self.asked(i, j, t):
                    continue
                z = [(a + b) / 2 for a, b in zip(self.x[i], self.x[j], strict=True)]
                g_i = self.gradient(z, i, self.key(i, t, self.batch_key(j), 1))
                g_j = self.gradient(z, j, self.key(j, t, self.batch_key(i), 2))
                inner = 0.0
                for a, b in zip(g_i, g_j, strict=True):
                    inner += float((a * b).sum())
                self.W[i][j] = min(1.0, max(0.0, self.W[i][j] + self.gamma * inner))
        # Every client's step with the new W.
        new = []
        for i in range(self.n):
            direction = self.gradient(self.x[i], i, self.key(i, t, 0))
            for k in range(self.n):
                if k != i:
                    for q in range(len(direction)):
                        direction[q] = direction[q] + self.rho * self.W[i][k] * (self.x[i][q] - self.x[k][q])
            new.append([p - self.lr * g for p, g in zip(self.x[i], direction, strict=True)])
        self.x = new

    def gradient(self, parameters, client: int, key) -> list[torch.Tensor]:
        with torch.no_grad():
            for mine, given in zip(self.model.parameters(), parameters, strict=True):
                mine.copy_(given)
        inputs, targets = self.data[client]
        size = np.array(len(inputs), dtype=np.int64)
        positions = torch.from_numpy(draws.integers(key, size, self.batch_size))
        self.model.zero_grad()
        self.loss(self.model(inputs[positions]), targets[positions]).backward()
        return [p.grad.clone() for p in self.model.parameters()]

    def asked(self, i: int, j: int, t: int) -> bool:
        mine, other = (draws.key(self.seed, "pair", self.names[k]) for k in (i, j))
        return float(draws.uniform(draws.combine(mine, other, t), 1)[0]) < 1 / self.n

    def batch_key(self, client: int):
        return draws.key(self.seed, "batch", self.names[client])

    def key(self, client: int, *parts):
        return draws.combine(self.batch_key(client), *parts)
