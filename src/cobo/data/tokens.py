"""Texts as tokens: made once, with progress, and kept in the user's cache under a checksum of text and tokenizer."""

import hashlib
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from cobo.data import store
from cobo.errors import DataError
from cobo.training.checkpoint import write_synced

AT_ONCE = 1000  # documents
LONE = re.compile(r"[\ud800-\udfff]")  # halves of characters, which are in no text but that of broken JSON


def tokenised(
    texts: Sequence[str], tokenizer: Any, name: str, limit: int | None = None, *, mark: str | None = None
) -> Tensor:
    """The tokens of all documents in a row, int32, each with the end-of-text token behind it, if the tokenizer has one.

    Where a document ends with a newline, the text goes on with the next, and there is none. With `limit`, the first so
    many; what comes after is not read. `name` is for the bar. `mark` is the tokenizer's `fingerprint`, if it is known.
    """
    path = store.cache("tokens") / f"{_checksum(texts, mark or fingerprint(tokenizer), limit)}.safetensors"
    try:
        return load_file(path)["tokens"]
    except (OSError, SafetensorError, KeyError):
        pass  # not there yet, or damaged: it is made (again)
    tokens = _encoded(texts, tokenizer, name, limit)
    _keep(path, tokens)
    return tokens


def _keep(path: Path, tokens: Tensor) -> None:
    """For the next time; where the cache cannot be written to, a run that has its tokens goes on without."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".writing-", dir=path.parent) as aside:  # another for every thread
            whole = Path(aside) / path.name
            write_synced(whole, save({"tokens": tokens}))
            whole.replace(path)


def fingerprint(tokenizer: Any) -> str:
    """A checksum of all that a (fast) tokenizer does here."""
    described = f"{tokenizer.eos_token_id} {_whole(tokenizer).to_str()}"
    return hashlib.sha256(described.encode()).hexdigest()[:16]


def _whole(tokenizer: Any) -> Any:
    """Its rules without what it may have been told of truncating and padding, which is for batches of chats."""
    described = json.loads(tokenizer.backend_tokenizer.to_str())
    return type(tokenizer.backend_tokenizer).from_str(json.dumps(described | {"truncation": None, "padding": None}))


def _checksum(texts: Sequence[str], mark: str, limit: int | None) -> str:
    digest = hashlib.sha256(f"{mark} {limit or 'all'}".encode())
    for text in texts:
        digest.update(len(text).to_bytes(8, "little"))
        digest.update(text.encode(errors="surrogatepass"))
    return digest.hexdigest()


def _encoded(texts: Sequence[str], tokenizer: Any, name: str, limit: int | None = None) -> Tensor:
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    rules = _whole(tokenizer)
    columns = TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeRemainingColumn()
    found: list[Tensor] = []
    count = 0
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"tokens of {name}", total=len(texts))
        for start in range(0, len(texts), AT_ONCE):
            if limit is not None and count >= limit:
                break
            some = [LONE.sub("\ufffd", text) for text in texts[start : start + AT_ONCE]]
            ids: list[int] = []
            try:
                known = rules.encode_batch(some, add_special_tokens=False)
            except Exception as error:  # tokenizers raises no other
                raise DataError(f"the model's tokenizer cannot read its text: {error}") from None
            for text, encoded in zip(some, known, strict=True):
                ids += encoded.ids if text.endswith("\n") else encoded.ids + end
            found.append(torch.tensor(ids, dtype=torch.int32))
            count += len(ids)
            bar.advance(task, len(some))
    return torch.cat([torch.empty(0, dtype=torch.int32), *found])[:limit].clone()
