"""Small reference models; any nn.Module of your own works as well."""

from cobo.models.cnn import cnn
from cobo.models.mlp import mlp

__all__ = ["cnn", "mlp"]
