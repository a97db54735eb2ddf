"""Texts of parties: a file, or a Hugging Face data set, read as documents and divided without overlap."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cobo.errors import ConfigError, DataError

COLUMN = "text"
TABLES = (".parquet", ".arrow", ".feather", ".jsonl")
KINDS = (*TABLES, ".json", ".txt")
SHEETS = (".csv", ".tsv", ".xls", ".xlsx", ".ods")  # which have columns, but are not read
ABOUT = ("dataset_info.json", "dataset_dict.json", "dataset_infos.json", "state.json")  # not texts, but about them
CACHE = "cache-*.arrow"  # what `datasets` has made of a table before, of its test part as well
WHOLE = b"ARROW1"  # how an Arrow file begins, and an Arrow stream does not
NAMES = r"(train|test|validation|valid|val|dev)(ing)?(?![a-z])"  # of files and folders of a data set's parts
PATIENCE = 10  # seconds for an answer of the hub
FARTHEST = 0.1  # by which a part of a text may be larger than was asked for, because documents are not cut


class Divided(NamedTuple):
    """The documents of a data set, and those that its publisher has set apart to test by, if any."""

    train: list[str]
    test: list[str]


def documents(source: str | Path) -> Divided:
    """The documents of a text file, a folder of files, or a data set of the Hugging Face hub: `hf:OWNER/NAME`, or
    `hf:OWNER/NAME/FOLDER` for a part of it.

    In a text file, blank lines separate documents; without any, every line is one, and the text goes on with the next.
    In tables (Parquet, Arrow, JSON lines) every row is one: its column `text`. Of a folder where a file, or a folder,
    is called test, those called train (or training, Train) and test are what they are called, and others (validation)
    are not read. A document that ends with a newline goes on with the next; others end.
    """
    if not str(source).strip():  # which as a path is the folder that one is in
        raise DataError(
            "its text is an empty string; it should be a text file, a folder of a data set, or hf:OWNER/NAME"
        )
    path = _from_hub(str(source)[3:]) if str(source).startswith("hf:") else Path(source).expanduser()
    try:
        is_folder = path.is_dir()
    except OSError as error:  # such as a text, too long for a name
        raise DataError(f"{str(source)[:40]!r}...: {error.strerror}; text itself goes into a list of strings") from None
    if is_folder:
        files = _files(path)
        if not files:
            raise DataError(f"{source} is a folder without texts; it should have files {', '.join(KINDS)}")
    elif path.is_file():
        files = [path]
    else:
        raise DataError(f"{source} is not there; it should be a text file, a folder of a data set, or hf:OWNER/NAME")
    named = {split: [file for file in files if _split(file, path) == split] for split in ("train", "test")}
    if not named["test"]:
        named = {"train": files, "test": []}
    parts = {split: [t for file in some for t in _read(file) if t.strip()] for split, some in named.items()}
    if not any(parts.values()):
        raise DataError(f"{source} has no text in it")
    return Divided(**parts)


def divided(texts: Sequence[str], share: float) -> Divided:
    """Whole documents: the first of them, and the last ones, which are `share` of all characters or a little more.

    >>> divided(["aaaa", "bb", "cc", "dd"], 0.2)
    Divided(train=['aaaa', 'bb', 'cc'], test=['dd'])
    """
    if len(texts) == 1:
        raise DataError("only one document, or line, is left to divide, and it is not cut; give more text")
    whole = sum(len(text) for text in texts)
    taken, cut = 0, len(texts)
    while cut > 0 and taken < share * whole:
        cut -= 1
        taken += len(texts[cut])
    if taken > (share + FARTHEST) * whole:
        raise DataError(
            f"{len(texts) - cut} of {len(texts)} documents would be {100 * taken / whole:.3g}% of the text, not "
            f"{100 * share:.3g}%, and documents are not cut; ask for a larger share, separate documents by blank "
            "lines, or have no blank line at all (then every line is one)"
        )
    return Divided(list(texts[:cut]), list(texts[cut:]))


def _files(folder: Path) -> list[Path]:
    """The files with texts: tables, if there are any; what is about them, or hidden, or a cache is left out."""
    found = sorted(p for p in folder.rglob("*") if p.suffix in KINDS and p.name not in ABOUT and p.is_file())
    shown = [p for p in found if not any(part.startswith(".") for part in p.relative_to(folder).parts)]
    given = [p for p in shown if not p.match(CACHE)]
    return [p for p in given if p.suffix in TABLES] or given


def _split(file: Path, folder: Path) -> str | None:
    """The part of a data set that a file is of: what it, or else the innermost folder, is called after.

    >>> _split(Path("wiki/train/test-00000-of-00002.parquet"), Path("wiki"))
    'test'
    """
    parts = file.relative_to(folder).parts if file != folder else ()
    found = [re.match(NAMES, part.lower()) for part in reversed(parts)]
    return next((match[1] for match in found if match), None)


def _read(path: Path) -> Iterator[str]:
    if path.suffix.lower() in SHEETS:
        raise DataError(
            f"{path} is a table, not text; save it as Parquet or JSON lines with a column {COLUMN!r}, or as a text file"
        )
    try:
        if path.suffix in (".parquet", ".arrow", ".feather"):
            yield from _table(path)
        elif path.suffix in (".jsonl", ".json"):
            yield from _json_lines(path)
        else:
            yield from _plain(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}; convert it") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None


def _plain(text: str) -> Iterator[str]:
    blocks = [block for block in re.split(r"\n(?:[ \t\r]*\n)+", text) if block.strip()]
    if len(blocks) == 1:  # no blank lines but at the ends
        yield from (line + "\n" for line in blocks[0].split("\n") if line.strip())
    else:
        yield from (block.strip("\n") for block in blocks)


def _json_lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError:
                raise DataError(f"{path}, line {number}, is not JSON; it should have an object in every line") from None
            text = row.get(COLUMN) if isinstance(row, dict) else None
            if not isinstance(text, str):
                raise DataError(f"{path}, line {number}, has no {COLUMN!r}; every object should have one")
            yield text.rstrip("\n")


def _table(path: Path) -> Iterator[str]:
    try:
        import pyarrow as pa
        from pyarrow import ipc, parquet
    except ImportError:
        raise ConfigError(f"{path.name} needs one more package; in cobo's clone: pip install '.[parquet]'") from None
    try:
        with path.open("rb") as file:
            if path.suffix == ".parquet":
                batches = parquet.ParquetFile(file).iter_batches()
            elif file.peek(len(WHOLE)).startswith(WHOLE):
                whole = ipc.open_file(file)
                batches = (whole.get_batch(number) for number in range(whole.num_record_batches))
            else:
                batches = ipc.open_stream(file)
            for batch in batches:
                if COLUMN not in batch.schema.names or not _is_text(pa, batch.schema.field(COLUMN).type):
                    known = ", ".join(batch.schema.names)
                    raise DataError(f"{path} has no column {COLUMN!r} of strings; it has {known}")
                yield from (text.rstrip("\n") for text in batch.column(COLUMN).to_pylist() if text is not None)
    except pa.ArrowException as error:
        raise DataError(f"{path} is damaged: {' '.join(str(error).split())}") from None


def _is_text(pa: Any, kind: Any) -> bool:
    """Whether a column's type is one of strings, also where each is stored once and referred to (a dictionary)."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return str(kind) in ("string", "large_string", "string_view")


