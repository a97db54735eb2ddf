"""Products of small matrices with rows of models, in place."""

from collections.abc import Sequence

from torch import Tensor

Part = tuple[Tensor, Tensor]  # some clients [k], and the matrix [k, k] that mixes their rows


def mix_parts(parts: Sequence[Part], X: Tensor) -> None:
    """The rows of each part become its matrix times them; parts have no client in common."""
    for members, M in parts:
        if len(members) == len(X):
            mix(M.to(X), X)
        else:
            rows = X.index_select(0, members.to(X.device))
            mix(M.to(X), rows)
            X.index_copy_(0, members.to(X.device), rows)


def mix(M: Tensor, X: Tensor, columns: int = 1024, blocks: int = 8) -> None:
    """X <- M X in place, some blocks of columns at a time, so that no second copy of X is needed.

    One wide GEMM with few rows hardly uses a second core; a batch of narrow ones does (benchmarks/round.py).
    """
    whole = X.shape[1] // columns
    tiles = X[:, : whole * columns].view(len(X), whole, columns).transpose(0, 1)
    for start in range(0, whole, blocks):
        tile = tiles[start : start + blocks]
        tile.copy_(M.expand(len(tile), *M.shape).bmm(tile))
    rest = X[:, whole * columns :]
    rest.copy_(M @ rest)
