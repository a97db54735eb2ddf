"""A module's architecture as JSON, if made of layers of torch.nn or cobo.models: a saved result needs no pickle.

Modules of a user's own class cannot be described this way; for them `cobo.load` is given the model again.
"""

import inspect
from typing import Any

import torch
from torch import nn

from cobo.models.layers import Residual, Standardise

Description = dict[str, Any]

OURS: dict[str, type[nn.Module]] = {"Residual": Residual, "Standardise": Standardise}
HOLDERS = (nn.Sequential, Residual)  # layers that are what is inside them

_DTYPES = {"float32": torch.float32, "float64": torch.float64, "float16": torch.float16, "bfloat16": torch.bfloat16}


def describe(module: nn.Module) -> Description | None:
    """The architecture of a tree of layers of torch.nn and of ours, or None if it holds anything else."""
    described = _describe(module)
    if described is None:
        return None
    try:
        twin = rebuild(described)
    except (TypeError, ValueError, AttributeError, RuntimeError):
        return None
    shapes = [{k: (v.shape, v.dtype) for k, v in m.state_dict().items()} for m in (module, twin)]
    return described if shapes[0] == shapes[1] and repr(module) == repr(twin) else None


def rebuild(described: Description) -> nn.Module:
    """A module with the described architecture; only classes of torch.nn and of `OURS` are ever made."""
    kind = _layer(described["class"])
    if kind is None or ("children" in described and kind not in HOLDERS):
        raise ValueError(f"{described['class']!r} is not such a layer of torch.nn or cobo.models")
    if "children" in described:
        return kind(*(rebuild(child) for child in described["children"]))
    with torch.random.fork_rng(devices=[]):  # initialising draws, and nobody asked for that
        module: nn.Module = kind(**described["settings"])
    dtype = described.get("dtype")
    return module if dtype is None else module.to(_DTYPES[dtype])


def _describe(module: nn.Module) -> Description | None:
    kind = type(module)
    if _layer(kind.__name__) is not kind:
        return None
    if kind in HOLDERS:
        children = [None if child is None else _describe(child) for child in module._modules.values()]
        return None if None in children else {"class": kind.__name__, "children": children}
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
    dtypes = {str(p.dtype).removeprefix("torch.") for p in module.parameters()}
    if not dtypes:
        return {"class": kind.__name__, "settings": settings}
    (dtype, *others) = dtypes
    return None if others or dtype not in _DTYPES else {"class": kind.__name__, "settings": settings, "dtype": dtype}


def _layer(name: str) -> type[nn.Module] | None:
    found = OURS.get(name) or getattr(nn, name, None)
    return found if isinstance(found, type) and issubclass(found, nn.Module) else None
