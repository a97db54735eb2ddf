"""Checkpoints that survive kill -9: safetensors and JSON, written aside, synced, then renamed.

    checkpoint/round-00000500/state.safetensors   X, the optimiser's and the method's tensors, buffers
    checkpoint/round-00000500/state.json          round, counters, schedule, client names, checksum of both

The last two complete ones are kept. A torn or edited one is refused by its checksum and the one before is used.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save, save_file
from torch import Tensor

from cobo.errors import CheckpointError, ConfigError

KEEP = 2


@dataclass(frozen=True)
class Checkpoint:
    """Everything needed to go on as if nothing had happened."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]


def write(folder: Path, round: int, checkpoint: Checkpoint) -> None:
    """Write a complete checkpoint of a round, or none at all; tensors go to the file without another copy of them."""
    final = folder / f"round-{round:08d}"
    aside = folder / f".writing-{round:08d}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    tensors = aside / "state.safetensors"
    try:
        save_file({name: t.detach().cpu().contiguous() for name, t in checkpoint.tensors.items()}, tensors)
    except SafetensorError as error:  # such as a full disk
        raise OSError(errno.EIO, f"could not be written: {error}", str(tensors)) from None
    with open(tensors, "rb+") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    write_synced(aside / "state.json", _sealed({**checkpoint.facts, "round": round, tensors.name: digest}))
    shutil.copymode(aside / "state.json", tensors)  # safetensors gives itself a file that only its owner can read
    sync_folder(aside)
    shutil.rmtree(final, ignore_errors=True)
    os.rename(aside, final)
    sync_folder(folder)
    for old in _complete(folder)[:-KEEP]:
        shutil.rmtree(old, ignore_errors=True)


def read_latest(folder: Path, refused: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint that is whole, or None; each one passed over is named to `refused` with the reason."""
    for candidate in reversed(_complete(folder)):
        try:
            return _read(candidate)
        except CheckpointError as error:
            candidate.rename(candidate.with_name(f"refused-{candidate.name}"))  # out of the way, but not lost
            refused(str(error))
    return None


def newest(folder: Path) -> int:
    """The round of the newest checkpoint, by its name; 0 if there is none."""
    return max((int(path.name.removeprefix("round-")) for path in _complete(folder)), default=0)


def made(folder: str | Path) -> Path:
    """A folder to write to, there from now on."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be used as a folder: {error.strerror}; choose another") from None
    return Path(folder)


def write_model(folder: Path, name: str, state: dict[str, Tensor]) -> None:
    """One client's model as models/NAME.safetensors."""
    (folder / "models").mkdir(exist_ok=True)
    write_atomic(folder / "models" / f"{name}.safetensors", packed(state))


def write_adapter(folder: Path, name: str, module: Any) -> None:
    """One client's adapter as the folder adapters/NAME, as peft itself writes and reads it."""
    final, aside = folder / "adapters" / name, folder / "adapters" / f".writing-{name}"
    shutil.rmtree(aside, ignore_errors=True)
    module.save_pretrained(aside, save_embedding_layers=False)  # or it would ask the hub
    (aside / "README.md").unlink(missing_ok=True)  # peft's empty template, with the path of this machine in it
    shutil.rmtree(final, ignore_errors=True)
    os.rename(aside, final)


def packed(state: dict[str, Tensor]) -> bytes:
    return save({name: t.detach().cpu().contiguous().clone() for name, t in state.items()})


def write_synced(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sweep(folder: Path) -> None:
    """Remove what a kill has left half written in a run's folder, which nobody else may write to."""
    for left in list(folder.rglob(".writing-*")):
        if left.is_dir():
            shutil.rmtree(left)
        else:
            left.unlink()


def write_atomic(path: Path, content: bytes) -> None:
    """Replace a file's content so that a reader sees the old or the new, never a part."""
    aside = path.with_name(f".writing-{os.getpid()}-{path.name}")
    write_synced(aside, content)
    os.replace(aside, path)
    sync_folder(path.parent)


def write_new(path: Path, content: bytes) -> bool:
    """Write a file whole, unless there is one by that name: whether it was written."""
    aside = path.with_name(f".writing-{os.getpid()}-{path.name}")
    write_synced(aside, content)
    try:
        os.link(aside, path)
    except FileExistsError:
        return False
    finally:
        aside.unlink()
    sync_folder(path.parent)
    return True


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _complete(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-*")) if folder.is_dir() else []


def _sealed(facts: dict[str, Any]) -> bytes:
    body = json.dumps(facts, sort_keys=True)
    return json.dumps({"facts": facts, "seal": hashlib.sha256(body.encode()).hexdigest()}, indent=1).encode()


def _read(path: Path) -> Checkpoint:
    try:
        sealed = json.loads((path / "state.json").read_text())
        facts = sealed["facts"]
        body = json.dumps(facts, sort_keys=True)
        if hashlib.sha256(body.encode()).hexdigest() != sealed["seal"]:
            raise CheckpointError(f"checkpoint {path.name}: state.json was changed after it was written")
        blob = (path / "state.safetensors").read_bytes()
        if hashlib.sha256(blob).hexdigest() != facts["state.safetensors"]:
            raise CheckpointError(f"checkpoint {path.name}: state.safetensors is torn or was changed")
        return Checkpoint(load(blob), facts)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise CheckpointError(f"checkpoint {path.name} cannot be read: {error}") from error
