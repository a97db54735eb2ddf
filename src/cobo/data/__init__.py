"""Data sets: where they are, whether they are whole, and how to get what is missing."""

from cobo.data.cifar100 import SOURCE as CIFAR100
from cobo.data.cifar100 import cifar100
from cobo.data.digits import SOURCE as DIGITS
from cobo.data.digits import digits
from cobo.data.fashion_mnist import SOURCE as FASHION_MNIST
from cobo.data.fashion_mnist import fashion_mnist
from cobo.data.libreoffice_help import SOURCE as LIBREOFFICE_HELP
from cobo.data.libreoffice_help import libreoffice_help
from cobo.data.source import Source, Split
from cobo.data.wikipedia import SOURCE as WIKIPEDIA
from cobo.data.wikipedia import wikipedia

__all__ = ["DATA", "Source", "Split", "cifar100", "digits", "fashion_mnist", "libreoffice_help", "wikipedia"]

DATA = {source.name: source for source in (DIGITS, FASHION_MNIST, CIFAR100, WIKIPEDIA, LIBREOFFICE_HELP)}
