"""Randomness as a function: every draw follows from (seed, purpose, client name, round), never from a state.

A key is 64 bits. Names become keys through BLAKE2b; keys, rounds and positions are combined by the finaliser
of SplitMix64 (Steele, Lea and Flood 2014), which is vectorised, so that the batches of many clients are drawn
in one go. Nothing here remembers anything: a run can be stopped, resumed, reordered or spread over machines
and draws the same numbers.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

import numpy as np
import torch
from numpy.typing import NDArray

Keys = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)


def key(seed: int, purpose: str, *names: str) -> np.uint64:
    """The key of a purpose and names under a seed.

    >>> int(key(0, "batch", "north")) == int(key(0, "batch", "north"))
    True
    >>> int(key(0, "batch", "north")) == int(key(0, "batch", "south"))
    False
    """
    text = "\x1f".join([str(int(seed)), purpose, *names])
    return np.uint64(int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little"))


def combine(keys: Keys | np.uint64, *parts: Keys | NDArray[np.int64] | np.uint64 | int) -> Keys:
    """New keys from keys and further parts (other keys, a round, a position), by broadcasting; order matters."""
    result = np.asarray(keys, dtype=np.uint64)
    for part in parts:
        with np.errstate(over="ignore"):
            result = _finalise(result * _GOLDEN + np.asarray(part, dtype=np.uint64) + _M1)
    return result


def uniform(keys: Keys, count: int) -> NDArray[np.float64]:
    """`count` numbers in [0, 1) for every key: the result has the shape of keys plus one axis."""
    bits = combine(keys[..., None], np.arange(count, dtype=np.uint64))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def integers(keys: Keys, bounds: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """`count` integers in [0, bound) for every key and its bound."""
    return (uniform(keys, count) * bounds[..., None]).astype(np.int64)


def torch_seed(keys: Keys | np.uint64) -> int:
    """A seed for torch's own generators (initialisation, dropout)."""
    return int(keys) & 0x7FFF_FFFF_FFFF_FFFF


@contextmanager
def torch_generators(device: torch.device, key: np.uint64 | Keys | None = None) -> Iterator[None]:
    """Inside, torch's generators, of the CPU and of `device`, follow the key; afterwards they are as before.

    Without a key they go on as they are. Those of other devices are not touched.
    """
    on_cuda = device.type == "cuda"
    with torch.random.fork_rng([device] if on_cuda else []):
        if key is not None:
            seed = torch_seed(key)
            torch.default_generator.manual_seed(seed)
            if on_cuda:
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(seed)
        yield


@contextmanager
def seeded(key: np.uint64 | Keys) -> Iterator[None]:
    """Inside, the global generators of torch (on the CPU), numpy and random follow the key; afterwards as before."""
    seed = torch_seed(key)
    numpy_state, python_state = np.random.get_state(), random.getstate()
    with torch_generators(torch.device("cpu"), key):
        np.random.seed(seed & 0xFFFF_FFFF)
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(numpy_state)
            random.setstate(python_state)


def _finalise(x: Keys) -> Keys:
    x = (x ^ (x >> np.uint64(30))) * _M1
    x = (x ^ (x >> np.uint64(27))) * _M2
    return x ^ (x >> np.uint64(31))
