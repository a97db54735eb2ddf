"""A module seen as a row: which of its numbers are trained, which buffers it changes, and how to put a row in.

Rows hold the parameters with `requires_grad`, flattened and concatenated in the order of `named_parameters`.
Everything else (frozen parameters, constant buffers) exists once, in the template, however many clients there are.
"""

import copy
import hashlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import UninitializedParameter

from cobo import draws
from cobo.compute.batch import Fields, Layout
from cobo.compute.task import Measured, Task
from cobo.errors import ConfigError

Buffers = dict[str, Tensor]
BufferPolicy = Literal["local", "shared", "none"]
Precision = Literal["float32", "bfloat16", "auto"]


def resolved(precision: Precision, device: str | torch.device) -> Literal["float32", "bfloat16"]:
    """What "auto" means: bfloat16 where the device computes in it, float32 where it would only imitate it."""
    if precision != "auto":
        return precision
    if torch.device(device).type == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        known: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # older versions of torch do not say
        fast = bool(known.get("avx512_bf16") or known.get("amx_bf16"))
    return "bfloat16" if fast else "float32"


class Blueprint:
    """The template module, the layout of a row, and what a trial run on a real batch has shown."""

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        task: Task,
        *,
        seed: int,
        policy: BufferPolicy,
        device: torch.device,
        precision: Precision = "float32",
    ) -> None:
        self._model, self._seed, self._precision = model, seed, resolved(precision, device)
        self.module = _built(model, device, seed).to(device)
        self.task = task
        self.device = device
        if policy == "none":
            _forget_statistics(self.module)
        if any(isinstance(p, UninitializedParameter) for p in self.module.parameters()):
            raise ConfigError("model has lazy layers whose sizes are not known yet; call it once on a batch first")
        trained = [(name, p) for name, p in self.module.named_parameters() if p.requires_grad]
        if not trained:
            raise ConfigError("model has no parameter with requires_grad=True, so there is nothing to train")
        dtypes = {p.dtype for _, p in trained}
        if len(dtypes) > 1:
            raise ConfigError(f"model trains parameters of several types {dtypes}; cast them to one")
        self.names = [name for name, _ in trained]
        self.parameters = [p for _, p in trained]
        self.shapes = [p.shape for p in self.parameters]
        self.sizes = [p.numel() for p in self.parameters]
        self.dtype = self.parameters[0].dtype
        if self._precision == "bfloat16" and self.dtype != torch.float32:
            raise ConfigError(f"precision = 'bfloat16' needs a model of float32, but it has {self.dtype}; cast it")
        self.frozen = sum(p.nbytes for p in self.module.parameters() if not p.requires_grad)  # bytes, there once
        self.convolutional = any(isinstance(part, nn.modules.conv._ConvNd) for part in self.module.modules())
        self.start = torch.cat([p.detach().reshape(-1) for p in self.parameters])
        self.buffers: Buffers = {}
        self.random = False
        self.reassigns = False

    @property
    def size(self) -> int:
        """d, the length of a row."""
        return sum(self.sizes)

    @cached_property
    def base(self) -> str | None:
        """A checksum of what is not trained and, of adapters, of how they act on it; None if all is trained."""
        names = [name for name, p in self.module.named_parameters() if not p.requires_grad]
        return checksum(self.module, names) if names else None

    def loss(self, module: nn.Module, batch: Any) -> Tensor:
        """The scalar whose gradient trains the module; float32 also where the layers compute in bfloat16."""
        with self._autocast:
            loss = self.task.loss(module, batch)
        return loss.float() if self._precision == "bfloat16" and isinstance(loss, Tensor) else loss

    def measure(self, module: nn.Module, batch: Any) -> Measured:
        """How good the module is on a batch."""
        with self._autocast:
            return self.task.measure(module, batch)

    @property
    def _autocast(self) -> AbstractContextManager[object]:
        """With `bfloat16`, torch runs those layers in it that stand it; rows, gradients and the optimiser never are."""
        return torch.autocast(self.device.type, torch.bfloat16) if self._precision == "bfloat16" else nullcontext()

    def another_start(self, number: int) -> Tensor:
        """A row as the model's function would have made it under another seed, for methods that need several starts."""
        if isinstance(self._model, nn.Module):
            raise ConfigError(
                "this method starts from several models, but model= is a module, of which there is only one; give a "
                "function or class that makes a new one"
            )
        module = _built(self._model, self.device, self._seed, str(number))
        row = torch.cat([p.detach().reshape(-1) for p in module.parameters() if p.requires_grad])
        if row.shape != self.start.shape:
            raise ConfigError("model() makes modules of different sizes; it should make the same one each time")
        return row.to(self.start)

    def try_out(self, batch: Fields, layout: Layout) -> None:
        """One training pass on a real batch, to see which buffers it changes and whether it draws random numbers.

        Buffers that change belong to a client and get a row each; the others are constants.
        """
        buffers = dict(self.module.named_buffers())
        before = {name: b.clone() for name, b in buffers.items()}
        self.module.train()
        with draws.torch_generators(self.device):
            generator_before = _generator_state(self.device)
            try:
                loss = self.loss(self.module, layout.build(batch))
            except Exception as error:
                raise ConfigError(
                    f"the model and loss do not fit the data: {' '.join(str(error).split())} "
                    f"(batch of {', '.join(str(list(f.shape)) for f in batch)})"
                ) from error
            self.random = not torch.equal(generator_before, _generator_state(self.device))
        if not isinstance(loss, Tensor) or loss.ndim != 0:
            shape = list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ConfigError(f"the loss should be a scalar tensor, but is {shape}; average it over the batch")
        if not loss.requires_grad:
            raise ConfigError("the loss does not depend on any trained parameter of the model")
        after = dict(self.module.named_buffers())
        for name, value in before.items():
            self.reassigns |= after[name] is not buffers[name]
            if ((after[name] != value) & ~(after[name].isnan() & value.isnan())).any():
                self.buffers[name] = value
        self.load(self.start, self.buffers)

    def activations(self, batch: Fields, layout: Layout) -> int:
        """The bytes that autograd keeps of one model's forward pass on a batch, beside the model and the batch."""
        held = {t.untyped_storage().data_ptr() for t in (*self.module.parameters(), *self.module.buffers(), *batch)}
        kept: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        module = self.load(self.start, {name: b.clone() for name, b in self.buffers.items()}).train()
        hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
        with draws.torch_generators(self.device), hooks:
            self.loss(module, layout.build(batch))
        self.load(self.start, self.buffers)
        return sum(size for storage, size in kept.items() if storage not in held)

    def split(self, rows: Tensor) -> list[Tensor]:
        """The parameters in [m, d] rows as [m, *shape] views."""
        pieces = torch.split(rows, self.sizes, dim=1)
        return [piece.view(len(rows), *shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def load(self, row: Tensor, buffers: Buffers) -> nn.Module:
        """The template with its parameters and buffers made views of `row` and `buffers`: nothing is copied."""
        pieces = torch.split(row, self.sizes)
        for parameter, piece, shape in zip(self.parameters, pieces, self.shapes, strict=True):
            parameter.data = piece.view(shape)
        for name, value in buffers.items():
            owner, _, leaf = name.rpartition(".")
            self.module.get_submodule(owner)._buffers[leaf] = value
        return self.module

    def row(self, state: Mapping[str, Tensor], whose: str) -> Tensor:
        """The trained parameters of a state_dict as a row [d]; what does not fit is refused, and whose it is said."""
        frozen = {name: p for name, p in self.module.named_parameters() if name not in self.names}
        wanted = dict(zip(self.names, self.shapes, strict=True)) | {n: b.shape for n, b in self.buffers.items()}
        for name, value in state.items():
            if name not in wanted and name not in frozen:
                continue
            if not isinstance(value, Tensor):
                raise ConfigError(f"the model of {whose!r} has a {type(value).__name__} for {name!r}, not a tensor")
            if name in frozen and not torch.equal(value.to(frozen[name]), frozen[name]):
                raise ConfigError(f"the model of {whose!r} has other values for {name!r}, which is frozen and shared")
        for name, shape in wanted.items():
            found = list(state[name].shape) if name in state else "nothing"
            if found != list(shape):
                raise ConfigError(
                    f"the model of {whose!r} has {found} for {name!r}; it should be of shape {list(shape)}"
                )
            if name in self.names and not state[name].is_floating_point():
                raise ConfigError(f"the model of {whose!r} has whole numbers for {name!r}; it should have real ones")
        return torch.cat([state[name].detach().reshape(-1).to(self.start) for name in self.names])

    def collect(self, buffers: Buffers) -> None:
        """Buffers that the module has put others in the place of, instead of changing them, brought back."""
        for name, value in buffers.items():
            current = self.module.get_buffer(name)
            if current is not value:
                value.copy_(current.detach())

    def numbers(self, row: Tensor, buffers: Buffers) -> dict[str, Tensor]:
        """A copy of one client's row and buffers, by name: each a tensor of its own."""
        pieces = [piece[0].clone() for piece in self.split(row.detach()[None])]
        return dict(zip(self.names, pieces, strict=True)) | {name: b.clone() for name, b in buffers.items()}

    def build(self, numbers: Mapping[str, Tensor]) -> nn.Module:
        """A module in evaluation mode of which these are the numbers, not copied; what is not trained exists once."""
        instead: dict[int, Tensor] = {id(p): p for p in self.module.parameters() if not p.requires_grad}
        instead |= {id(b): numbers.get(name, b) for name, b in self.module.named_buffers()}
        trained = zip(self.names, self.parameters, strict=True)
        instead |= {id(p): nn.Parameter(numbers[name]) for name, p in trained}
        return copy.deepcopy(self.module, instead).eval()

    def own(self, numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What is one client's own of a state_dict: what is trained, and buffers that training changes."""
        first = {id(p): name for name, p in zip(self.names, self.parameters, strict=True)}
        everywhere = self.module.named_parameters(remove_duplicate=False)  # a layer may have several names
        names = {name: first[id(p)] for name, p in everywhere if id(p) in first} | {name: name for name in self.buffers}
        return {key: numbers[names[key]] for key in self.module.state_dict() if key in names}


def checksum(module: nn.Module, names: Iterable[str]) -> str:
    """Of these parameters and, of adapters, of how strongly they act."""
    digest = hashlib.blake2b(digest_size=16)
    for name in names:
        part = module.get_parameter(name)
        digest.update(part.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    for name, config in getattr(module, "peft_config", {}).items():
        digest.update(f"{name} {config.lora_alpha}".encode())
    return digest.hexdigest()


def average_buffers(rows: Buffers, asked: NDArray[np.int64], present: NDArray[np.int64]) -> None:
    """Policy `shared`: after a round, the buffers of all present become the mean over those who took part in it."""
    for value in rows.values():
        mean = mean_buffer(value[torch.from_numpy(asked).to(value.device)])
        value[torch.from_numpy(present).to(value.device)] = mean


def mean_buffer(rows: Tensor) -> Tensor:
    """One buffer for several: the mean or, for those that count, the largest."""
    return rows.mean(0) if rows.is_floating_point() else rows.max(0).values


def _built(model: Any, device: torch.device, seed: int, *which: str) -> nn.Module:
    if isinstance(model, nn.Module):
        return copy.deepcopy(model)
    if not callable(model):
        raise ConfigError(f"model = {model!r} should be an nn.Module or a function that makes one")
    with draws.torch_generators(device, draws.key(seed, "initialisation", *which)):
        try:
            module = model()
        except Exception as error:
            raise ConfigError(f"model() could not be made: {' '.join(str(error).split())}") from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"model() gave a {type(module).__name__}; it should make an nn.Module")
    return module


def _generator_state(device: torch.device) -> Tensor:
    """Of the CPU's generator, and of the device's: a model may draw from either."""
    states = [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]
    return torch.cat(states)


def _forget_statistics(module: nn.Module) -> None:
    """Policy `none`: normalise by the batch at hand, in training and in evaluation; keep no running statistics."""
    for part in module.modules():
        if isinstance(part, _NormBase) and part.track_running_stats:
            part.track_running_stats = False
            part.running_mean = part.running_var = part.num_batches_tracked = None
