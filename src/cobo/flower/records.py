"""Messages as Flower carries them: arrays as NumPy writes them, without pickle, and the rest as JSON."""

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from cobo.flower.wire import TENSORS, Hello, Order, Reply

Said = TypeVar("Said", Hello, Order, Reply)


def pack(message: Hello | Order | Reply) -> RecordDict:
    """A message as Flower sends it."""
    kinds = TENSORS[type(message)]
    facts = {f.name: getattr(message, f.name) for f in fields(message) if f.name not in kinds}
    vectors = {kind: vector for kind in kinds if (vector := getattr(message, kind)) is not None}
    arrays = ArrayRecord({kind: Array(v.detach().cpu().contiguous().numpy()) for kind, v in vectors.items()})
    return RecordDict({"facts": ConfigRecord({"json": json.dumps(facts)}), "vectors": arrays})


def unpack(kind: type[Said], content: RecordDict) -> Said:
    """What was sent, or a ValueError: it comes from someone else, so anything can be wrong with it."""
    try:
        said: dict[str, Any] = json.loads(str(content.config_records["facts"]["json"]))
        arrays: Mapping[str, Array] = content.array_records["vectors"]
        said |= {name: torch.from_numpy(array.numpy().copy()) for name, array in arrays.items()}
        return kind(**said)
    except Exception as error:
        raise ValueError(unreadable(error)) from None


def unreadable(error: Exception) -> str:
    """In one line, why what was sent says nothing."""
    return f"it cannot be read: {' '.join(str(error).split())[:200]}"
