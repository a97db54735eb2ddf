"""Ways to split a data set among clients with known groups; all that is random follows from `seed`."""

import operator
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cobo import draws
from cobo.errors import ConfigError
from cobo.federation.proportions import dirichlet_counts
from cobo.federation.share import Indices, Share, make_clients

__all__ = [
    "Share",
    "by_column",
    "by_quantity",
    "dirichlet",
    "disjoint_classes",
    "make_clients",
    "permuted_labels",
]

Column = Sequence[Any] | NDArray[Any] | Tensor


def permuted_labels(
    size: int, classes: int, *, groups: int, clients_per_group: int, samples: int | None = None, seed: int = 0
) -> list[Share]:
    """The paper's cross-silo split: each group renames the classes, so that a class has another label in every group.

    Each group has the whole data set; its clients get disjoint random parts of `samples` each (everything, if None).

    >>> [(s.name, len(s.positions)) for s in permuted_labels(7, 10, groups=1, clients_per_group=2)]
    [('group0-client0', 4), ('group0-client1', 3)]
    """
    size, classes = _whole("size", size), _whole("classes", classes)
    groups, clients_per_group = _whole("groups", groups), _whole("clients_per_group", clients_per_group)
    if groups > classes:
        raise ConfigError(f"groups = {groups} is not allowed; with {classes} classes at most {classes} can differ")
    random = _random(seed, "permuted labels")
    # Shifting by a different amount in every group makes all labels of a class differ; shuffling before and after
    # the shift makes the renaming random.
    before, after = random.permutation(classes), random.permutation(classes)
    shifts = random.permutation(classes)[:groups]
    shares = []
    for group in range(groups):
        labels = after[(before + shifts[group]) % classes]
        parts = _dealt(random.permutation(size), clients_per_group, samples, "clients_per_group")
        shares += _shares(group, parts, labels)
    return shares


def disjoint_classes(
    targets: Column, *, group_sizes: Sequence[int], samples: int | None = None, seed: int = 0
) -> list[Share]:
    """The paper's cross-device split: each group owns some of the classes; `group_sizes` counts its clients.

    Classes are divided evenly, at random, and keep their numbers. A group's clients get disjoint random parts of its
    samples, `samples` each (everything, if None).

    >>> shares = disjoint_classes([0, 1, 2, 3] * 3, group_sizes=[1, 2])
    >>> [(s.group, len(s.positions), int((s.labels >= 0).sum())) for s in shares]
    [(0, 6, 2), (1, 3, 2), (1, 3, 2)]
    """
    numbers, sizes = _class_numbers(targets), _wholes("group_sizes", group_sizes)
    classes = np.unique(numbers)
    if len(sizes) > len(classes):
        raise ConfigError(f"group_sizes has {len(sizes)} groups; {len(classes)} classes are enough for {len(classes)}")
    random = _random(seed, "disjoint classes")
    shares = []
    for group, owned in enumerate(np.array_split(random.permutation(classes), len(sizes))):
        rows = random.permutation(np.flatnonzero(np.isin(numbers, owned)))
        shares += _shares(group, _dealt(rows, sizes[group], samples, "group_sizes"), _kept(owned, numbers))
    return shares


def dirichlet(
    targets: Column, *, groups: int, clients_per_group: int, alpha: float, seed: int = 0, minimum: int = 1
) -> list[Share]:
    """Every class is divided over the groups by proportions drawn from Dirichlet(alpha): small alpha, unlike groups.

    A group's samples are dealt evenly to its clients, who thus share one label distribution. Groups too small to
    give each client `minimum` samples are filled from the largest one.

    >>> shares = dirichlet([0, 1] * 50, groups=2, clients_per_group=2, alpha=0.1)
    >>> sum(len(s.positions) for s in shares)
    100
    """
    numbers = _class_numbers(targets)
    groups, clients_per_group = _whole("groups", groups), _whole("clients_per_group", clients_per_group)
    needed = _whole("minimum", minimum) * clients_per_group
    if needed * groups > len(numbers):
        raise ConfigError(
            f"minimum = {minimum} is not allowed; {groups} groups of {clients_per_group} clients share {len(numbers)} "
            "samples; have fewer clients or a smaller minimum"
        )
    random = _random(seed, "dirichlet")
    classes, amounts = np.unique(numbers, return_counts=True)
    counts = dirichlet_counts(random, amounts, groups=groups, alpha=alpha, least=needed)
    held: list[list[Indices]] = [[] for _ in range(groups)]
    for number, row in zip(classes, counts, strict=True):
        rows = random.permutation(np.flatnonzero(numbers == number))
        for group, part in enumerate(np.split(rows, np.cumsum(row)[:-1])):
            held[group].append(part)
    shares = []
    for group, parts in enumerate(held):
        rows = random.permutation(np.concatenate(parts))
        dealt = _dealt(rows, clients_per_group, None, "clients_per_group")
        shares += _shares(group, dealt, _kept(classes[counts[:, group] > 0], numbers))
    return shares


