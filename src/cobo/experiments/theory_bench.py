"""The theorem put to the test: real CoBo rounds on the paper's Example, for a doubling series of T.

Seeds run side by side in one federation, as copies of the clients under other names: a draw follows from its clients'
names alone, so each copy does what it would do by itself, and a hundred small models cost little more than one.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from cobo.compute.task import Task
from cobo.errors import ConfigError
from cobo.experiments.quadratic import Quadratic
from cobo.experiments.theory import QUANTITIES, Constants, constants, pairs, zeta2
from cobo.federation import Client, Federation
from cobo.methods import CoBo, State

Tick = Callable[[str], None]
GAMMA = 0.01  # of Algorithm 1 here: that of the published code

SELECTIONS = {
    "exact": "the inner problem solved on exact gradients, as the proof assumes",
    "stochastic": "the same on stochastic gradients",
    "algorithm-1": f"Algorithm 1: pairs with probability 1/n, projected steps, gamma = {GAMMA}",
}


class SideBySide(CoBo):
    """CoBo in several copies of one federation at once: no pair across copies is ever asked or connected."""

    copies: int = Field(ge=1)

    def start(self, federation: Federation) -> dict[str, Tensor]:
        size = len(federation) // self.copies
        together = torch.kron(torch.eye(self.copies), torch.ones(size, size))
        return {name: tensor * together for name, tensor in super().start(federation).items()}

    def draw(self, federation: Federation, W: Tensor, round: int, rounds: int) -> NDArray[np.int64]:
        pairs = super().draw(federation, W, round, rounds)
        copy = pairs // (len(federation) // self.copies)
        inside: NDArray[np.int64] = pairs[copy[:, 0] == copy[:, 1]]
        return inside


def selection(kind: str, rho: float, copies: int) -> SideBySide:
    """CoBo as the theorem has it (pull and step of Algorithm 1), with one of the `SELECTIONS`."""
    paper = {**CoBo.presets["paper"], "rho": rho, "copies": copies}
    if kind == "algorithm-1":
        return SideBySide(**{**paper, "gamma": GAMMA, "rate": copies})  # 1/n with n the clients of one copy
    solved = {"sampling": "every", "pairs": "symmetric", "solver": "frank-wolfe", "gamma": 1.0}
    return SideBySide(**{**paper, **solved, "ask": "all" if kind == "exact" else 1})


@dataclass(frozen=True)
class Path:
    """What a run visited: models X [T + 1, s, K, c, d] and weights W [T, s, n, n] of s seeds."""

    X: Tensor
    W: Tensor


def walk(experiment: Quadratic, kind: str, eta: float, rounds: int, seeds: int, tick: Tick) -> Path:
    """The path of CoBo with step size eta and the theorem's rho."""
    k = constants(experiment)
    parts = experiment.build(0)
    clients = [
        Client(f"seed{s}-{client.name}", client.train, group=client.group)
        for s in range(seeds)
        for client in parts.clients
    ]
    options: dict[str, Any] = {"task": Task(parts.loss), "batch_size": experiment.batch_size}
    method = selection(kind, k.rho, seeds)
    method.check(Federation(parts.clients, parts.model, **options), eta)
    federation = Federation(clients, parts.model, models_at_once=len(clients), **options)
    models = nn.Parameter(method.rows(federation))
    state = State(models, torch.optim.SGD([models], lr=eta), rounds, tensors=method.start(federation))
    n = len(parts.clients)
    X, W = [state.X.clone()], []
    for _ in range(rounds):
        method.round(state, federation)
        state.round += 1
        X.append(state.X.clone())
        W.append(torch.stack([state.tensors["weights"][s * n : s * n + n, s * n : s * n + n] for s in range(seeds)]))
        tick(kind)
    return Path(torch.stack(X).view(rounds + 1, seeds, experiment.groups, k.c, -1), torch.stack(W))


