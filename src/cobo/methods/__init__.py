"""The methods, by the names they have on the command line and in files, in the order of the paper's table."""

from cobo.methods.base import Method, State
from cobo.methods.cobo import CoBo
from cobo.methods.ditto import Ditto
from cobo.methods.fc import FederatedClustering
from cobo.methods.fedavg import FedAvg
from cobo.methods.finetune import FineTunedFedAvg
from cobo.methods.ifca import IFCA
from cobo.methods.local import Local
from cobo.methods.oracle import Oracle

METHODS: dict[str, type[Method]] = {
    method.name: method for method in (Local, FedAvg, FineTunedFedAvg, Ditto, IFCA, FederatedClustering, CoBo, Oracle)
}

__all__ = [
    "IFCA",
    "METHODS",
    "CoBo",
    "Ditto",
    "FedAvg",
    "FederatedClustering",
    "FineTunedFedAvg",
    "Local",
    "Method",
    "Oracle",
    "State",
]
