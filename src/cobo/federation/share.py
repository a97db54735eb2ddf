"""A client's share of a data set, and how shares become clients."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cobo.errors import ConfigError, DataError
from cobo.federation.client import Client

Indices = NDArray[np.int64]


class Share(NamedTuple):
    """One client's part: its name, its group, the positions of its samples, and what each class is called there.

    `labels[c]` is -1 where class c does not occur in the client's group; `labels` is None where nothing is renamed.
    """

    name: str
    group: str | int
    positions: Indices
    labels: Indices | None


def make_clients(
    shares: Iterable[Share], train: tuple[Any, Any], test: tuple[Any, Any] | float | None = None, *, seed: int = 0
) -> list[Client]:
    """Clients with the samples that their shares name; `train` is (inputs, targets), tensors or arrays.

    `test` is a common (inputs, targets), of which each client gets the classes that occur in its group, called as
    there; or a number between 0 and 1: that part of each client's own samples is held out to judge it by.

    >>> share = Share("north", 0, np.array([1, 3]), np.array([1, 0]))
    >>> (north,) = make_clients([share], (torch.arange(4.0), [0, 0, 1, 1]), test=0.5)
    >>> len(north.train), len(north.test)
    (1, 1)
    """
    inputs, targets = _tensors(train, "train")
    part = _checked_part(test) if isinstance(test, (int, float)) else None
    common = None if test is None or isinstance(test, (int, float)) else _tensors(test, "test")
    tests: dict[bytes | None, tuple[Tensor, Tensor]] = {}  # one copy for all clients that call the classes the same
    clients = []
    for share in shares:
        mine = _checked_positions(share, len(inputs))
        samples = inputs[mine], _renamed(share, targets[mine], "train")
        if part is not None:
            clients.append(Client(share.name, train=samples, group=share.group).hold_out(part, seed))
            continue
        same = None if share.labels is None else share.labels.tobytes()
        if common is not None and same not in tests:
            tests[same] = _occurring(share, *common)
        clients.append(Client(share.name, train=samples, test=tests.get(same), group=share.group))
    return clients


def _occurring(share: Share, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The samples of a common test set whose class occurs at the client, under the client's names."""
    names = _renamed(share, targets, "test")
    if share.labels is None or bool((names >= 0).all()):
        return inputs, names
    kept = names >= 0
    if not kept.any():
        raise DataError(f"client {share.name!r}: test has no sample of its classes; give another test set")
    return inputs[kept], names[kept]


def _renamed(share: Share, targets: Tensor, part: str) -> Tensor:
    if share.labels is None:
        return targets
    where = f"client {share.name!r}: {part}"
    if targets.ndim != 1 or targets.is_floating_point():
        raise DataError(f"{where} has targets that are not class numbers; its share needs labels = None")
    numbers = targets.long()
    if numbers.min() < 0 or numbers.max() >= len(share.labels):
        raise DataError(f"{where} has classes outside 0 to {len(share.labels) - 1}, which its share cannot name")
    names = torch.from_numpy(share.labels)[numbers]
    if part == "train" and bool((names < 0).any()):
        raise DataError(f"{where} has classes that its share says do not occur (label -1); give them a label")
    return names


def _checked_part(part: float) -> float:
    if not 0 < part < 1:
        raise ConfigError(f"test = {part} is not allowed; the part to hold out should be between 0 and 1")
    return part


def _checked_positions(share: Share, size: int) -> Tensor:
    positions = torch.as_tensor(share.positions)
    if not len(positions) or positions.min() < 0 or positions.max() >= size:
        raise ConfigError(f"shares: client {share.name!r} should have positions in 0 to {size - 1}, at least one")
    return positions


def _tensors(pair: Any, part: str) -> tuple[Tensor, Tensor]:
    try:
        inputs, targets = (field if isinstance(field, Tensor) else torch.as_tensor(np.asarray(field)) for field in pair)
        if len(inputs) != len(targets) or not len(inputs):
            raise ValueError(f"there are {len(inputs)} inputs and {len(targets)} targets")
    except (TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{part} should be (inputs, targets), tensors or arrays of one length: {reason}") from None
    return inputs, targets
