"""How W moves: one step of the inner problem, max over W of sum_ij w_ij s_ij.

S holds what each pair said last, `asked` which pairs said it just now (1, or for how many rounds it counts; 0 for the
others); only they move W, but Frank-Wolfe on a simplex compares them with all others of their row.

Evidence Y is what a solver remembers beside W (W = projection of Y). For `projected` and `frank-wolfe` it is W
itself. `lazy` keeps the running sum and projects it only for use (dual averaging): a pair that was wrong a
hundred times needs more than one lucky batch to be connected again, where the greedy projection forgets
everything beyond the border at once. `slack` bounds how much is remembered.
"""

from collections.abc import Callable

from torch import Tensor

from cobo.collaboration.domain import Domain

Solver = Callable[[Tensor, Tensor, Tensor, Domain, float, float], Tensor]


def projected(Y: Tensor, S: Tensor, asked: Tensor, domain: Domain, gamma: float, slack: float) -> Tensor:
    """w <- Proj(w + gamma s), the paper's."""
    return domain.project(Y + gamma * S * asked)


def frank_wolfe(Y: Tensor, S: Tensor, asked: Tensor, domain: Domain, gamma: float, slack: float) -> Tensor:
    """w <- (1 - gamma) w + gamma v, with v the best corner of the domain."""
    return Y + min(gamma, 1.0) * (domain.vertex(S, Y, asked > 0) - Y)


def lazy(Y: Tensor, S: Tensor, asked: Tensor, domain: Domain, gamma: float, slack: float) -> Tensor:
    """y <- y + gamma s, held within `slack` of the domain; w = Proj(y)."""
    return domain.shift(Y + gamma * S * asked).clamp(-slack, 1 + slack)


SOLVERS: dict[str, Solver] = {"projected": projected, "frank-wolfe": frank_wolfe, "lazy": lazy}
