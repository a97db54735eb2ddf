"""Where data sets lie on a computer, and how a missing file gets there: whole, or not at all."""

import os
from collections.abc import Callable, Generator
from contextlib import closing
from http.client import HTTPException
from itertools import chain
from pathlib import Path
from urllib.request import urlopen

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from cobo.errors import DataError

PATIENCE = 30  # seconds without a byte


def cache(name: str) -> Path:
    """The folder for a data set in the user's cache: where downloads go."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "cobo" / name


def chosen() -> list[Path]:
    """The folder that COBO_DATA names, if it does."""
    named = os.environ.get("COBO_DATA")
    try:
        return [Path(named).expanduser()] if named else []
    except RuntimeError:
        raise DataError(f"COBO_DATA = {named!r} is not allowed; there is no such user") from None


def folders(name: str) -> list[Path]:
    """Where a data set is looked for, in this order: $COBO_DATA, the user's cache."""
    return [*(folder / name for folder in chosen()), cache(name)]


def download(address: str, path: Path, check: Callable[[Path], object]) -> None:
    """Fetch a file, let `check` look at it (it raises `ValueError` if it is damaged), and only then call it `path`.

    Whatever goes wrong, nothing is left behind.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with closing(_body(address, path.name)) as body:
            first = next(body, b"")  # before the folder is made: a dead address should not leave even that
            path.parent.mkdir(parents=True, exist_ok=True)
            with aside.open("wb") as file:
                file.writelines(chain([first], body))
                file.flush()
                os.fsync(file.fileno())
        try:
            check(aside)
        except ValueError as error:
            raise DataError(f"{address} sent a damaged file ({error}), which was not kept; try again") from None
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def _body(address: str, label: str) -> Generator[bytes]:
    """What an address sends, in parts, with a bar on stderr."""
    columns = TextColumn("{task.description}"), BarColumn(bar_width=20), DownloadColumn(), TimeRemainingColumn()
    try:
        with (
            urlopen(address, timeout=PATIENCE) as answer,
            Progress(*columns, console=Console(stderr=True)) as bar,
        ):
            task = bar.add_task(label, total=answer.length)
            while part := answer.read(1 << 18):
                bar.advance(task, len(part))
                yield part
    except (OSError, HTTPException, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{address} cannot be fetched: {reason}") from None
