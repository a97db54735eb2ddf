"""Files inside a .tar.gz archive, read by their exact names into memory: nothing is written, nothing else is opened."""

import gzip
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path

SLACK = 1 << 20  # bytes for headers and small files beside those that are wanted


def read_members(path: Path, wanted: Mapping[str, int]) -> dict[str, bytes]:
    """The content of each wanted member, or a `ValueError`; `wanted` says how many bytes each may have at most."""
    found: dict[str, bytes] = {}
    try:
        with (
            _Bounded(path, sum(wanted.values()) + SLACK) as unpacked,
            tarfile.open(fileobj=unpacked, mode="r|", bufsize=1 << 18) as archive,
        ):
            for member in archive:
                name = member.name.removeprefix("./")  # as `tar` writes a folder that it is in
                if name not in wanted or name in found:
                    continue
                content = archive.extractfile(member) if member.isreg() else None
                if content is None:
                    raise ValueError(f"its {name} is not a plain file")
                if member.size > wanted[name]:
                    raise ValueError(f"its {name} is larger than {wanted[name]} bytes")
                found[name] = content.read()
                if len(found) == len(wanted):
                    return found
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, RecursionError) as error:
        raise ValueError(f"it cannot be unpacked ({error})") from None
    raise ValueError(f"it has no {' and no '.join(sorted(wanted.keys() - found.keys()))}")


class _Bounded(gzip.GzipFile):
    """A compressed file that may not unpack to more than so many bytes: an archive's headers can claim any length."""

    def __init__(self, path: Path, most: int) -> None:
        super().__init__(path)
        self.left = most

    def read(self, size: int | None = -1) -> bytes:
        part = super().read(size)
        self.left -= len(part)
        if self.left < 0:
            raise ValueError("it is far larger than it should be when unpacked")
        return part
