"""The app itself, and what its commands say: tables, lines, how to go on after a stop."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import cobo
from cobo.engines import join
from cobo.errors import CoboError, RunError
from cobo.experiments import Experiment
from cobo.experiments.vary import Variation
from cobo.report import comparison, page, summary
from cobo.report import table as tables
from cobo.report import vary as variations

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        say(f"cobo {cobo.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Collaborative learning: one personal model per party, and who should learn from whom."""


def summarised(folder: Path, experiment: Experiment | None) -> summary.Results:
    if experiment is None:
        return summary.summarise(folder, folder.resolve().name, None)
    return summary.summarise(folder, experiment.experiment, experiment.target_accuracy, experiment.target_perplexity)


def summarised_runs(runs: summary.Runs, folder: Path, experiment: Experiment | None) -> summary.Results:
    """The same of these runs, finished or not."""
    if experiment is None:
        return summary.summarise_runs(runs, [], folder.resolve().name, None)
    return summary.summarise_runs(
        runs, [], experiment.experiment, experiment.target_accuracy, experiment.target_perplexity
    )


def show_runs(folder: Path, experiment: Experiment | None, *, draw: bool = True) -> None:
    if not join().leads:
        return
    results = summarised(folder, experiment)
    tables.write(folder, results)
    put(tables.terminal(results))
    if draw:
        comparison.draw(folder, results)
    seen = draw or (folder / "report.html").exists()  # an older one would not say what the tables now say
    if seen:
        page.write(folder, results)
    say(f"written to {folder}" + f"; open {folder / 'report.html'} to see it" * seen)


def show_variation(folder: Path, variation: Variation, *, draw: bool = True) -> None:
    results = variations.summarise(variation)
    variations.write(folder, results)
    put(variations.terminal(results))
    if draw:
        variations.draw(folder, results)
        variations.write_pages(variation)
    say(f"written to {folder}" + "; each value has its report.html" * draw)


def put(table: Table) -> None:
    console = Console()
    console.print(table, soft_wrap=not console.is_terminal)


def say(line: str) -> None:
    Console().print(line, markup=False, highlight=False, soft_wrap=True)


def say_first(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


class Stopped(CoboError):
    """Ctrl-C, with how to go on."""


class resumable:  # noqa: N801, reads as a verb where it is used
    """Adds to an error or a stop how to go on from what was written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, KeyboardInterrupt):  # in our words, before the command-line library sees it
            said = str(error).partition(";")[0] or "stopped by the user"
            raise Stopped(f"{said}; go on with the same command and --resume (written to {self._folder})") from None
        if isinstance(error, RunError):
            error.args = (f"{error} (what was written before stays in {self._folder})",)
