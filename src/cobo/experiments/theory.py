"""The paper's theorem in numbers: its constants, conditions and bounds for the Example, and what they should be.

Names are the paper's: f_i = a_i/2 |x - mu_k|^2 in a group of c clients, z_ij = (x_i + x_j)/2, f~_ij = (f_i + f_j)/2,

    Delta = 1/c^2 sum_ij (f~_ij(z^0) - f~*_ij)      B = sqrt(L sigma^2 Delta / T)

    consensus   1/(c^2 T) sum_t sum_ij |x_i - x_j|^2            <= 6 M^2 / (rho c)^2 B
    gradient    1/(c^2 T) sum_t sum_ij |grad f~_ij(z_ij)|^2     <= 3 B
    client      1/(c^2 T) sum_t sum_ij |grad f_i(x_i)|^2        <= 4 B

`corrected` is what can be shown for the Example; docs/theory.md says where the printed proof goes wrong.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

from cobo.errors import ConfigError
from cobo.experiments.quadratic import Quadratic

QUANTITIES = ("consensus", "gradient", "client")


class Bounds(NamedTuple):
    """One number for each of the three quantities."""

    consensus: float
    gradient: float
    client: float


def M(a: Sequence[float]) -> float:
    """The largest |a_i - a_j| / (a_i + a_j) in a group."""
    return (max(a) - min(a)) / (max(a) + min(a))


def zeta2(a_i: float, a_j: float, distance2: float) -> float:
    """min over x of |grad f_i|^2 + |grad f_j|^2, for centres whose squared distance is given.

    a^2 |x - p|^2 + b^2 |x - q|^2 is least at the mean of p and q weighted by a^2 and b^2.
    """
    return a_i**2 * a_j**2 / (a_i**2 + a_j**2) * distance2


def printed_zeta2(a_i: float, a_j: float, distance2: float) -> float:
    """The paper's value: its denominator is squared. A lower bound only where a_i^2 + a_j^2 >= 1."""
    return zeta2(a_i, a_j, distance2) / (a_i**2 + a_j**2)


def pairs(experiment: Quadratic) -> list[dict[str, Any]]:
    """For every two clients: M_ij inside a group; zeta_ij^2 across groups, the true one and the printed one."""
    clients = [(k, i) for k in range(experiment.groups) for i in range(len(experiment.curvatures))]
    found: list[dict[str, Any]] = []
    for (k, i), (m, j) in combinations(clients, 2):
        a, b = experiment.curvatures[i], experiment.curvatures[j]
        apart = float((experiment.centres[k] - experiment.centres[m]).square().sum())
        names = {"i": f"group{k}-client{i}", "j": f"group{m}-client{j}"}
        same = (
            {"M": M((a, b))} if k == m else {"zeta2": zeta2(a, b, apart), "printed_zeta2": printed_zeta2(a, b, apart)}
        )
        found.append({**names, **same})
    return found


@dataclass(frozen=True)
class Constants:
    """What the theorem needs to know of a group: its curvatures, how far it starts from its centre, its noise."""

    a: tuple[float, ...]
    distance2: float
    sigma: float

    @property
    def c(self) -> int:
        return len(self.a)

    @property
    def L(self) -> float:
        return max(self.a)

    @property
    def M(self) -> float:
        return M(self.a)

    @property
    def Delta(self) -> float:
        """All start from one point, so that the mean of f~_ij over pairs is the mean of f_i."""
        return sum(self.a) / self.c * self.distance2 / 2

    @property
    def rho(self) -> float:
        return math.sqrt(3) * self.L / self.c

    @property
    def cap(self) -> float:
        """The largest step size that the theorem allows, whatever T is."""
        return 1 / (2 * math.sqrt(3) * self.L)

    @property
    def T0(self) -> float:
        """From this T on the cap does not bind: 48 L Delta / sigma^2."""
        return 48 * self.L * self.Delta / self.sigma**2

    def eta(self, T: int) -> float:
        _check(T)
        return min(2 * math.sqrt(self.Delta) / (self.sigma * math.sqrt(self.L * T)), self.cap)

    def B(self, T: int) -> float:
        _check(T)
        return math.sqrt(self.L * self.sigma**2 * self.Delta / T)

    def printed(self, T: int) -> Bounds:
        """The theorem's and the corollary's bounds, as they stand in the paper."""
        B = self.B(T)
        return Bounds(6 * self.M**2 / (self.rho * self.c) ** 2 * B, 3 * B, 4 * B)

    def corrected(self, T: int) -> Bounds:
        """Bounds for the Example at the step size eta(T), capped or not, when every weight is w*.

        With kappa = rho c + (a_i + a_j)/2 and independent noise u,

            x_i - x_j  <-  (1 - eta kappa)(x_i - x_j) -+ 2 eta M_ij grad f~_ij(z_ij) - eta (u_i - u_j),

        so (Jensen, eta kappa <= 1)   consensus <= 4 M^2 / kappa^2 gradient + 2 (1 - 1/c) eta sigma^2 / kappa.
        The last term is the noise that the paper's lemma leaves out. Descent on f~_ij gives

            gradient <= 2 Delta / (eta T) + (1 + 1/c) L eta sigma^2 / 2 + (L^2 + rho^2 c^2)/2 consensus,

        and the two together bound both. Last, client <= 2 (1 + M^2) gradient + L^2 / 2 consensus.
        """
        eta, c, L, M2 = self.eta(T), self.c, self.L, self.M**2
        kappa = self.rho * c + min(self.a)
        follow, floor = 4 * M2 / kappa**2, 2 * (1 - 1 / c) * eta * self.sigma**2 / kappa
        back = (L**2 + (self.rho * c) ** 2) / 2
        descent = 2 * self.Delta / (eta * T) + (1 + 1 / c) * L * eta * self.sigma**2 / 2
        if follow * back >= 1:  # only for M^2 far beyond what the theorem allows
            return Bounds(math.inf, math.inf, math.inf)
        gradient = (descent + back * floor) / (1 - follow * back)
        consensus = follow * gradient + floor
        return Bounds(consensus, gradient, 2 * (1 + M2) * gradient + L**2 / 2 * consensus)


def constants(experiment: Quadratic) -> Constants:
    """Those of every group of the experiment: they differ only in where their centre is."""
    distance2 = experiment.radius**2 + experiment.height**2
    return Constants(tuple(experiment.curvatures), distance2, experiment.sigma)


def _check(T: int) -> None:
    if T < 1:
        raise ConfigError(f"T = {T} is not allowed; it should be a number of rounds, at least 1")
