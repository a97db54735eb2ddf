"""digits: the paper's cross-silo structure on data that comes with scikit-learn; minutes on a laptop."""

from typing import ClassVar

from pydantic import Field

from cobo.data import digits
from cobo.experiments.experiment import Experiment, Parts
from cobo.federation import partition
from cobo.models import mlp


class Digits(Experiment):
    """Groups of clients that name the ten digits differently; inside a group, data are complementary."""

    what: ClassVar[str] = "8 clients in 4 groups with permuted labels, handwritten digits, an MLP; nothing to download"

    groups: int = Field(default=4, ge=1)
    clients_per_group: int = Field(default=2, ge=1)
    samples: int = Field(default=150, ge=1)
    hidden: tuple[int, ...] = (64,)

    def build(self, seed: int) -> Parts:
        train, test = digits()
        shares = partition.permuted_labels(
            len(train.targets), 10, groups=self.groups, clients_per_group=self.clients_per_group,
            samples=self.samples, seed=seed,
        )  # fmt: skip
        clients = partition.make_clients(shares, train, test)
        return Parts(clients, lambda: mlp(64, self.hidden, 10), "cross_entropy")
