"""How W pulls models: the penalty's matrix, and its explicit or implicit step on all rows at once."""

from typing import Literal

import torch
from torch import Tensor

Pull = Literal["sum", "mean"]


def laplacian(W: Tensor, pull: Pull) -> Tensor:
    """L with (L X)_i = sum_k w_ik (x_i - x_k), in double precision.

    `sum` is the paper's. `mean` divides row i by max(1, sum_k w_ik): a client is pulled toward the average of its
    collaborators, as strongly by one as by a hundred, and no less when wrong ones drop out.
    """
    A = W.double().clone().fill_diagonal_(0)
    degree = A.sum(1)
    L = torch.diag(degree) - A
    return L / degree.clamp(min=1)[:, None] if pull == "mean" else L


def explicit(L: Tensor, strength: float) -> Tensor:
    """I - eta rho L: one gradient step on the penalty."""
    return torch.eye(len(L), dtype=L.dtype) - strength * L


def implicit(L: Tensor, strength: float) -> Tensor:
    """(I + eta rho L)^-1: the proximal step, which is stable for every rho and n."""
    inverse: Tensor = torch.linalg.inv(torch.eye(len(L), dtype=L.dtype) + strength * L)
    return inverse


def largest_stable(pull: Pull, n: int, lr: float, *, row_sum: float) -> float:
    """The rho below which the explicit step cannot diverge: eta rho lambda < 2 with lambda the largest eigenvalue.

    For weights in [0, 1] summed, lambda is at most n; when each row's weights sum to at most 1, at most 2.
    """
    largest = 2.0 if pull == "mean" or row_sum <= 1 else float(n)
    return 2 / (lr * largest)


def mix(M: Tensor, X: Tensor, columns: int = 8192) -> None:
    """X <- M X in place, some columns at a time, so that no second copy of X is needed."""
    M = M.to(X)
    for start in range(0, X.shape[1], columns):
        block = X[:, start : start + columns]
        block.copy_(M @ block)
