"""One figure of a folder, by its name, whatever the folder is of: runs, a variation, the theory bench."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cobo.errors import CheckpointError, ConfigError
from cobo.report import comparison, figures, vary
from cobo.report.summary import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURES = {
    "accuracy": "accuracy (or loss) against rounds",
    "perplexity": "in its place, for language models",
    "gradients": "the same against gradients computed",
    "weights": "W at some rounds",
    "domain-weights": "the weights of each client over rounds (domain = simplex)",
    "weights-final": "the last W with its numbers (domain = simplex)",
    "vary": "panels against the value of a setting: the score, W, gradients",
    "theory": "the theorem's quantities and bounds",
    "figure1": "the paper's Figure 1",
}


def draw(
    name: str, folder: Path, summarised: Callable[[], Results], rounds: Sequence[int] | None = None
) -> tuple[Path, Path]:
    """FOLDER/figures/NAME.png and .svg; `summarised` are the results of a folder of runs, if it is one."""
    if name not in FIGURES:
        raise ConfigError(f"figure {name!r} is not known; it should be one of {', '.join(FIGURES)}")
    if rounds is not None and name != "weights":
        raise ConfigError(f"--rounds is for the figure weights, not for {name}")
    found = _drawn(folder, summarised, rounds)
    if name not in found:
        raise ConfigError(f"{folder} has nothing for the figure {name}; it has {', '.join(found) or 'none'}")
    place = folder / "figures"
    place.mkdir(exist_ok=True)
    figures.save(found[name], place, name)
    return place / f"{name}.png", place / f"{name}.svg"


def _drawn(folder: Path, summarised: Callable[[], Results], rounds: Sequence[int] | None) -> "dict[str, Figure]":
    if (folder / "theory.json").is_file():
        results = _read(folder / "theory.json")
        return {"theory": figures.theory(results), "figure1": figures.figure1(results["figure1"])}
    if (folder / "results.json").is_file() and "varied" in (results := _read(folder / "results.json")):
        return vary.drawn(results)
    return comparison.drawn(folder, summarised(), rounds)


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except ValueError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None
    return found
