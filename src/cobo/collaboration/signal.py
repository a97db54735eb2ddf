"""What a pair says: how far both clients' gradients at their midpoint agree."""

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from cobo.federation import Products

Signal = Callable[[Products, float], Tensor]


def overlook_sampling(products: Products, W: Tensor, samples: Tensor, batch: Tensor, strength: float) -> Products:
    """Products with the disagreement added back that small samples alone would cause.

    Where c clients of one distribution, pulled together, have reached the minimum of their joint training loss, their
    training gradients sum to zero: with m samples each, grad f_i = xi_i - mean of xi, xi ~ (0, Sigma / m). Batches of b
    samples add noise Sigma / b, so that two of them agree with an expected cosine of

        -1/c / (m/b + 1 - 1/c),

    and would slowly be torn apart although nothing tells them apart. `strength` times its size, for pairs as far as
    they are connected (c from the row sums of W), is added to the cosine; m/b is taken as at least 1.
    """
    i, j = products.pairs.unbind(1)
    degree = W.sum(1) - W.diagonal()
    share = 1 / (1 + (degree[i] + degree[j]) / 2)
    ratio = (samples / batch).clamp(min=1)
    expected = share / ((ratio[i] + ratio[j]) / 2 + 1 - share)
    added = strength * (W[i, j] * (i != j)) * expected * (products.norm_i * products.norm_j).to(W)
    return replace(products, inner=products.inner + added.to(products.inner))


def inner(products: Products, clip: float) -> Tensor:
    """<g_i, g_j>, the paper's. It fades as gradients fade, and then leaves W alone."""
    return products.inner


def cosine(products: Products, clip: float) -> Tensor:
    """<g_i, g_j> / (|g_i| |g_j|): free of scale, but as loud when nothing is left to learn."""
    scale = products.norm_i * products.norm_j
    return products.inner / scale.clamp(min=1e-30)


def clipped(products: Products, clip: float) -> Tensor:
    """The inner product of gradients whose norms are cut at `clip`: no single batch can throw W about."""
    return products.inner / ((products.norm_i / clip).clamp(min=1) * (products.norm_j / clip).clamp(min=1))


SIGNALS: dict[str, Signal] = {"inner": inner, "cosine": cosine, "clipped": clipped}
