"""W as a graph: the groups it settles into, and how far it is from a known grouping."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

Matrix = NDArray[np.floating]

UNDECIDED = 0.1  # the share of undecided pairs from which on it is said


def components(W: Matrix, threshold: float = 0.5, *, relative: bool = False) -> NDArray[np.int64]:
    """The group number of each client: connected components of the pairs whose mean weight is at least threshold.

    `relative` divides each row by its largest entry, for rows on a simplex, which have no scale of their own; who
    trusts itself alone (the diagonal, where it counts) is connected with nobody.
    """
    A = np.array(W, dtype=np.float64)
    if relative:
        A = A / np.maximum(A.max(axis=1, keepdims=True), 1e-12)
    np.fill_diagonal(A, 0)
    _, labels = connected_components(csr_array(np.where(threshold <= (A + A.T) / 2, 1, 0)), directed=False)
    return labels.astype(np.int64)


def among(everyone: Sequence[str], names: Sequence[str], W: NDArray[np.float32]) -> NDArray[np.float32]:
    """Weights [n, n] among some clients as [N, N] among everyone: 0 with those who are not there."""
    if list(everyone) == list(names):
        return W.copy()
    known = [k for k, name in enumerate(names) if name in everyone]
    places = [everyone.index(names[k]) for k in known]
    whole = np.zeros((len(everyone), len(everyone)), dtype=np.float32)
    whole[np.ix_(places, places)] = W[np.ix_(known, known)]
    return whole


def oracle(groups: Sequence[str | int | None]) -> Matrix:
    """1 inside the known groups, 0 elsewhere."""
    return np.array([[float(a == b) for b in groups] for a in groups])


def weights_error(W: Matrix, groups: Sequence[str | int | None]) -> float:
    """Mean |W - oracle| off the diagonal."""
    off = ~np.eye(len(W), dtype=bool)
    return float(np.abs(W - oracle(groups))[off].mean())


def groups_score(W: Matrix, groups: Sequence[str | int | None], *, relative: bool = False) -> float:
    """Adjusted Rand index of the groups found against the known ones: 1 when they are the same."""
    from sklearn.metrics import adjusted_rand_score  # takes a second to import, and is rarely needed

    return float(adjusted_rand_score([str(g) for g in groups], components(W, relative=relative)))


def has_groups(W: Matrix, groups: Sequence[str | int | None], *, relative: bool = False) -> bool:
    """Whether the groups found are the known ones, as when `groups_score` is 1, but quicker.

    >>> has_groups(np.array([[1, 0.9, 0], [0.8, 1, 0.1], [0, 0, 1]]), ["a", "a", "b"])
    True
    """
    found = components(W, relative=relative).tolist()
    return len(set(zip(found, groups, strict=True))) == len(set(found)) == len(set(groups))


def settled(W: Matrix, before: Matrix | None, tolerance: float = 0.01) -> float:
    """The share of pairs whose weight has moved by less than `tolerance` since an earlier W; 1 without pairs."""
    if before is None:
        return 0.0
    if len(W) < 2:
        return 1.0
    off = ~np.eye(len(W), dtype=bool)
    return float((np.abs(W - before)[off] < tolerance).mean())


def undecided(W: Matrix) -> float:
    """The share of pairs whose weight, on a box, is neither near 0 nor near 1; 0 without pairs."""
    between = ((W > 0.1) & (W < 0.9))[~np.eye(len(W), dtype=bool)]
    return float(between.mean()) if len(between) else 0.0
