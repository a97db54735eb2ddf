"""What server and clients say to each other: one order and one reply per client and round; numbers and text only.

Symbols: d the trained parameters of a model, p the pairs that a client is asked about in a round.
"""

from dataclasses import field
from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass
from torch import Tensor

CHECKED = ConfigDict(arbitrary_types_allowed=True, extra="forbid", strict=True)

Count = Annotated[int, Field(ge=0, le=2**40)]


@dataclass(frozen=True, config=CHECKED)
class Hello:
    """How a client introduces itself, before it is asked for anything."""

    name: str
    cobo: str = ""
    flwr: str = ""
    parameters: int = 0
    dtype: str = ""
    samples: Count = 1
    problem: str = ""  # why it cannot take part, in words


@dataclass(frozen=True, config=CHECKED)
class Order:
    """What a client is asked to do in a round.

    It goes on from what it did in round `last` of this run, to which `anchor` and `share` bring what the others'
    models add (`Party`), or, if `start` is there, from that. It takes `steps` steps, or none, if all is done.
    """

    run: str
    round: int
    last: int = -1
    steps: int = 0
    evaluate: bool = False
    share: float = 0.0
    start: Tensor | None = None  # [d]
    anchor: Tensor | None = None  # [d]
    shared: Tensor | None = None  # [d], the model that all share, of FedAvg and Ditto
    midpoints: Tensor | None = None  # [p, d]
    peers: list[str] = field(default_factory=list)  # p keys of batches, which depend on both clients; no names
    sides: list[int] = field(default_factory=list)  # p times 1 or 2: whether the client is first or second of the pair


@dataclass(frozen=True, config=CHECKED)
class Reply:
    """What a client gives back; with a `problem` (a line of text) nothing else counts."""

    name: str
    run: str
    round: int
    problem: str = ""
    lost: bool = False  # it no longer has what it did in round `last`
    gradients: Count = 0  # computed in this round
    measured: dict[str, float] = field(default_factory=dict)
    model: Tensor | None = None  # [d]
    direction: Tensor | None = None  # [d]
    pairs: Tensor | None = None  # [p, d]


TENSORS: dict[type, tuple[str, ...]] = {
    Hello: (),
    Order: ("start", "anchor", "shared", "midpoints"),
    Reply: ("model", "direction", "pairs"),
}