def quantities(experiment: Quadratic, X: Tensor) -> Tensor:
    """The theorem's three sums at each round [3, T, s, K], each over the c^2 ordered pairs of a group, i = j included.

    As in the theorem, the distance is that after the round, the gradients are those before it.
    """
    a = torch.tensor(experiment.curvatures, dtype=X.dtype)
    mu = experiment.centres.to(X)[:, None]
    before, after = X[:-1], X[1:]
    distance = (after[..., :, None, :] - after[..., None, :, :]).square().sum(-1)
    midpoints = (before[..., :, None, :] + before[..., None, :, :]) / 2
    joint = ((a[:, None] + a) / 2).square() * (midpoints - mu[:, None]).square().sum(-1)
    own = a.square() * (before - mu).square().sum(-1)
    return torch.stack([distance.mean((-1, -2)), joint.mean((-1, -2)), own.mean(-1)])


def right(experiment: Quadratic, W: Tensor) -> Tensor:
    """Whether all weights of a round are w*: 1 inside groups, 0 across; [T, s]."""
    inside, across = _kinds_of_pairs(experiment)
    return (W[..., inside] == 1).all(-1) & (W[..., across] == 0).all(-1)


def _kinds_of_pairs(experiment: Quadratic) -> tuple[Tensor, Tensor]:
    group = torch.arange(experiment.groups).repeat_interleave(len(experiment.curvatures))
    same = group[:, None] == group
    return same & ~torch.eye(len(group), dtype=torch.bool), ~same


def conditions(experiment: Quadratic, path: Path, T: int) -> list[dict[str, str]]:
    """What the theorem asks for, and whether it is so on this path."""
    k = constants(experiment)
    M2, eta = k.M**2, k.eta(T)
    b = 4 * k.L * eta * (k.c - 2) * k.sigma**2 / k.c**2
    far, apart = _across(experiment, path.X[:-1])
    good = right(experiment, path.W)
    wrong = (~good).any(1).nonzero()
    since = int(wrong[-1]) + 1 if len(wrong) else 0

    def yes(holds: bool) -> str:
        return "holds" if holds else "fails"

    rows = [
        ("L-smooth, bounded noise, f*", yes(True), f"by construction: L = {k.L:g}, sigma^2 = {k.sigma**2:g}, f* = 0"),
        ("M^2 in (0, 1/5)", yes(0 < M2 < 0.2), f"M^2 = {M2:.4g}"),
        ("M^2 <= 1/24", yes(M2 <= 1 / 24), "not stated, but the proof needs 2 + 24 M^2 <= 3 (it goes on with M < 1/5)"),
        (
            "b >= 4 L eta (c-2) sigma^2 / c^2",
            yes(b <= 1),
            f"it asks {b:.3g}; pair gradients have noise sigma^2/b, b = 1",
        ),
        ("rho >= sqrt(3) L / c", yes(True), f"chosen equal, {k.rho:.4g}"),
        (
            "eta <= min{..., cap}",
            yes(True),
            f"chosen equal; for T < T0 = {k.T0:.0f} it is the cap, and no bound follows",
        ),
        ("zeta_ik^2 >= |grad f_i + grad f_k|^2", "cannot hold", "for all x, as it should: the right side is unbounded"),
        ("... at visited midpoints", f"{100 * far:.1f} %", "it holds in a ball around a point between both centres"),
        (
            "... <grad f_i, grad f_k> <= 0 there",
            f"{100 * apart:.1f} %",
            "what the proof takes from it; far off all agree",
        ),
        ("w = w* in a round", f"{100 * float(good.double().mean()):.1f} %", f"in all seeds from round {since} on"),
        (
            "eta rho c <= 1/2",
            yes(eta * k.rho * k.c <= 0.5 + 1e-12),
            "in the proof only; the theorem allows any larger rho, with which the step can diverge",
        ),
        ("eta rho n < 2", yes(k.cap * k.rho * path.W.shape[-1] < 2), "not stated; at the cap it means K < 4 groups"),
    ]
    return [{"condition": name, "holds": holds, "why": why} for name, holds, why in rows]


