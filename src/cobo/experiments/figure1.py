"""The paper's Figure 1 computed: two clients, three situations, and what client selection makes of each."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cobo.compute.task import Task
from cobo.experiments.quadratic import half_squared_error, point, point_client
from cobo.federation import Federation
from cobo.methods import CoBo, State

MU = torch.tensor([[-1.5, 0.0], [1.5, 0.0]], dtype=torch.float64)
A = (1.0, 1.4)

# Models of both clients. At A and B they are connected and near each other; at C each is near its own minimiser.
SITUATIONS = {
    "A": [[-0.3, 4.3], [0.7, 4.3]],
    "B": [[-0.2, 0.8], [0.5, 0.8]],
    "C": [[-1.9, -1.1], [1.6, -1.0]],
}


def situations() -> dict[str, Any]:
    """Minimisers, and for each situation the models, descent directions there and at the midpoint, product and w_12."""
    clients = [point_client(f"client-{k + 1}", MU[k], A[k], scatter=0.0) for k in range(2)]
    federation = Federation(clients, lambda: point([0.0, 0.0]), task=Task(half_squared_error), batch_size=None)
    weights = torch.tensor(A, dtype=torch.float64)[:, None]
    return {
        "a": list(A),
        "mu": MU.tolist(),
        "joint": ((weights * MU).sum(0) / weights.sum()).tolist(),
        "points": {name: _situation(federation, models) for name, models in SITUATIONS.items()},
    }


def _situation(federation: Federation, models: list[list[float]]) -> dict[str, Any]:
    X = torch.tensor(models, dtype=torch.float64)
    z = X.mean(0)
    pair = np.array([[0, 1]])
    return {
        "models": X.tolist(),
        "midpoint": z.tolist(),
        "at_midpoint": (-federation.gradients(z.expand(2, -1).contiguous()).rows).tolist(),
        "at_models": (-federation.gradients(X).rows).tolist(),
        "product": float(federation.products(X, pair, batches=None).inner),
        "weight": _selected(federation, X),
    }


def _selected(federation: Federation, X: Tensor) -> float:
    """w_12 after one round of CoBo from these models, with the inner problem solved exactly."""
    method = CoBo.paper(sampling="every", pairs="symmetric", solver="frank-wolfe", gamma=1.0, ask="all")
    models = nn.Parameter(X.clone())
    state = State(models, torch.optim.SGD([models], lr=0.1), 1, tensors=method.start(federation))
    method.round(state, federation)
    return float(state.tensors["weights"][0, 1])
