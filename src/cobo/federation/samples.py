"""A client's samples in one shape, whatever the user handed over: fields that can be indexed by position."""

import hashlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate

from cobo import draws
from cobo.compute.batch import Fields, Layout
from cobo.errors import DataError
from cobo.federation.windows import Windows


class Samples(Protocol):
    """What a federation needs of a data set."""

    @property
    def layout(self) -> Layout: ...

    @property
    def signature(self) -> str: ...

    def __len__(self) -> int: ...

    def take(self, positions: Tensor) -> Fields: ...

    def part(self, positions: Tensor) -> "Samples": ...


@dataclass(frozen=True, eq=False)
class TensorSamples:
    """Samples held as tensors whose first axis counts them."""

    fields: Fields
    layout: Layout

    def __len__(self) -> int:
        return len(self.fields[0])

    def take(self, positions: Tensor) -> Fields:
        return tuple(field[positions] for field in self.fields)

    def part(self, positions: Tensor) -> "TensorSamples":
        return TensorSamples(self.take(positions), self.layout)

    @property
    def signature(self) -> str:
        return _signature(tuple(field[0] for field in self.fields), self.layout)


class DatasetSamples:
    """Samples of a map-style `Dataset`, fetched item by item each time they are drawn (nothing is cached).

    Whatever an item draws at random (augmentation) follows the key of the batch it is drawn for.
    """

    def __init__(self, dataset: "Dataset[Any]", size: int) -> None:
        self._dataset = dataset
        self._size = size
        self._first, self.layout = _split(default_collate([dataset[0]]))
        self.signature = _signature(tuple(field[0] for field in self._first), self.layout)

    def __len__(self) -> int:
        return self._size

    def take(self, positions: Tensor) -> Fields:
        return _split(default_collate([self._dataset[k] for k in positions.tolist()]))[0]

    def part(self, positions: Tensor) -> "DatasetSamples":
        return DatasetSamples(Subset(self._dataset, positions.tolist()), len(positions))


