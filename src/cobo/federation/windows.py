"""Windows of a text, as samples: what language models train on, and what they are judged by."""

from typing import Self

import torch
from torch import Tensor

from cobo.compute.batch import Fields, Layout
from cobo.compute.task import PADDING
from cobo.errors import ConfigError, DataError


class Windows:
    """A text of tokens seen through windows of `context` tokens and the one that follows: [context + 1].

    To train on, windows begin anywhere, where the key of the batch says; there are as many samples as windows fit in
    side by side. Those that begin at given `starts` are always the same.

    >>> Windows.side_by_side(torch.arange(6), 3).take(torch.tensor([0, 1]))[0].tolist()
    [[0, 1, 2, 3], [3, 4, 5, -100]]
    """

    layout = Layout(single=True)

    def __init__(self, tokens: Tensor, context: int, *, reads: str = "tokens", starts: Tensor | None = None) -> None:
        if context < 1:
            raise ConfigError(f"context = {context} should be 1 or more tokens")
        if starts is None and len(tokens) < context + 1:
            raise DataError(
                f"there are {len(tokens)} tokens to train on, too few for a window of {context} and the one that "
                "follows; give more text or a smaller context"
            )
        self.tokens, self.context, self.reads, self.starts = tokens, context, reads, starts

    @classmethod
    def side_by_side(cls, tokens: Tensor, context: int, *, reads: str = "tokens") -> Self:
        """Windows that cover a text: every token but the first is predicted once; the last may end in padding."""
        if len(tokens) < 2:
            raise DataError(f"there are {len(tokens)} tokens to judge by, so nothing to predict; give more text")
        return cls(tokens, context, reads=reads, starts=torch.arange(0, len(tokens) - 1, context))

    @property
    def signature(self) -> str:
        return f"{self.reads} [{self.context + 1}]"

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.context if self.starts is None else len(self.starts)

    def take(self, positions: Tensor) -> Fields:
        if self.starts is None:
            starts = torch.randint(len(self.tokens) - self.context, positions.shape)
        else:
            starts = self.starts[positions]
        places = starts[:, None] + torch.arange(self.context + 1)
        taken = self.tokens[places.clamp(max=len(self.tokens) - 1)].long()
        return (taken.masked_fill(places >= len(self.tokens), PADDING),)

    def part(self, positions: Tensor) -> Self:
        """Some of the windows that lie side by side; they begin nowhere else, so two parts predict no token twice."""
        starts = positions * self.context if self.starts is None else self.starts[positions]
        return type(self)(self.tokens, self.context, reads=self.reads, starts=starts)
