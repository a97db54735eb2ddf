"""Small reference models; any nn.Module of your own works as well."""

from cobo.models.cnn import cnn
from cobo.models.layers import Residual, Standardise
from cobo.models.mlp import mlp
from cobo.models.patch_cnn import patch_cnn
from cobo.models.resnet9 import resnet9

__all__ = ["Residual", "Standardise", "cnn", "mlp", "patch_cnn", "resnet9"]
