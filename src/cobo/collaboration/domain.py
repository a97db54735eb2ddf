"""Where W may live: the box [0, 1] for every pair, or the probability simplex for every row.

`project` gives the exact Euclidean projection; `vertex` the best corner for a linear objective (for Frank-Wolfe).
"""

from typing import Protocol

import torch
from torch import Tensor


class Domain(Protocol):
    """A convex set of matrices W."""

    def start(self, n: int) -> Tensor: ...

    def shift(self, Y: Tensor) -> Tensor: ...

    def project(self, Y: Tensor) -> Tensor: ...

    def vertex(self, S: Tensor, W: Tensor, asked: Tensor) -> Tensor: ...


class Box:
    """w_ij in [0, 1]; all pairs start connected, W^0 = 1."""

    def start(self, n: int) -> Tensor:
        return torch.ones(n, n)

    def shift(self, Y: Tensor) -> Tensor:
        """Y moved, without changing its projection, so that what is projected away lies outside [0, 1]."""
        return Y

    def project(self, Y: Tensor) -> Tensor:
        return Y.clamp(0, 1)

    def vertex(self, S: Tensor, W: Tensor, asked: Tensor) -> Tensor:
        """1 where a pair agrees, 0 where it does not; pairs that say nothing stay where they are."""
        return torch.where(asked & (S != 0), (S > 0).to(W), W)


class Simplex:
    """w_i. >= 0 with sum 1 for each client i, its own weight w_ii taken in or left out; rows start uniform."""

    def __init__(self, *, self_weight: bool) -> None:
        self.self_weight = self_weight

    def start(self, n: int) -> Tensor:
        return self.project(torch.zeros(n, n))

    def shift(self, Y: Tensor) -> Tensor:
        """Y minus each row's threshold theta; then W = max(Y, 0). Found by sorting (Held, Wolfe and Crowder 1974)."""
        if not self.self_weight:
            Y = Y.clone().fill_diagonal_(-torch.inf)
        Y = Y - Y.amax(dim=1, keepdim=True)  # so that theta is in [-1, 0); sums of large numbers would lose it
        ordered = Y.sort(dim=1, descending=True).values.clamp(min=-2)  # beyond, none counts
        counts = torch.arange(1, Y.shape[1] + 1, dtype=Y.dtype)
        thetas = (ordered.cumsum(1) - 1) / counts
        support = (ordered > thetas).sum(1, keepdim=True)
        return Y - thetas.gather(1, support - 1)

    def project(self, Y: Tensor) -> Tensor:
        return self.shift(Y).clamp(min=0)

    def vertex(self, S: Tensor, W: Tensor, asked: Tensor) -> Tensor:
        """All weight on the peer that agrees most; ties share it; rows in which nobody was asked stay."""
        if not self.self_weight:
            S = S.clone().fill_diagonal_(-torch.inf)
        best = (S.max(dim=1, keepdim=True).values == S).to(W)
        return torch.where(asked.any(1, keepdim=True), best / best.sum(1, keepdim=True), W)
