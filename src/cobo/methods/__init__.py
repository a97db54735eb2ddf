"""The methods, by the names they have on the command line and in files."""

from cobo.methods.base import Method, State
from cobo.methods.cobo import CoBo
from cobo.methods.local import Local
from cobo.methods.oracle import Oracle

METHODS: dict[str, type[Method]] = {method.name: method for method in (CoBo, Local, Oracle)}

__all__ = ["METHODS", "CoBo", "Local", "Method", "Oracle", "State"]
