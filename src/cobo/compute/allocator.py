"""Memory that is freed in one round is needed again in the next: tell the C library to keep it.

By default glibc hands every large block back to the system when it is freed, and each round then pays for tens of
thousands of page faults, as long as the gradients themselves for many small models (benchmarks/round.py).
"""

import ctypes
import gc
import sys
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_ONE_GIGABYTE = 1 << 30


def keep_freed_memory() -> None:
    """For this whole process, serve blocks of up to a gigabyte from memory that is kept; only glibc needs it.

    The `cobo` command does this for itself. A library should not, so in a program of your own it is yours to call.
    """
    tune = _of_the_c_library("mallopt")
    if tune is not None:
        tune(_MMAP_THRESHOLD, _ONE_GIGABYTE)
        tune(_TRIM_THRESHOLD, _ONE_GIGABYTE)


def give_back_freed_memory() -> None:
    """What is kept goes to the system after all: other processes need it now."""
    gc.collect()
    trim = _of_the_c_library("malloc_trim")
    if trim is not None:
        trim(0)


def _of_the_c_library(name: str) -> Any:
    if not sys.platform.startswith("linux"):
        return None
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None
