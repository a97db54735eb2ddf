"""How many samples of each class a group gets when classes are divided by Dirichlet proportions."""

from numbers import Real

import numpy as np
from numpy.typing import NDArray

from cobo.errors import ConfigError

Counts = NDArray[np.int64]


def dirichlet_counts(random: np.random.Generator, amounts: Counts, *, groups: int, alpha: float, least: int) -> Counts:
    """Counts [classes, groups] that divide amounts[c] samples of each class c, at least `least` for every group."""
    proportions = _proportions(random, alpha, len(amounts), groups)
    cuts = np.rint(np.cumsum(proportions, axis=1) * amounts[:, None]).astype(np.int64)
    cuts[:, -1] = amounts
    return _filled(np.diff(cuts, axis=1, prepend=0), least)


def _proportions(random: np.random.Generator, alpha: float, rows: int, columns: int) -> NDArray[np.float64]:
    """Rows drawn from Dirichlet(alpha), for every alpha.

    Gamma(alpha) is Gamma(alpha + 1) U^(1/alpha), which for a tiny alpha fits into no number; its logarithm does. A
    row's largest log U can be taken as 0, because a row is only defined up to a factor.
    """
    if not isinstance(alpha, Real) or not 0 < alpha < np.inf:
        raise ConfigError(f"alpha = {alpha!r} is not allowed; it should be a number above 0")
    logs = np.log1p(-random.random((rows, columns)))
    with np.errstate(over="ignore"):
        logs = (logs - logs.max(axis=1, keepdims=True)) / alpha
    logs += np.log(random.standard_gamma(alpha + 1.0, (rows, columns)))
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True), dtype=np.float64)


def _filled(counts: Counts, least: int) -> Counts:
    """Counts in which no group has less than `least`; what is missing comes from the largest group's largest class.

    Each turn fills a group, or takes all that a class or a group can spare, so that there are few turns.
    """
    while True:
        totals = counts.sum(axis=0)
        poor, rich = int(totals.argmin()), int(totals.argmax())
        if totals[poor] >= least:
            return counts
        number = int(counts[:, rich].argmax())
        moved = min(least - totals[poor], totals[rich] - least, counts[number, rich])
        counts[number, rich] -= moved
        counts[number, poor] += moved
