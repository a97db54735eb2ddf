"""The paper's image experiments on CIFAR-100: section 4.1 (cross-silo) and section 4.2 (cross-device)."""

from abc import abstractmethod
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator
from torch import nn

from cobo import draws
from cobo.data import Split, cifar100
from cobo.errors import ConfigError, DataError
from cobo.experiments.experiment import Experiment, Parts
from cobo.federation import partition
from cobo.federation.share import Share
from cobo.models import Standardise, patch_cnn, resnet9

MEAN, STD = (0.5071, 0.4866, 0.4409), (0.2673, 0.2564, 0.2762)  # of the training images' channels
CLASSES = 100


class Cifar100(Experiment):
    """CIFAR-100 divided among clients: `fraction` of its training images, judged by `test_fraction` of its test images.

    Which test images does not depend on the seed.
    """

    fraction: float = Field(default=1.0, gt=0, le=1)
    test_fraction: float = Field(default=1.0, gt=0, le=1)
    network: Literal["resnet9", "patch-cnn"] = "resnet9"
    width: int = Field(default=64, ge=1)
    norm: Literal["batch", "group"] = "batch"

    @model_validator(mode="after")
    def _normalises(self) -> Self:
        if self.norm != "batch" and self.network != "resnet9":
            raise ValueError(f"norm = {self.norm!r} has a meaning only with network = 'resnet9'")
        return self

    def build(self, seed: int, *, validation: float = 0.0) -> Parts:
        train, test = cifar100()
        if validation:
            train, test = train.divided(validation, seed)
        if self.test_fraction < 1:
            test = test.divided(1 - self.test_fraction, 0)[0]
        try:
            clients = partition.make_clients(self._shares(train, seed), train, test)
        except (ConfigError, DataError) as error:
            shares = {"fraction": self.fraction, "test_fraction": self.test_fraction}
            few = " or ".join(f"{name} = {share}" for name, share in shares.items() if share < 1)
            raise type(error)(f"{few} may be too small here: {error}" if few else str(error)) from None
        return Parts(clients, self._model, "cross_entropy")

    def _model(self) -> nn.Sequential:
        if self.network == "resnet9":
            network = resnet9(3, CLASSES, width=self.width, norm=self.norm)
        else:
            network = patch_cnn(3, CLASSES, width=self.width)
        return nn.Sequential(Standardise(MEAN, STD), *network)

    @abstractmethod
    def _shares(self, train: Split, seed: int) -> list[Share]:
        """Who gets which images."""


class CrossSilo(Cifar100):
    """Groups that call each class by another name; the images of a group are dealt evenly to its clients."""

    what: ClassVar[str] = "paper, section 4.1: 8 clients in 4 groups with permuted labels, CIFAR-100, ResNet-9"
    members: ClassVar[tuple[str, ...]] = (*Experiment.members, "groups")

    groups: int = Field(default=4, ge=1)
    clients_per_group: int = Field(default=2, ge=1)

    def _shares(self, train: Split, seed: int) -> list[Share]:
        return partition.permuted_labels(
            len(train.targets), CLASSES, groups=self.groups, clients_per_group=self.clients_per_group,
            samples=round(self.fraction * len(train.targets)) // self.clients_per_group, seed=seed,
        )  # fmt: skip


class CrossSiloSmall(CrossSilo):
    """The same for two CPU cores."""

    what: ClassVar[str] = "the same with a tenth of the images and a small network, for two CPU cores"


class CrossDevice(Cifar100):
    """Groups that own different classes, and differ in size; the images of a group are dealt evenly to its clients."""

    what: ClassVar[str] = "paper, section 4.2: 80 clients in 10 groups of 10 classes each, CIFAR-100, ResNet-9"
    members: ClassVar[tuple[str, ...]] = Experiment.members

    group_sizes: tuple[int, ...] = (6, 6, 7, 7, 8, 8, 9, 9, 10, 10)

    def _shares(self, train: Split, seed: int) -> list[Share]:
        order = np.random.default_rng(int(draws.key(seed, "fraction"))).permutation(len(train.targets))
        kept = np.sort(order[: round(self.fraction * len(order))])
        shares = partition.disjoint_classes(train.targets[kept], group_sizes=self.group_sizes, seed=seed)
        return [share._replace(positions=kept[share.positions]) for share in shares]


class CrossDeviceSmall(CrossDevice):
    """The same for two CPU cores."""

    what: ClassVar[str] = "the same with a small network, for two CPU cores"
