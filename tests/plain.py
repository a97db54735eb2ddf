"""The methods in plain Python: loops over clients, pairs and parameters, nothing stacked, nothing clever.

The readable versions that the fast path is held against. They share with it only what defines the random draws.
A model is a list of parameter tensors.
"""

import copy
import math

import numpy as np
import torch

from cobo import draws


class Plain:
    """Clients and their stochastic gradients; `x[i]` is client i's model."""

    def __init__(self, clients, model, loss, *, lr, batch_size, seed, **settings):
        self.names = [client.name for client in clients]
        self.data = [client.train.fields for client in clients]
        self.samples = [len(client.train) for client in clients]
        self.model, self.loss = copy.deepcopy(model), loss
        self.lr, self.batch_size, self.seed = lr, batch_size, seed
        self.n = len(clients)
        self.start = [p.detach().clone() for p in model.parameters()]
        self.x = [self.start] * self.n
        self.prepare(**settings)

    def prepare(self):
        pass

    def put(self, parameters):
        with torch.no_grad():
            for mine, given in zip(self.model.parameters(), parameters, strict=True):
                mine.copy_(given)

    def batch(self, client: int, key):
        inputs, targets = self.data[client]
        size = np.array(len(inputs), dtype=np.int64)
        positions = torch.from_numpy(draws.integers(key, size, self.batch_size))
        return inputs[positions], targets[positions]

    def gradient(self, parameters, client: int, key) -> list[torch.Tensor]:
        self.put(parameters)
        inputs, targets = self.batch(client, key)
        self.model.zero_grad()
        self.loss(self.model(inputs), targets).backward()
        return [p.grad.clone() for p in self.model.parameters()]

    def value(self, parameters, client: int, key) -> float:
        """The loss on a batch or, without a key, on all training samples."""
        self.put(parameters)
        inputs, targets = self.data[client] if key is None else self.batch(client, key)
        return self.loss(self.model(inputs), targets).item()

    def batch_key(self, client: int):
        return draws.key(self.seed, "batch", self.names[client])

    def key(self, client: int, *parts):
        return draws.combine(self.batch_key(client), *parts)

    def present(self, t: int, rate: float) -> list[int]:
        drawn = [
            float(draws.uniform(draws.combine(draws.key(self.seed, "participation", name), t), 1)[0])
            for name in self.names
        ]
        count = max(1, math.floor(rate * self.n + 0.5))
        return sorted(sorted(range(self.n), key=lambda k: drawn[k])[:count])


def step(x, direction, lr):
    return [p - lr * g for p, g in zip(x, direction, strict=True)]


def mean(models, shares):
    return [sum(s * m[q] for s, m in zip(shares, models, strict=True)) / sum(shares) for q in range(len(models[0]))]


def distance(a, b) -> float:
    return math.sqrt(sum(float((p - q).square().sum()) for p, q in zip(a, b, strict=True)))


class PlainCoBo(Plain):
    """Algorithm 1; W is a list of lists of numbers."""

    def prepare(self, rho, gamma):
        self.rho, self.gamma = rho, gamma
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
            new.append(step(self.x[i], direction, self.lr))
        self.x = new

    def asked(self, i: int, j: int, t: int) -> bool:
        mine, other = (draws.key(self.seed, "pair", self.names[k]) for k in (i, j))
        return float(draws.uniform(draws.combine(mine, other, t), 1)[0]) < 1 / self.n


class PlainFedAvg(Plain):
    """The server sends its model out, clients train it, the server averages what comes back."""

    def prepare(self, local_steps=1, participation=1.0):
        self.local_steps, self.participation = local_steps, participation

    def round(self, t: int) -> None:
        back, present = [], self.present(t, self.participation)
        for k in present:
            mine = self.x[0]
            for h in range(self.local_steps):
                mine = step(mine, self.gradient(mine, k, self.key(k, t, h)), self.lr)
            back.append(mine)
        self.x = [mean(back, [self.samples[k] for k in present])] * self.n


class PlainDitto(Plain):
    """Both models of a client take their steps in the same visit; the personal one sees the model that was sent."""

    def prepare(self, lam, local_steps=1, participation=1.0):
        self.lam, self.local_steps, self.participation = lam, local_steps, participation
        self.w = self.start

    def round(self, t: int) -> None:
        back, new, present = [], list(self.x), self.present(t, self.participation)
        for k in present:
            shared, mine = self.w, self.x[k]
            for h in range(self.local_steps):
                shared = step(shared, self.gradient(shared, k, self.key(k, t, h)), self.lr)
                direction = self.gradient(mine, k, self.key(k, t, h))
                pull = [self.lam * (p - q) for p, q in zip(mine, self.w, strict=True)]
                mine = step(step(mine, direction, self.lr), pull, self.lr)
            back.append(shared)
            new[k] = mine
        self.w, self.x = mean(back, [self.samples[k] for k in present]), new