def _across(experiment: Quadratic, X: Tensor) -> tuple[float, float]:
    """The shares of visited midpoints of clients of different groups with zeta^2 >= |grad f_i + grad f_k|^2, and with
    <grad f_i, grad f_k> <= 0, which is all that the proof takes from it."""
    K, c = experiment.groups, len(experiment.curvatures)
    if K == 1:
        return 1.0, 1.0
    flat = X.flatten(2, 3)
    sums, products = [], []
    for i in range(K * c):
        for k in range((i // c + 1) * c, K * c):
            a_i, a_k = experiment.curvatures[i % c], experiment.curvatures[k % c]
            mu_i, mu_k = experiment.centres[i // c], experiment.centres[k // c]
            z = (flat[..., i, :] + flat[..., k, :]) / 2
            g_i, g_k = a_i * (z - mu_i), a_k * (z - mu_k)
            least = zeta2(a_i, a_k, float((mu_i - mu_k).square().sum()))
            sums.append((g_i + g_k).square().sum(-1) <= least)
            products.append((g_i * g_k).sum(-1) <= 0)
    return float(torch.stack(sums).double().mean()), float(torch.stack(products).double().mean())


# The bench

FIRST = 4  # the shortest run of a series
NOISE_FREE = 150  # rounds, enough for distances to fall from 1 to rounding


def series(doublings: int) -> list[int]:
    """T = 4, 8, ..., as often doubled as asked."""
    if doublings < 1:
        raise ConfigError(f"doublings = {doublings} is not allowed; it should be at least 1")
    return [FIRST * 2**k for k in range(doublings + 1)]


@dataclass(frozen=True)
class Plan:
    """The runs of a bench. Below T0 all have one step size, so that the shorter are the beginning of the longest."""

    experiment: Quadratic
    seeds: int
    doublings: int

    @property
    def lengths(self) -> dict[float, list[int]]:
        """The T that share a step size."""
        found: dict[float, list[int]] = {}
        for T in series(self.doublings):
            found.setdefault(constants(self.experiment).eta(T), []).append(T)
        return found

    @property
    def from_the_middle(self) -> Quadratic:
        """As far from the centres, but between them: there other groups disagree from the first round on."""
        far = float(np.hypot(self.experiment.radius, self.experiment.height))
        return self.experiment.replace(radius=far, height=0.0)

    @property
    def curvatures(self) -> list[Quadratic]:
        """From equal ones (M = 0) to some just inside M^2 < 1/5; each run for its T0 rounds, or the longest T."""
        low, others = min(self.experiment.curvatures), len(self.experiment.curvatures) - 1
        return [self.experiment.replace(curvatures=(low, *[low * a] * others)) for a in (1.0, 1.4, 2.6)]

    @property
    def rounds(self) -> int:
        """How many will be run."""
        main = len(SELECTIONS) * sum(max(lengths) for lengths in self.lengths.values())
        return main + NOISE_FREE + self._short + sum(self._T0(e) for e in self.curvatures)

    @property
    def _short(self) -> int:
        """The runs that the cap makes too short for the bound, and a few more."""
        return min(64, series(self.doublings)[-1])

    def _T0(self, experiment: Quadratic) -> int:
        return min(math.ceil(constants(experiment).T0), series(self.doublings)[-1])

    def run(self, tick: Tick) -> dict[str, Any]:
        """All that theory.json says."""
        k = constants(self.experiment)
        measured: dict[str, list[dict[str, Any]]] = {}
        asked: list[dict[str, str]] = []
        for kind in SELECTIONS:
            measured[kind] = []
            for eta, lengths in self.lengths.items():
                path = walk(self.experiment, kind, eta, max(lengths), self.seeds, tick)
                measured[kind] += [_line(self.experiment, _first(path, T), T) for T in lengths]
                if kind == "exact":
                    asked = conditions(self.experiment, path, max(lengths))
        return {
            "experiment": self.experiment.plain(),
            "seeds": self.seeds,
            "constants": {name: getattr(k, name) for name in ("c", "L", "M", "Delta", "rho", "cap", "T0")},
            "pairs": pairs(self.experiment),
            "conditions": asked,
            "selections": SELECTIONS,
            "series": measured,
            "slopes": {kind: _slopes(lines, k) for kind, lines in measured.items()},
            "noise_free": self._noise_free(tick),
            "from_the_middle": self._from_the_middle(tick),
            "curvatures": [self._at_T0(e, tick) for e in self.curvatures],
        }

    def _noise_free(self, tick: Tick) -> dict[str, float]:
        """Exact gradients: members of a group should end at one point, their centre."""
        quiet = self.experiment.replace(batch_size=None)
        path = walk(quiet, "exact", constants(quiet).cap, NOISE_FREE, 1, tick)
        last = path.X[-1]
        apart = (last[..., :, None, :] - last[..., None, :, :]).norm(dim=-1).max()
        away = (last - quiet.centres[:, None]).norm(dim=-1).max()
        wrong = (~right(quiet, path.W)).nonzero()
        return {
            "rounds": NOISE_FREE,
            "distance": float(apart),
            "from_centre": float(away),
            "right_from": int(wrong[-1, 0]) + 1 if len(wrong) else 0,
        }

    def _from_the_middle(self, tick: Tick) -> list[dict[str, Any]]:
        """Short runs with right weights from the first round: what the cap alone does to the bounds."""
        path = walk(self.from_the_middle, "exact", constants(self.from_the_middle).cap, self._short, self.seeds, tick)
        return [_line(self.from_the_middle, _first(path, T), T) for T in series(self.doublings) if self._short >= T]

    def _at_T0(self, experiment: Quadratic, tick: Tick) -> dict[str, Any]:
        k = constants(experiment)
        T = self._T0(experiment)
        path = walk(experiment, "exact", k.eta(T), T, self.seeds, tick)
        return {"a": list(k.a), "M2": k.M**2, **_line(experiment, path, T)}


def _first(path: Path, T: int) -> Path:
    return Path(path.X[: T + 1], path.W[:T])


def _line(experiment: Quadratic, path: Path, T: int) -> dict[str, Any]:
    """One row of the table: each quantity beside its bounds, in the worst group; and what became of W."""
    k = constants(experiment)
    inside, across = _kinds_of_pairs(experiment)
    late = path.W[T // 2 :]
    line: dict[str, Any] = {
        "T": T,
        "eta": k.eta(T),
        "capped": k.T0 > T,
        "right": float(right(experiment, path.W).double().mean()),
        "inside": float(late[..., inside].mean()),  # in the second half of the run
        "across": float(late[..., across].mean()),
    }
    by_seed = quantities(experiment, path.X).mean(1)  # [3, s, K]
    printed, corrected = k.printed(T), k.corrected(T)
    for which, name in enumerate(QUANTITIES):
        worst = int(by_seed[which].mean(0).argmax())
        values = by_seed[which, :, worst]
        line[name] = {
            "measured": float(values.mean()),
            "std": float(values.std()) if len(values) > 1 else None,
            "printed": printed[which],
            "corrected": corrected[which],
        }
    return line


def _slopes(lines: Sequence[dict[str, Any]], k: Constants) -> dict[str, dict[str, float | None]]:
    """Of log measured over log T by least squares: over all T, and over T >= T0, which the theorem is about."""

    def slope(name: str, chosen: Sequence[dict[str, Any]]) -> float | None:
        if len(chosen) < 2:
            return None
        T, measured = [line["T"] for line in chosen], [line[name]["measured"] for line in chosen]
        return float(np.polyfit(np.log(T), np.log(measured), 1)[0])

    after = [line for line in lines if line["T"] >= k.T0]
    return {name: {"all": slope(name, lines), "after_T0": slope(name, after)} for name in QUANTITIES}
