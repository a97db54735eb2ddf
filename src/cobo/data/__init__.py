"""Data sets: where they are, whether they are whole, and how to get what is missing."""

from cobo.data.cifar100 import SOURCE as CIFAR100
from cobo.data.cifar100 import cifar100
from cobo.data.digits import SOURCE as DIGITS
from cobo.data.digits import digits
from cobo.data.fashion_mnist import SOURCE as FASHION_MNIST
from cobo.data.fashion_mnist import fashion_mnist
from cobo.data.source import Source, Split

__all__ = ["DATA", "Source", "Split", "cifar100", "digits", "fashion_mnist"]

DATA = {source.name: source for source in (DIGITS, FASHION_MNIST, CIFAR100)}
