"""The paper's Example as a federation: groups of clients with f_i(x) = a_i/2 |x - mu_k|^2 and noise of a known size.

A client's samples are its group's centre mu_k plus or minus one step along each axis, so their mean is mu_k. A model is
a point x, as the weight of a linear map from the number sqrt(a) to R^4: with targets sqrt(a) m, half the squared error
is a/2 |x - m|^2.
"""

import math
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from cobo.experiments.experiment import Experiment, Parts
from cobo.federation import Client


class Quadratic(Experiment):
    """Centres on a circle, and a common start above its middle: equally far from all, so one step size suits all.

    From high enough every pair agrees (point A of the paper's Figure 1), so that W has to be learned. Which way is up
    is drawn, perpendicular to the circle: some methods need several different starts. Members of a group have the
    curvatures a_i of `curvatures`, the same in each group. With `batch_size` samples drawn with replacement, the noise
    of a gradient has E|noise|^2 = sigma^2 exactly, wherever it is taken; without, gradients are exact.
    """

    what: ClassVar[str] = "the paper's example: 6 clients in 3 groups, f_i = a_i/2 |x - mu_k|^2 with noise"

    groups: int = Field(default=3, ge=1)
    curvatures: tuple[Annotated[float, Field(gt=0)], ...] = Field(default=(1.0, 1.4), min_length=1)
    sigma: float = Field(default=1.5, gt=0)
    radius: float = Field(default=2.0, gt=0)
    height: float = Field(default=4.0, ge=0)

    @property
    def centres(self) -> Tensor:
        """mu [K, 4]."""
        angles = 2 * math.pi * torch.arange(self.groups, dtype=torch.float64) / self.groups
        flat = torch.zeros_like(angles)
        return self.radius * torch.stack([angles.cos(), angles.sin(), flat, flat], dim=1)

    def build(self, seed: int, *, validation: float = 0.0) -> Parts:
        clients = [
            point_client(f"group{k}-client{i}", mu, a, scatter=self._scatter(a), group=k)
            for k, mu in enumerate(self.centres)
            for i, a in enumerate(self.curvatures)
        ]
        if validation:
            clients = [client.hold_out(validation, seed) for client in clients]
        return Parts(clients, self._start, half_squared_error)

    def _start(self) -> nn.Module:
        angle = 2 * math.pi * float(torch.rand(()))
        return point([0.0, 0.0, self.height * math.cos(angle), self.height * math.sin(angle)])

    def _scatter(self, a: float) -> float:
        """A sample's noise is a times its distance from the centre; the mean of a batch has that squared over b."""
        return self.sigma * math.sqrt(self.batch_size or 1) / a


def point(start: list[float]) -> nn.Module:
    """A model that is a point."""
    model = nn.Linear(1, len(start), bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(torch.tensor(start, dtype=torch.float64)[:, None])
    return model


def point_client(name: str, mu: Tensor, a: float, *, scatter: float, group: int | None = None) -> Client:
    """A client with f(x) = a/2 |x - mu|^2 up to a constant; on its test sample, mu itself, the constant is 0."""
    axes = torch.eye(len(mu), dtype=torch.float64)
    return Client(
        name,
        train=_samples(mu + scatter * torch.cat([axes, -axes]), a),
        test=_samples(mu[None], a),
        group=group,
    )


def _samples(points: Tensor, a: float) -> tuple[Tensor, Tensor]:
    root = math.sqrt(a)
    return torch.full((len(points), 1), root, dtype=torch.float64), root * points


def half_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * (outputs - targets).square().sum(-1).mean()
