"""A client's samples in one shape, whatever the user handed over: fields that can be indexed by position."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from cobo.compute.batch import Fields, Layout
from cobo.errors import DataError


class Samples(Protocol):
    """What a federation needs of a data set."""

    @property
    def layout(self) -> Layout: ...

    @property
    def signature(self) -> str: ...

    def __len__(self) -> int: ...

    def take(self, positions: Tensor) -> Fields: ...


@dataclass(frozen=True)
class TensorSamples:
    """Samples held as tensors whose first axis counts them."""

    fields: Fields
    layout: Layout

    def __len__(self) -> int:
        return len(self.fields[0])

    def take(self, positions: Tensor) -> Fields:
        return tuple(field[positions] for field in self.fields)

    @property
    def signature(self) -> str:
        return _signature(tuple(field[0] for field in self.fields))


class DatasetSamples:
    """Samples of a map-style `Dataset`, fetched item by item each time they are drawn (nothing is cached)."""

    def __init__(self, dataset: "Dataset[Any]", size: int) -> None:
        self._dataset = dataset
        self._size = size
        self._first, self.layout = _split(default_collate([dataset[0]]))
        self.signature = _signature(tuple(field[0] for field in self._first))

    def __len__(self) -> int:
        return self._size

    def take(self, positions: Tensor) -> Fields:
        return _split(default_collate([self._dataset[k] for k in positions.tolist()]))[0]


class Pool:
    """The samples of all clients behind one index, so that a whole round's batches are one gather.

    Tensors are concatenated once, moved to the device, and floating fields take the models' dtype.
    """

    def __init__(self, samples: Sequence[Samples], *, dtype: torch.dtype, device: torch.device) -> None:
        self.layout = samples[0].layout
        self.sizes = np.array([len(s) for s in samples], dtype=np.int64)
        self._offsets = np.concatenate([[0], np.cumsum(self.sizes)[:-1]])
        self._samples = samples
        self._dtype, self._device = dtype, device
        self._fields: Fields | None = None
        if all(isinstance(s, TensorSamples) for s in samples):
            columns = zip(*(s.fields for s in samples if isinstance(s, TensorSamples)), strict=True)
            self._fields = self._placed(tuple(torch.cat(column) for column in columns))

    def take(self, clients: NDArray[np.int64], positions: NDArray[np.int64]) -> Fields:
        """Row k of each field holds the samples of client clients[k] at positions[k]: [m, batch, ...]."""
        if self._fields is not None:
            flat = torch.from_numpy((self._offsets[clients][:, None] + positions).reshape(-1))
            return tuple(
                field.index_select(0, flat.to(field.device)).view(*positions.shape, *field.shape[1:])
                for field in self._fields
            )
        taken = [self._samples[c].take(torch.from_numpy(p)) for c, p in zip(clients, positions, strict=True)]
        return self._placed(tuple(torch.stack(column) for column in zip(*taken, strict=True)))

    def walk(self, client: int, size: int) -> Iterator[Fields]:
        """All samples of one client in order, `size` at a time."""
        for start in range(0, int(self.sizes[client]), size):
            stop = min(start + size, int(self.sizes[client]))
            if self._fields is not None:
                offset = int(self._offsets[client])
                yield tuple(field[offset + start : offset + stop] for field in self._fields)
            else:
                yield self._placed(self._samples[client].take(torch.arange(start, stop)))

    def _placed(self, fields: Fields) -> Fields:
        return tuple(f.to(self._device, self._dtype if f.is_floating_point() else f.dtype) for f in fields)


def as_samples(data: Any, name: str, part: str) -> Samples:
    """What the user gave for a client's `train` or `test`, checked."""
    where = f"client {name!r}: {part}"
    samples: Samples
    if isinstance(data, (TensorSamples, DatasetSamples)):
        return data
    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, Dataset):
        size = getattr(data, "__len__", lambda: None)()
        if size is None:
            raise DataError(f"{where} is an iterable data set; give one that has a length and can be indexed")
        if size == 0:
            raise DataError(f"{where} is empty; every client needs at least one sample")
        samples = DatasetSamples(data, size)
    else:
        try:
            fields, layout = _split(data)
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(
                f"{where} should be (inputs, targets), a dict of tensors, a tensor or a Dataset: {error}"
            ) from None
        lengths = [len(field) if field.ndim else 0 for field in fields]
        if not fields or 0 in lengths:
            raise DataError(f"{where} is empty; every client needs at least one sample")
        if len(set(lengths)) > 1:
            raise DataError(f"{where} has fields of different lengths {lengths}; they should count the same samples")
        samples = TensorSamples(fields, layout)
    return samples


def _split(data: Any) -> tuple[Fields, Layout]:
    if isinstance(data, dict):
        return tuple(_tensor(v) for v in data.values()), Layout(keys=tuple(data))
    if isinstance(data, (tuple, list)):
        return tuple(_tensor(v) for v in data), Layout()
    return (_tensor(data),), Layout(single=True)


def _tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    return torch.as_tensor(np.asarray(value))


def _signature(sample: Fields) -> str:
    """Shapes and kinds of a sample's fields, in words."""
    kinds = ("float" if f.is_floating_point() else "bool" if f.dtype == torch.bool else "integer" for f in sample)
    return ", ".join(f"{kind} {list(f.shape)}" for kind, f in zip(kinds, sample, strict=True))
