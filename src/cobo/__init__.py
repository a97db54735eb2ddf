"""cobo: one personal model per party, and who should learn from whom.

>>> import cobo                                                            # doctest: +SKIP
>>> clients = [cobo.Client("north", train=(x, y), test=(xt, yt)), ...]     # doctest: +SKIP
>>> result = cobo.fit(clients, model=make_model, rounds=1000, lr=0.1)      # doctest: +SKIP
>>> result.models["north"], result.weights, result.groups()                # doctest: +SKIP
"""

from cobo import errors
from cobo.engines import Clocks
from cobo.federation import Client, Roster, partition
from cobo.methods import IFCA, CoBo, Ditto, FedAvg, FederatedClustering, FineTunedFedAvg, Local, Oracle
from cobo.training.fit import fit
from cobo.training.result import Result
from cobo.training.result import load_result as load
from cobo.training.settings import Training

__version__ = "0.1.0"
__all__ = [
    "IFCA",
    "Client",
    "Clocks",
    "CoBo",
    "Ditto",
    "FedAvg",
    "FederatedClustering",
    "FineTunedFedAvg",
    "Local",
    "Oracle",
    "Result",
    "Roster",
    "Training",
    "errors",
    "fit",
    "load",
    "partition",
]
