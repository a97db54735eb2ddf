"""How W pulls models: the penalty's matrix, and its explicit or implicit step on all rows at once."""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from cobo.compute.rows import Part, mix_parts

Pull = Literal["sum", "mean"]
Step = Literal["explicit", "implicit", "gradient"]
Mix = Callable[[Sequence[Part], Tensor], None]


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


def gradient(L: Tensor, strength: float) -> Tensor:
    """rho L: not a step, but the penalty's gradient."""
    return strength * L


STEPS = {"explicit": explicit, "implicit": implicit, "gradient": gradient}


def largest_stable(pull: Pull, n: int, lr: float, *, row_sum: float) -> float:
    """The rho below which the explicit step cannot diverge: eta rho lambda < 2 with lambda the largest eigenvalue.

    For weights in [0, 1] summed, lambda is at most n; when each row's weights sum to at most 1, at most 2.
    """
    largest = 2.0 if pull == "mean" or row_sum <= 1 else float(n)
    return 2 / (lr * largest) if lr > 0 else math.inf


def pull_together(X: Tensor, W: Tensor, strength: float, *, pull: Pull, step: Step, mix: Mix = mix_parts) -> None:
    """X <- M X in place, with M the explicit or implicit step of strength eta rho; `mix` knows where the rows live.

    Clients that W does not connect, directly or through others, never mix, so each connected part is done by
    itself: once W has settled into groups, the cost falls from n^2 d to the sum of the groups' sizes squared.
    """
    parts = _connected_parts(W, least=1 if step == "gradient" else 2)  # who is alone stays, and has no gradient
    mix([(members, STEPS[step](laplacian(W[members][:, members], pull), strength)) for members in parts], X)


def pulled_toward(X: Tensor, V: Tensor, W: Tensor, strength: float, *, pull: Pull) -> Tensor:
    """The explicit step for some rows X [m, d] toward copies V [n, d] of others, with their weights W [m, n]."""
    others = W.any(0).nonzero()[:, 0]
    A = W[:, others].double()
    degree = A.sum(1, keepdim=True)
    scale = strength / degree.clamp(min=1) if pull == "mean" else strength
    return (1 - scale * degree).to(X) * X + (scale * A).to(X) @ V[others.to(V.device)]


def _connected_parts(W: Tensor, *, least: int) -> list[Tensor]:
    """The members of each connected part of W with at least so many."""
    if W[0].count_nonzero() == len(W):  # someone is connected to all
        return [torch.arange(len(W))]
    connected = csr_array((W != 0).fill_diagonal_(False).numpy())
    count, part = connected_components(connected, directed=False)
    parts = [torch.from_numpy(np.flatnonzero(part == k)) for k in range(count)]
    return [members for members in parts if len(members) >= least]
