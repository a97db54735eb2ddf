"""The paper's cross-silo structure on small images: groups of clients that name the classes differently."""

from abc import abstractmethod
from typing import ClassVar

from pydantic import Field

from cobo.data import Split, digits, fashion_mnist
from cobo.experiments.experiment import Experiment, Parts
from cobo.federation import partition
from cobo.models import mlp


class PermutedLabels(Experiment):
    """In every group a class has another label; inside a group, clients have different samples. The model is an MLP."""

    members: ClassVar[tuple[str, ...]] = (*Experiment.members, "groups", "clients_per_group")

    groups: int = Field(default=4, ge=1)
    clients_per_group: int = Field(default=2, ge=1)
    samples: int = Field(default=150, ge=1)
    hidden: tuple[int, ...] = (64,)

    @abstractmethod
    def load(self) -> tuple[Split, Split]:
        """The images to train on, and those to judge by."""

    def build(self, seed: int, *, validation: float = 0.0) -> Parts:
        train, test = self.load()
        samples = self.samples
        if validation:
            train, test = train.divided(validation, seed)
            samples = min(samples, len(train.targets) // self.clients_per_group)
        classes = int(train.targets.max()) + 1
        shares = partition.permuted_labels(
            len(train.targets), classes, groups=self.groups, clients_per_group=self.clients_per_group,
            samples=samples, seed=seed,
        )  # fmt: skip
        inputs = train.inputs[0].numel()
        clients = partition.make_clients(shares, train, test)
        return Parts(clients, lambda: mlp(inputs, self.hidden, classes), "cross_entropy")


class Digits(PermutedLabels):
    """Minutes on a laptop."""

    what: ClassVar[str] = "8 clients in 4 groups with permuted labels, handwritten digits, an MLP; nothing to download"

    def load(self) -> tuple[Split, Split]:
        return digits()


class FashionMnist(PermutedLabels):
    """Harder images, and a test set large enough to tell methods apart."""

    what: ClassVar[str] = "the same with images of clothing, 28x28"

    def load(self) -> tuple[Split, Split]:
        return fashion_mnist()
