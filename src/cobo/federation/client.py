"""A party with its own data: the only thing a user must build."""

import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch

from cobo import draws
from cobo.errors import ConfigError, DataError
from cobo.federation.samples import Samples, as_samples
from cobo.federation.windows import Windows


@dataclass(frozen=True, init=False, eq=False)
class Client:
    """One party: a name, the samples it trains on, those it is judged by, and (if known) its true group.

    `train` and `test` are a tuple `(inputs, targets)` of tensors or arrays, a dict of tensors, one tensor, or a
    map-style torch `Dataset`. The name identifies the client everywhere: in files, in draws, in W.

    >>> import torch
    >>> Client("north", train=(torch.zeros(5, 3), torch.zeros(5, dtype=torch.long)))
    Client('north', 5 samples)
    """

    name: str
    train: Samples
    test: Samples | None
    group: str | int | None

    def __init__(self, name: str, train: Any, test: Any = None, *, group: str | int | None = None) -> None:
        object.__setattr__(self, "name", _checked_name(name))
        object.__setattr__(self, "train", as_samples(train, name, "train"))
        object.__setattr__(self, "test", None if test is None else as_samples(test, name, "test"))
        object.__setattr__(self, "group", _checked_group(group, name))

    def hold_out(self, share: float, seed: int) -> Self:
        """The same client judged by a share of its training samples, on which it then does not train.

        At least one sample is held out, and at least one is not. Test samples it had are not looked at.
        """
        count = len(self.train)
        if count < 2:
            raise DataError(f"client {self.name!r} has {count} sample, too few to hold one out to judge it by")
        held = min(max(1, round(share * count)), count - 1)
        random = np.random.default_rng(int(draws.key(seed, "held out", self.name)))
        order = torch.from_numpy(random.permutation(count))
        kept, judged = order[held:].sort().values, order[:held].sort().values
        return type(self)(self.name, self.train.part(kept), self.train.part(judged), group=self.group)

    def __repr__(self) -> str:
        return f"Client({self.name!r}, {len(self.train)} samples)"


def check_clients(clients: Sequence[Client], fewest: int = 2) -> list[Client]:
    """The clients as a list, or a `ConfigError`: at least two (or `fewest`), distinct names, data of one shape."""
    clients = list(clients)
    for client in clients:
        if not isinstance(client, Client):
            raise ConfigError(f"clients must be cobo.Client objects, but one is a {type(client).__name__}")
    if len(clients) < fewest:
        raise ConfigError(f"clients = {clients!r}: collaboration needs at least two clients")
    check_names([client.name for client in clients])
    usual = Counter(client.train.signature for client in clients).most_common(1)[0][0]  # who differs is to be named
    other = next(client.name for client in clients if client.train.signature == usual)
    for client in clients:
        for part, samples in (("train", client.train), ("test", client.test)):
            if samples is not None and samples.signature != usual:
                text = isinstance(samples, Windows)
                remedy = "make all by one LanguageModel and with one context" if text else "convert this client's"
                raise DataError(
                    f"client {client.name!r}: {part} samples look like {samples.signature}, but {other!r} has {usual}; "
                    f"all clients need samples of one shape, so {remedy}"
                )
    return clients


def check_names(names: Sequence[str]) -> None:
    """Refuse names that cannot be those of files, or that are not distinct."""
    seen: dict[str, str] = {}
    for name in names:
        # Some file systems do not tell north from North, nor two ways to write an accent.
        folded = unicodedata.normalize("NFC", _checked_name(name)).casefold()
        if folded in seen:
            raise ConfigError(
                f"client names must be distinct, also without regard to case, but there are {seen[folded]!r} and "
                f"{name!r}; rename one"
            )
        seen[folded] = name


def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or not name.strip():
        raise ConfigError(f"client name {name!r} is not allowed; it should be a non-empty string")
    bad = any(c in "/\\" or unicodedata.category(c) in ("Cc", "Cs") for c in name)
    if bad or name.startswith(".") or name != name.strip() or len(name.encode()) > 200:
        raise ConfigError(
            f"client name {name!r} is not allowed; it names files, so it should have no path separators, "
            "control characters or leading dot, and at most 200 bytes"
        )
    return name


def _checked_group(group: Any, name: str) -> str | int | None:
    plain = group.item() if hasattr(group, "item") else group
    if plain is not None and not isinstance(plain, (str, int)):
        raise ConfigError(f"client {name!r}: group = {group!r} is not allowed; it should be a string or an integer")
    return plain
