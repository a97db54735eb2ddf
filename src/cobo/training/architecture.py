"""A module's architecture as JSON, when it is made of torch.nn's own layers: so that a saved result needs no pickle.

Modules of a user's own class cannot be described this way; for them `cobo.load` is given the model again.
"""

import inspect
from typing import Any

import torch
from torch import nn

Description = dict[str, Any]


def describe(module: nn.Module) -> Description | None:
    """The architecture of a tree of torch.nn layers, or None if it holds anything else."""
    described = _describe(module)
    if described is None:
        return None
    try:
        twin = rebuild(described).state_dict()
    except (TypeError, ValueError, AttributeError, RuntimeError):
        return None
    own = module.state_dict()
    same = {k: v.shape for k, v in own.items()} == {k: v.shape for k, v in twin.items()}
    return described if same else None


def rebuild(described: Description) -> nn.Module:
    """A module with the described architecture; only classes of torch.nn are ever made."""
    kind = getattr(nn, described["class"])
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise ValueError(f"{described['class']!r} is not a layer of torch.nn")
    if "children" in described:
        return nn.Sequential(*(rebuild(child) for child in described["children"]))
    module: nn.Module = kind(**described["settings"])
    return module


def _describe(module: nn.Module) -> Description | None:
    kind = type(module)
    if getattr(nn, kind.__name__, None) is not kind:
        return None
    if kind is nn.Sequential:
        children = [_describe(child) for child in module.children()]
        return None if None in children else {"class": "Sequential", "children": children}
    if list(module.children()):
        return None
    settings: dict[str, Any] = {}
    for name in inspect.signature(kind.__init__).parameters:
        value = getattr(module, name, None)
        if name == "bias":
            settings[name] = value is not None and value is not False
        elif name not in ("self", "device", "dtype") and hasattr(module, name):
            if not isinstance(value, (bool, int, float, str, tuple, list, type(None), torch.Size)):
                return None
            settings[name] = list(value) if isinstance(value, tuple) else value
    return {"class": kind.__name__, "settings": settings}
