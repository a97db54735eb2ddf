"""What a pair says: how far both clients' gradients at their midpoint agree."""

from collections.abc import Callable

from torch import Tensor

from cobo.federation import Products

Signal = Callable[[Products, float], Tensor]


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
