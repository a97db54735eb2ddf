"""Commands for Flower (extra `flower`): an experiment on its simulation."""

from pathlib import Path
from typing import Annotated

import typer

from cobo.cli.runs import Changes, Name, Resume, Rounds
from cobo.cli.terminal import app, resumable, show_runs
from cobo.errors import ConfigError
from cobo.experiments import EXPERIMENTS, load_experiment
from cobo.training.progress import LiveProgress

flower = typer.Typer(help="Parties that are apart, with Flower; see docs/flower.md.", no_args_is_help=True)
app.add_typer(flower, name="flower")


@flower.callback()
def commands() -> None:
    """Parties that are apart, with Flower; see docs/flower.md."""


@flower.command()
def simulate(
    experiment: Name,
    method: Annotated[str, typer.Option(help="cobo, local, fedavg or ditto.")] = "cobo",
    seed: Annotated[int, typer.Option(min=0)] = 0,
    rounds: Rounds = None,
    local_steps: Annotated[
        int | None,
        typer.Option(min=1, help="Steps of each client between two exchanges. By default the method's own, or 1."),
    ] = None,
    set_: Changes = None,
    out: Annotated[Path | None, typer.Option(help="Folder. By default runs/flower-EXPERIMENT.")] = None,
    resume: Resume = False,
) -> None:
    """Run one method of an experiment with Flower's messages, on virtual nodes on this computer."""
    try:
        from cobo.flower.simulate import simulate as run
    except ImportError as error:
        raise ConfigError(f"{error}: Flower 1.41 is an extra of cobo; in its clone: pip install '.[flower]'") from None
    changes = [*(set_ or []), *([] if rounds is None else [f"rounds={rounds}"])]
    chosen = load_experiment(experiment, EXPERIMENTS, changes)
    folder = out or Path("runs") / f"flower-{Path(experiment).stem}"
    with resumable(folder), LiveProgress(f"{method} seed {seed}") as bar:
        run(chosen, method, seed, folder, local_steps=local_steps, resume=resume, listener=bar)
    show_runs(folder, chosen)