class Pool:
    """The samples of all clients behind one index, so that a whole round's batches are one gather.

    Tensors, of those clients who are `held` (none: each is looked up in its own), are concatenated once, moved to the
    device, and floating fields take the models' dtype.
    """

    def __init__(
        self,
        samples: Sequence[Samples],
        *,
        dtype: torch.dtype,
        device: torch.device,
        held: NDArray[np.int64] | None = None,
    ) -> None:
        self.layout = samples[0].layout
        self.sizes = np.array([len(s) for s in samples], dtype=np.int64)
        self._samples = samples
        self._dtype, self._device = dtype, device
        self._fields: Fields | None = None
        if held is not None and all(isinstance(s, TensorSamples) for s in samples):
            here = np.where(np.isin(np.arange(len(samples)), held), self.sizes, 0)
            self._offsets = np.cumsum(here) - here
            mine = [s for s in (samples[k] for k in held) if isinstance(s, TensorSamples)]
            columns = zip(*(s.fields for s in mine), strict=True)
            self._fields = self._placed(tuple(torch.cat(column) for column in columns))

    def take(self, clients: NDArray[np.int64], positions: NDArray[np.int64], keys: draws.Keys) -> Fields:
        """Row k of each field holds the samples of client clients[k] at positions[k]: [m, batch, ...]."""
        if self._fields is not None:
            flat = torch.from_numpy((self._offsets[clients][:, None] + positions).reshape(-1))
            return tuple(
                field.index_select(0, flat.to(field.device)).view(*positions.shape, *field.shape[1:])
                for field in self._fields
            )
        return self.fetch(clients, positions, keys)

    def fetch(self, clients: NDArray[np.int64], positions: NDArray[np.int64], keys: draws.Keys) -> Fields:
        """The same, of any clients, from what they were given as."""
        taken = []
        for client, places, key in zip(clients, positions, keys, strict=True):
            with draws.seeded(key):
                taken.append(self._samples[client].take(torch.from_numpy(places)))
        return self._placed(tuple(torch.stack(column) for column in zip(*taken, strict=True)))

    def walk(self, client: int, size: int) -> Iterator[Fields]:
        """All samples of one client in order, in parts of nearly equal size, at most `size`."""
        everything = torch.arange(int(self.sizes[client]))
        for k, part in enumerate(everything.tensor_split(-(-len(everything) // size))):
            with draws.seeded(draws.combine(draws.key(0, "evaluation"), k)):
                fields = self._samples[client].take(part)
            yield self._placed(fields)

    def _placed(self, fields: Fields) -> Fields:
        return tuple(f.to(self._device, self._dtype if f.is_floating_point() else f.dtype) for f in fields)


def held(samples: Samples) -> Fields:
    """The tensors that are at hand of samples; none of those made on demand."""
    if isinstance(samples, Windows):
        return (samples.tokens,) if samples.starts is None else (samples.tokens, samples.starts)
    return samples.fields if isinstance(samples, TensorSamples) else ()


def in_order(samples: Samples) -> Samples:
    """The same samples, or the windows of a text that lie side by side for those that begin anywhere."""
    anywhere = isinstance(samples, Windows) and samples.starts is None
    return samples.part(torch.arange(len(samples))) if anywhere else samples


def unsound(samples: Samples | None) -> int:
    """How many samples have numbers, at hand, that are not finite."""
    fields = [f for f in (() if samples is None else held(samples)) if f.is_floating_point()]
    bad = [~torch.isfinite(f).reshape(len(f), -1).all(1) for f in fields]
    return int(torch.stack(bad).any(0).sum()) if bad else 0


def fingerprint(samples: Samples) -> str:
    """A checksum of samples that are at hand; of those made on demand only their number is known."""
    digest = hashlib.blake2b(f"{len(samples)} {samples.signature}".encode(), digest_size=16)
    for field in held(samples):
        digest.update(field.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def fingerprints(samples: Mapping[str, Samples | None]) -> dict[str, str | None]:
    """Of all clients' samples, by name; those that several share are read once."""
    known = {where(s): s for s in samples.values() if s is not None}
    found = {place: fingerprint(s) for place, s in known.items()}
    return {name: None if s is None else found[where(s)] for name, s in samples.items()}


def where(samples: Samples) -> Hashable:
    """The same for samples that are the same, in the same memory."""
    if not isinstance(samples, TensorSamples):
        return id(samples)
    return tuple((f.data_ptr(), f.shape, f.stride(), f.dtype) for f in samples.fields)


def as_samples(data: Any, name: str, part: str) -> Samples:
    """What the user gave for a client's `train` or `test`, checked."""
    where = f"client {name!r}: {part}"
    samples: Samples
    if isinstance(data, (TensorSamples, DatasetSamples, Windows)):
        return data
    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, Dataset):
        size = getattr(data, "__len__", lambda: None)()
        if size is None:
            raise DataError(f"{where} is an iterable data set; give one that has a length and can be indexed")
        if size == 0:
            raise DataError(f"{where} is empty; every client needs at least one sample")
        try:
            samples = DatasetSamples(data, size)
        except Exception as error:
            reason = " ".join(str(error).split())
            raise DataError(f"{where} has items that cannot be made into batches of tensors: {reason}") from error
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
        keys = tuple(sorted(data))  # the order in which a user happened to write them means nothing
        return tuple(_tensor(data[key]) for key in keys), Layout(keys=keys)
    if isinstance(data, (tuple, list)):
        return tuple(_tensor(v) for v in data), Layout()
    return (_tensor(data),), Layout(single=True)


def _tensor(value: Any) -> Tensor:
    array = None if isinstance(value, Tensor) else np.asarray(value)
    if array is not None and array.dtype.kind in "OSU":
        raise TypeError("there are texts or other objects in it; make them numbers, class labels 0, 1, 2 and so on")
    tensor = value.detach() if array is None else torch.as_tensor(array)
    return tensor.long() if tensor.dtype in (torch.uint16, torch.uint32, torch.uint64) else tensor


def _signature(sample: Fields, layout: Layout) -> str:
    """Arrangement, kinds and shapes of a sample's fields, in words."""
    kinds = ("float" if f.is_floating_point() else "bool" if f.dtype == torch.bool else "integer" for f in sample)
    words = [f"{kind} {list(f.shape)}" for kind, f in zip(kinds, sample, strict=True)]
    if layout.keys is not None:
        words = [f"{key}: {word}" for key, word in zip(layout.keys, words, strict=True)]
    return words[0] if layout.single else f"({', '.join(words)})"
