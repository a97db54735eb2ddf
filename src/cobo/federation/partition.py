"""Ways to split a data set among clients with known groups."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cobo import draws
from cobo.errors import ConfigError

Indices = NDArray[np.int64]


class Share(NamedTuple):
    """One client's part: its name, its group, the positions of its samples, and what each class is called there."""

    name: str
    group: int
    positions: Indices
    labels: Indices


def permuted_labels(
    size: int, classes: int, *, groups: int, clients_per_group: int, samples: int | None, seed: int
) -> Iterator[Share]:
    """The paper's cross-silo split: each group renames the classes, so that a class has another label in every group.

    Each group has the whole data set; its clients get disjoint random parts of `samples` each (all, if None).
    """
    samples = size // clients_per_group if samples is None else samples
    if groups > classes:
        raise ConfigError(f"groups = {groups} is not allowed; with {classes} classes at most {classes} can differ")
    if samples < 1 or samples * clients_per_group > size:
        raise ConfigError(
            f"samples = {samples} is not allowed; {clients_per_group} clients per group share {size} samples, "
            f"so it should be 1 to {size // clients_per_group}"
        )
    random = np.random.default_rng(int(draws.key(seed, "permuted labels")))
    # Shifting by a different amount in every group makes all labels of a class differ; shuffling before and after
    # the shift makes the renaming random.
    before, after = random.permutation(classes), random.permutation(classes)
    shifts = random.permutation(classes)[:groups]
    for group in range(groups):
        labels = after[(before + shifts[group]) % classes]
        order = random.permutation(size)
        for k in range(clients_per_group):
            name = f"group{group}-client{k}"
            yield Share(name, group, np.sort(order[k * samples : (k + 1) * samples]), labels)