class PlainIFCA(Plain):
    """Every present client picks the centre with the least loss on its data; centres average their pickers."""

    def prepare(self, centres, rounds, participation=1.0, compare="batch"):
        self.centres, self.rounds, self.participation, self.compare = centres, rounds, participation, compare
        self.choice = [0] * self.n

    def round(self, t: int) -> None:
        present = self.present(t, self.participation)
        for k in range(self.n) if t in (0, self.rounds - 1) else present:
            whole = self.compare == "all" or t == self.rounds - 1
            values = [self.value(c, k, None if whole else self.key(k, t, 0)) for c in self.centres]
            self.choice[k] = values.index(min(values))
        new = []
        for j, c in enumerate(self.centres):
            members = [k for k in present if self.choice[k] == j]
            if members:
                gradients = [self.gradient(c, k, self.key(k, t, 0)) for k in members]
                c = step(c, mean(gradients, [self.samples[k] for k in members]), self.lr)
            new.append(c)
        self.centres = new
        self.x = [new[j] for j in self.choice]


class PlainFC(Plain):
    """Each client collects everyone's gradient at its own model, and averages those near its own."""

    def prepare(self, members, iterations, client_momentum=0.0):
        self.members, self.iterations, self.momentum = members, iterations, client_momentum
        self.m = {}

    def round(self, t: int) -> None:
        new = []
        for i in range(self.n):
            points = []
            for k in range(self.n):
                z = self.gradient(self.x[i], k, self.key(k, t, 0))
                if t > 0 and self.momentum:
                    b = self.momentum
                    z = [b * old + (1 - b) * p for old, p in zip(self.m[i, k], z, strict=True)]
                self.m[i, k] = z
                points.append(z)
            v = points[i]
            for _ in range(self.iterations):
                distances = [distance(z, v) for z in points]
                tau = sorted(distances)[self.members - 1]
                v = mean([z if d <= tau else v for z, d in zip(points, distances, strict=True)], [1] * self.n)
            new.append(step(self.x[i], v, self.lr))
        self.x = new


def nonblocking(
    mus, times, asked, *, start, rounds, lrs, rho, gamma, delay=0, staleness=None, each=False, catch_up=True, once=True
):
    """CoBo that does not wait, for f_i = (x - mu_i)^2 / 2 and one number per model; the clock ticks in whole seconds.

    Ordered pairs, summed pull, greedy projection. `each`: every gradient takes a client's time. Yields, whenever
    something was done: the time, steps so far, models, W, and (age, was used) of the copies that were looked at.
    """
    clients = range(len(mus))
    x, t, W = [start for _ in clients], [0 for _ in clients], [[1.0 for _ in clients] for _ in clients]
    published = [[(-math.inf, 0, start)] for _ in clients]
    until, blocks, questions, last, pulled = [0 for _ in clients], [0 for _ in clients], [], {}, set()

    def newest(k, now):
        return [(made, copy) for at, made, copy in published[k] if at + delay <= now][-1]

    for now in range(10**6):
        done = [i for i in clients if until[i] == now and now > 0]
        if now > 0 and not done:
            continue
        for question in sorted(questions, key=lambda q: q["round"]):
            question["parts"] = [(k, "done" if k in done and p == "begun" else p) for k, p in question["parts"]]
            if all(p == "done" for _, p in question["parts"]):
                i, j = question["pair"]
                W[i][j] = min(1.0, max(0.0, W[i][j] + gamma * question["worth"] * question["product"]))
        questions = [q for q in questions if any(p != "done" for _, p in q["parts"])]
        looked, new = [], {}
        for i in done:
            if t[i] == rounds:
                continue
            direction = x[i] - mus[i]
            for k in clients:
                made, copy = newest(k, now)
                age = max(0, t[i] - made)
                used = staleness is None or age <= staleness
                if once and age > 0 and (i, k, made) in pulled:
                    used = False
                if k != i and W[i][k] > 0:
                    if used:
                        pulled.add((i, k, made))
                    looked.append((age, used))
                    direction += used * rho * W[i][k] * (x[i] - copy)
            new[i] = x[i] - lrs[t[i]] * direction
        for i, value in new.items():
            x[i], t[i] = value, t[i] + 1
            published[i].append((now, t[i], value))
        begins = [i for i in (new if now else clients) if t[i] < rounds]
        for i in clients:
            for j in clients:
                r = min(t[i], t[j])
                if i == j or not any(k in begins and t[k] == r for k in (i, j)):
                    continue
                worth = max(1, max(t[i], t[j]) - last.get((i, j), -1))
                last[i, j] = max(t[i], t[j])
                if asked(i, j, r):
                    z = (newest(i, now)[1] + newest(j, now)[1]) / 2
                    product = (z - mus[i]) * (z - mus[j])
                    parts = [(i, "owed"), (j, "owed")]
                    most = max(1, 0.5 / (gamma * max(1, abs(product))))  # one answer moves w only so far
                    worth = min(worth, most) if catch_up else 1
                    questions.append({"round": r, "pair": (i, j), "product": product, "worth": worth, "parts": parts})
        for i in clients:
            if until[i] > now:
                continue
            work = int(t[i] < rounds)
            for question in questions:
                work += sum(k == i and p == "owed" for k, p in question["parts"])
                question["parts"] = [(k, "begun" if k == i and p == "owed" else p) for k, p in question["parts"]]
            if work:
                until[i] = now + times[i][blocks[i] % len(times[i])] * (work if each else 1)
                blocks[i] += 1
        yield now, sum(t), list(x), [list(row) for row in W], looked
        if min(t) == rounds:
            return