def by_quantity(size: int, *, sizes: Sequence[int], seed: int = 0) -> list[Share]:
    """Clients of one distribution with different amounts: client k gets exactly sizes[k] of the `size` samples.

    >>> [len(s.positions) for s in by_quantity(100, sizes=[50, 5, 1])]
    [50, 5, 1]
    """
    size, wanted = _whole("size", size), _wholes("sizes", sizes)
    if sum(wanted) > size:
        raise ConfigError(f"sizes add up to {sum(wanted)}, but there are {size} samples; make some smaller")
    order = _random(seed, "by quantity").permutation(size)
    parts = np.split(order, np.cumsum(wanted))[: len(wanted)]
    return [Share(f"client{k}", 0, np.sort(part), None) for k, part in enumerate(parts)]


def by_column(values: Column, *, clients_per_group: int = 1, seed: int = 0) -> list[Share]:
    """One group for each distinct value of a column (hospital, language), named after it, in order of appearance.

    Values are compared as text. A group's samples are dealt evenly to its clients. What a file name cannot hold is
    replaced by _ in names of clients, not in those of groups.

    >>> [(s.name, s.positions.tolist()) for s in by_column(["north", "south", "north"])]
    [('north', [0, 2]), ('south', [1])]
    """
    clients_per_group = _whole("clients_per_group", clients_per_group)
    rows: dict[str, list[int]] = {}
    for row, value in enumerate(values.tolist() if isinstance(values, (np.ndarray, Tensor)) else values):
        plain = value.item() if hasattr(value, "item") else value
        if not isinstance(plain, (str, int)) or not str(plain).strip():
            raise ConfigError(
                f"values should be non-empty strings or whole numbers, one per sample; row {row} has {plain!r}"
            )
        rows.setdefault(str(plain), []).append(row)
    if not rows:
        raise ConfigError("values is empty; it should have one value per sample")
    names: dict[str, str] = {}
    shares = []
    for group, mine in rows.items():
        name = _file_name(group)
        other = names.setdefault(unicodedata.normalize("NFC", name).casefold(), group)
        if other != group:
            raise ConfigError(f"values {other!r} and {group!r} would give clients of one name; rename one")
        order = _random(seed, "by column", name).permutation(np.array(mine, dtype=np.int64))
        if len(order) < clients_per_group:
            raise ConfigError(
                f"clients_per_group = {clients_per_group} is not allowed; {group!r} has {len(order)} samples in values"
            )
        for k, part in enumerate(_dealt(order, clients_per_group, None, "clients_per_group")):
            shares.append(Share(name if clients_per_group == 1 else f"{name}-client{k}", group, part, None))
    return shares


def _shares(group: int, parts: list[Indices], labels: Indices) -> list[Share]:
    return [Share(f"group{group}-client{k}", group, part, labels) for k, part in enumerate(parts)]


def _kept(owned: Indices, numbers: Indices) -> Indices:
    """Labels of a group in which the classes that occur keep their numbers."""
    labels = np.full(int(numbers.max()) + 1, -1, dtype=np.int64)
    labels[owned] = owned
    return labels


def _dealt(rows: Indices, clients: int, samples: int | None, field: str) -> list[Indices]:
    """Shuffled rows in sorted parts: `samples` for each client, or all of them, in sizes that differ by one at most."""
    if len(rows) < clients:
        raise ConfigError(f"{field} = {clients} is not allowed; a group has only {len(rows)} samples to share")
    if samples is None:
        return [np.sort(part) for part in np.array_split(rows, clients)]
    samples, most = _whole("samples", samples), len(rows) // clients
    if samples > most:
        raise ConfigError(
            f"samples = {samples} is not allowed; {clients} clients of a group share {len(rows)} samples, "
            f"so it should be 1 to {most}"
        )
    return [np.sort(rows[k * samples : (k + 1) * samples]) for k in range(clients)]


def _file_name(value: str) -> str:
    """A value as the name of a client (see `Client`), with room for a suffix."""
    name = "".join("_" if c in "/\\" or unicodedata.category(c) in ("Cc", "Cs") else c for c in value).strip()
    name = "_" + name[1:] if name.startswith(".") else name
    return name.encode()[:150].decode(errors="ignore").strip()


def _random(seed: int, purpose: str, *names: str) -> np.random.Generator:
    try:
        return np.random.default_rng(int(draws.key(operator.index(seed), purpose, *names)))
    except TypeError:
        raise ConfigError(f"seed = {seed!r} is not allowed; it should be a whole number") from None


def _whole(field: str, value: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if number < 1:
        raise ConfigError(f"{field} = {value!r} is not allowed; it should be a whole number, at least 1")
    return number


def _wholes(field: str, values: Sequence[int]) -> list[int]:
    if isinstance(values, (int, float, str)) or not len(values):
        raise ConfigError(f"{field} = {values!r} is not allowed; it should be a list of whole numbers")
    return [_whole(f"{field}[{k}]", value) for k, value in enumerate(values)]


def _class_numbers(targets: Column) -> Indices:
    try:
        numbers = targets.detach().cpu().numpy() if isinstance(targets, Tensor) else np.asarray(targets)
    except ValueError:  # rows of different lengths
        numbers = np.empty(0)
    if numbers.ndim != 1 or not len(numbers) or numbers.dtype.kind not in "iu" or numbers.min() < 0:
        raise ConfigError("targets should be class numbers 0, 1, 2, ..., one per sample")
    return numbers.astype(np.int64)