def _from_hub(name: str) -> Path:
    """The files of a data set of the Hugging Face hub, downloaded into its own cache, or found there."""
    try:
        from httpx import HTTPError  # what the hub's own client raises, of proxies for instance
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    except ImportError:
        raise ConfigError("data sets of the hub need more packages; in cobo's clone: pip install '.[llm]'") from None
    owner, *rest = name.split("/")
    name, part = "/".join([owner, *rest[:1]]), "/".join(rest[1:])
    wanted = [f"{part}/*{kind}" if part else f"*{kind}" for kind in KINDS]
    alone = not hub_answers(name, "dataset")
    try:
        folder = snapshot_download(name, repo_type="dataset", allow_patterns=wanted, local_files_only=alone)
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError, HTTPError) as error:
        nowhere = alone and isinstance(error, LocalEntryNotFoundError)
        reason = "it cannot be reached" if nowhere else " ".join(str(error).split())[:200]
        raise DataError(
            f"hf:{name} cannot be had from the Hugging Face hub: {reason}; download it where there is a network and "
            "give its folder"
        ) from None
    return Path(folder) / part


def hub_answers(name: str, kind: str) -> bool:
    """Asked once: its own packages would ask for minutes where nobody answers, and only then look into their cache."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        HfApi().repo_info(name, repo_type=kind, timeout=PATIENCE)
    except HfHubHTTPError:  # also no is an answer
        return True
    except Exception:  # of whichever client the hub's own package uses
        return False
    return True
