"""What a run records beside its checkpoints: a line of metrics per evaluation, and W over time."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from cobo.collaboration import graph
from cobo.errors import CheckpointError


def pack_weights(names: Sequence[str], snapshots: Sequence[tuple[int, NDArray[np.float32]]]) -> bytes:
    """W over time as safetensors: rounds [s], weights [s, n, n]; the names of the n clients are in its metadata."""
    rounds, weights = [r for r, _ in snapshots], np.stack([w for _, w in snapshots])
    tensors = {"rounds": torch.tensor(rounds), "weights": torch.from_numpy(weights)}
    return save(tensors, metadata={"names": json.dumps(list(names))})


def unpack_weights(path: Path, everyone: Sequence[str]) -> list[tuple[int, NDArray[np.float32]]]:
    """W over time among `everyone`, whoever the clients were when it was written."""
    try:
        with safe_open(path, "np") as file:
            rounds, weights = file.get_tensor("rounds"), file.get_tensor("weights")
            names = json.loads((file.metadata() or {}).get("names", json.dumps(list(everyone))))
        return [(int(r), graph.among(everyone, names, w)) for r, w in zip(rounds, weights, strict=True)]
    except (OSError, KeyError, TypeError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}; delete it to go on without the history of W") from error


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file; a last line torn by a kill is left out."""
    lines = []
    texts = path.read_bytes().splitlines(keepends=True)
    for k, text in enumerate(texts):
        try:
            line = json.loads(text)
            line["round"]
        except (ValueError, TypeError, KeyError, IndexError) as error:
            if k == len(texts) - 1 and not text.endswith(b"\n"):
                break
            raise CheckpointError(f"{path} is damaged in line {k + 1}; mend or delete the file") from error
        lines.append(line)
    return lines


def listed(line: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """A line of metrics with what it says of each client in lists, in the order of the names."""
    measures = ("accuracy", "loss", *(["perplexity"] if "perplexity" in line else []))
    lists = {f"client_{m}": [line["clients"].get(name, {}).get(m) for name in names] for m in measures}
    return {**{k: v for k, v in line.items() if k != "clients"}, **lists}


def append_synced(path: Path, text: str) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
