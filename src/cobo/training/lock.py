"""A folder is written by one process at a time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cobo.errors import CheckpointError

try:
    import fcntl
except ImportError:  # not on Windows, where users have to see to it themselves
    fcntl = None  # type: ignore[assignment]


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Inside, no other process that asks for this folder has it. The lock ends with the process, however it ends."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise CheckpointError(
            f"another process is at work in {folder} (one whose parent was killed ends within a round); wait for its "
            "end or use another folder"
        ) from None
    try:
        yield
    finally:
        os.close(handle)
