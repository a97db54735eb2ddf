"""The processes that torchrun started for one run, and the few things they say to each other, all by torch.distributed.

Only the first of them reads and writes files and speaks to the user. Tensors on GPUs go by NCCL, all others by gloo.
"""

import atexit
import json
import math
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from cobo import errors
from cobo.errors import CoboError, ConfigError, RankLost

PATIENCE = 600.0  # seconds that the first process waits for the others to start


class Alone:
    """One process: there is nobody to talk to."""

    rank, size = 0, 1
    sent = 0  # bytes that this process has given to others
    _lasting: Any = None  # torchrun's store, which outlives restarts
    _start = ""  # a name for this start of the run, the same in all its processes

    @property
    def leads(self) -> bool:
        """Whether this is the process that reads, writes and speaks."""
        return self.rank == 0

    def begin(self, folder: Path) -> None:
        """The run in this folder is ours, also when torchrun starts it again."""
        if self._lasting is not None:
            self._lasting.set(_begun(folder), self._start)

    def begun(self, folder: Path) -> bool:
        """Whether an earlier start by the same torchrun has begun the run in this folder, so that this one goes on."""
        if self._lasting is None or not self._lasting.check([_begun(folder)]):
            return False
        return bool(self._lasting.get(_begun(folder)).decode() != self._start)

    def device(self, name: str) -> str:
        """The device of this process, where the run was given `name`."""
        return name

    def any(self, flag: bool) -> bool:
        return flag

    def total(self, *numbers: int) -> list[int]:
        """Whole numbers, each summed over all processes."""
        return list(numbers)

    def first(self, action: Callable[[], Any]) -> Any:
        """Done by the first process alone; what it gives (as JSON can hold it), or raises, all give or raise."""
        return action()

    def speaks(self) -> bool:
        """Whether this process is to tell the user what went wrong: the first that asks."""
        return True

    def leave(self) -> None:
        """Nothing more will be said."""


class Ranks(Alone):
    """Several processes, which all call the same in the same order."""

    def __init__(self) -> None:
        self._lasting, self.rank, self.size = next(iter(rendezvous("env://")))
        self._start = _meet(self._lasting, self.rank, self.size)
        self._store = PrefixStore(self._start, self._lasting)
        self._place = int(os.environ["LOCAL_RANK"])
        backend = "gloo"
        if torch.cuda.is_available():
            backend = "cpu:gloo,cuda:nccl"
            if self._place < torch.cuda.device_count():
                torch.cuda.set_device(self._place)
        dist.init_process_group(backend, store=self._store, rank=self.rank, world_size=self.size)
        atexit.register(self.leave)

    def device(self, name: str) -> str:
        if not name.startswith("cuda"):
            return name
        if name != "cuda":
            raise ConfigError(f"device = {name!r} is one GPU for all processes of torchrun; set device = 'cuda'")
        if self._place >= torch.cuda.device_count():
            raise ConfigError(f"torchrun has more processes here than there are GPUs, {torch.cuda.device_count()}")
        return f"cuda:{self._place}"

    def any(self, flag: bool) -> bool:
        return self.total(flag)[0] > 0

    def total(self, *numbers: int) -> list[int]:
        totals: list[int] = self.sum(torch.tensor([int(number) for number in numbers])).tolist()
        return totals

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, the same to the last bit in each."""
        result = tensor.clone(memory_format=torch.contiguous_format)
        with _together():
            dist.all_reduce(result)
        self.sent += 2 * result.nbytes * (self.size - 1) // self.size
        return result

    def exchange(self, rows: Tensor, give: Sequence[int], get: Sequence[int]) -> Tensor:
        """The first give[0] rows go to the first process, the next give[1] to the second, ...

        What comes, get[r] rows of the same kind from process r, is in the order of processes.
        """
        came = rows.new_empty(sum(get), *rows.shape[1:])
        width = rows.element_size() * math.prod(rows.shape[1:])
        coming, going = [width * k for k in get], [width * k for k in give]
        with _together():  # as bytes: any type will do
            dist.all_to_all_single(_as_bytes(came), _as_bytes(rows), coming, going)
        self.sent += sum(going) - going[self.rank]
        return came

    def collect(self, value: Any) -> list[Any]:
        """What each process has, in order, as JSON can hold it."""
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = torch.zeros(self.size, dtype=torch.int64)
        sizes[self.rank] = len(text)
        lengths: list[int] = self.sum(sizes).tolist()
        came = self.exchange(text.repeat(self.size), [len(text)] * self.size, lengths)
        return [json.loads(part.numpy().tobytes()) for part in torch.split(came, lengths)]

    def first(self, action: Callable[[], Any]) -> Any:
        told, raised = None, None
        if self.leads:
            try:
                told = {"value": action()}
            except CoboError as error:
                told, raised = {"error": type(error).__name__, "message": str(error)}, error
        told = self.collect(told)[0]
        if raised is not None:
            raise raised
        if "error" in told:
            raise getattr(errors, told["error"])(told["message"])
        return told["value"]

    def speaks(self) -> bool:
        try:
            return bool(self._store.add("cobo has spoken", 1) == 1)
        except RuntimeError:  # torchrun itself is gone
            return self.leads

    def leave(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


@cache
def join() -> Alone:
    """The processes of this run: those that torchrun started, if it did."""
    started = dist.is_torchelastic_launched()
    if started and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return Ranks()
    alone = Alone()
    if started:
        alone._lasting, alone._start = next(iter(rendezvous("env://")))[0], uuid.uuid4().hex
    return alone


def _begun(folder: Path) -> str:
    return f"cobo/begun/{folder.resolve()}"


def _meet(store: Any, rank: int, size: int) -> str:
    """A name for this start of the run, the same in all its processes.

    After a restart torchrun's store still has the addresses of those that ended, and a quick process would call them
    (github.com/pytorch/pytorch/issues/135712); restarts are not counted alike on all machines. So the others ask,
    each with a word of its own, and the first answers whatever is asked until all have come.
    """
    word, deadline = uuid.uuid4().hex, time.monotonic() + PATIENCE
    if rank:
        store.set(f"cobo/asks/{rank}", word)
        answer: bytes = store.get(f"cobo/answer/{word}")  # waits for it
        name = answer.decode()
        store.set(f"{name}/{rank}", "here")
        return name
    name = f"cobo/{word}"
    while not all(store.check([f"{name}/{other}"]) for other in range(1, size)):
        for asks in (f"cobo/asks/{other}" for other in range(1, size)):
            if store.check([asks]):
                store.set(f"cobo/answer/{store.get(asks).decode()}", name)
        if time.monotonic() > deadline:
            raise RankLost(f"not all {size} processes of torchrun came within {PATIENCE:.0f} s; start them again")
        time.sleep(0.01)
    return name


@contextmanager
def _together() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        reason = str(error).splitlines()[0][:120]
        raise RankLost(
            "another process of this run has ended; torchrun --max-restarts goes on from the last checkpoint by "
            f"itself, --resume by hand ({reason})"
        ) from error


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)
