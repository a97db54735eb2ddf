"""Who takes part: clients, their samples and batches, and the federation that computes with them."""

from cobo.federation import partition
from cobo.federation.answers import Gradients, Products
from cobo.federation.client import Client
from cobo.federation.federation import Federation
from cobo.federation.roster import Roster

__all__ = ["Client", "Federation", "Gradients", "Products", "Roster", "partition"]
