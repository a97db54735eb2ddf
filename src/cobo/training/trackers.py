"""TensorBoard and Weights & Biases: the same metrics under the same names, and W as an image."""

import os
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cobo.errors import ConfigError
from cobo.training.events import Event

NAMES = ("accuracy", "perplexity", "loss", "settled", "groups", "gradients", "seconds", "time")
SMALLEST = 256  # pixels across a picture of W, or more

Picture = NDArray[np.uint8]


def metrics(event: Event) -> dict[str, float]:
    """What an evaluation measured: `accuracy` and the like, and for each client `accuracy/NAME`."""
    found = {name: event.get(name) for name in NAMES}
    for client, values in event["clients"].items():
        found |= {f"{name}/{client}": value for name, value in values.items()}
    return {name: value for name, value in found.items() if value is not None}


def picture(W: NDArray[np.float32], *, simplex: bool) -> Picture:
    """W as pixels [h, w, 3], dark is 1, or on a simplex the largest weight."""
    import matplotlib  # slow to import, and not needed otherwise

    darkest = max(float(W.max()), 1e-9) if simplex else 1.0
    colours = matplotlib.colormaps["Blues"](W / darkest, bytes=True)[..., :3]
    pixels: Picture = np.kron(colours, np.ones((-(-SMALLEST // len(W)),) * 2 + (1,), dtype=np.uint8))
    return pixels


class Tracker:
    """Hears the events of a run; what becomes of them is up to those below."""

    _simplex = False

    def __call__(self, event: Event) -> None:
        kind = event["event"]
        if kind == "started":
            self._simplex = event["run"]["method"].get("domain") == "simplex"
            self.begin(event["run"], event["round"])
        elif kind == "evaluated":
            self.write(event["round"], metrics(event))
        elif kind == "weights":
            self.draw(event["round"], picture(event["weights"], simplex=self._simplex))
        elif kind in ("finished", "interrupted", "failed"):
            self.end(kind)

    def begin(self, run: dict[str, Any], round: int) -> None: ...

    def write(self, round: int, values: dict[str, float]) -> None: ...

    def draw(self, round: int, pixels: Picture) -> None: ...

    def end(self, how: str) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Whatever it was that ended the run, also what no event tells of."""
        self.end("finished" if error is None else "failed")


class TensorBoard(Tracker):
    """Writes into a folder that TensorBoard reads (extra `tensorboard`); each run has its own.

    A run that goes on takes the place of what was there from its round on, one from the start of all.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ConfigError("TensorBoard needs the extra; in cobo's clone: pip install '.[tensorboard]'") from None
        self._library, self._folder = SummaryWriter, str(folder)
        self._writer: Any = None

    def begin(self, run: dict[str, Any], round: int) -> None:
        self._writer = self._library(self._folder, purge_step=round + 1 if round else 0)

    def write(self, round: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, round)

    def draw(self, round: int, pixels: Picture) -> None:
        self._writer.add_image("W", pixels, round, dataformats="HWC")

    def end(self, how: str) -> None:
        if self._writer is not None:
            self._writer.close()


class WandB(Tracker):
    """A run of Weights & Biases (extra `wandb`); `options` are those of `wandb.init`.

    With WANDB_MODE=offline nothing leaves this computer; `wandb sync` sends it later.
    """

    def __init__(self, project: str, **options: Any) -> None:
        try:
            import wandb
        except ImportError:
            raise ConfigError("Weights & Biases needs the extra; in cobo's clone: pip install '.[wandb]'") from None
        self._library: Any = wandb
        self._options = {"project": project, **options}
        self._run: Any = None

    def begin(self, run: dict[str, Any], round: int) -> None:
        config = {"method": run["method"], "training": run["training"], "clients": run["names"]}
        try:
            self._run = self._library.init(config=config, **self._options)
        except (self._library.Error, OSError) as error:
            said = str(error).strip().splitlines() or [type(error).__name__]
            raise ConfigError(
                f"Weights & Biases did not begin: {said[0].rstrip('.')}; do `wandb login`, or set WANDB_MODE=offline"
            ) from None
        self._run.define_metric("*", step_metric="round")  # its own steps cannot go back, as a run that is resumed does

    def write(self, round: int, values: dict[str, float]) -> None:
        self._run.log({**values, "round": round})

    def draw(self, round: int, pixels: Picture) -> None:
        self._run.log({"W": self._library.Image(pixels), "round": round})

    def end(self, how: str) -> None:
        if self._run is not None:
            self._run.finish(exit_code=0 if how == "finished" else 1)
            self._run = None
