"""What a federation answers: gradients, and the products of pair gradients."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Products:
    """For each pair (i, j) [p, 2]: the inner product of both clients' gradients at the midpoint, and their norms."""

    pairs: Tensor
    inner: Tensor
    norm_i: Tensor
    norm_j: Tensor


@dataclass(frozen=True)
class Gradients:
    """Gradients [m, d], the batch losses [m] they belong to, which rows are finite, and the pairs' products."""

    rows: Tensor
    losses: Tensor
    finite: Tensor
    products: Products
