"""Commands that look at what is there: report, show, watch, figure, experiments, methods, data; and merge."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cobo import language
from cobo.cli.terminal import app, put, say, show_runs, show_variation, summarised, summarised_runs
from cobo.data import DATA
from cobo.errors import ConfigError
from cobo.experiments import EXPERIMENTS, Experiment, load_experiment
from cobo.experiments.vary import stored
from cobo.methods import METHODS
from cobo.report import gallery, glance, summary
from cobo.report import vary as variations
from cobo.report.watch import Now, serve


@app.command()
def report(folder: Annotated[Path, typer.Argument(metavar="DIR")]) -> None:
    """(Re)build tables, figures and report.html from what is in a folder of runs."""
    variation = stored(folder, EXPERIMENTS)
    if variation is None:
        show_runs(folder, _experiment(folder))
    else:
        show_variation(folder, variation)


@app.command()
def show(folder: Annotated[Path, typer.Argument(metavar="DIR")]) -> None:
    """A folder of runs in the terminal: the table, W in blocks, the groups found, the curves; of `vary`, the table."""
    variation = stored(folder, EXPERIMENTS)
    if variation is not None:
        put(variations.terminal(variations.summarise(variation)))
        say(f"for more of one value: cobo show {variation.values[0].folder}")
        return
    glance.show(Console(), folder, summarised(folder, _experiment(folder)))


@app.command()
def watch(
    folder: Annotated[Path, typer.Argument(metavar="DIR")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any that is free.")] = 8642,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Any but this computer's own asks visitors for the token.")
    ] = "127.0.0.1",
    token: Annotated[str | None, typer.Option(help="The token; by default a new one.")] = None,
) -> None:
    """The report of a folder in the browser while its runs go on, from the first evaluation on."""

    def summarise(runs: summary.Runs) -> summary.Results:
        known = (folder / "experiment.toml").is_file()
        return summarised_runs(
            runs, folder, load_experiment(str(folder / "experiment.toml"), EXPERIMENTS) if known else None
        )

    serve(Now(folder, summarise), host, port, token, say)


@app.command()
def figure(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(gallery.FIGURES)}.", metavar="NAME")],
    folder: Annotated[Path, typer.Argument(metavar="DIR")],
    rounds: Annotated[str | None, typer.Option(help="For weights: the rounds to show, as 0,100,200.")] = None,
) -> None:
    """One figure of a folder, as DIR/figures/NAME.png and .svg."""
    png, _ = gallery.draw(name, folder, lambda: summarised(folder, _experiment(folder)), _numbers(rounds))
    say(f"written to {png} and .svg")


@app.command()
def merge(
    adapter: Annotated[Path, typer.Argument(help="A client's adapter: RUN/METHOD/seed-K/adapters/NAME.")],
    out: Annotated[Path, typer.Argument(help="Folder for the model; it must not be there yet.")],
) -> None:
    """Put a client's adapter into the language model it adapts, as a model by itself (needs the extra llm)."""
    language.merge(adapter, out)
    say(f"written to {out}")


@app.command()
def experiments() -> None:
    """What experiments there are."""
    _list(("name", "what"), [(name, kind.what) for name, kind in EXPERIMENTS.items()])


@app.command()
def methods() -> None:
    """What methods there are, and their settings with defaults."""
    listed = []
    for name, kind in METHODS.items():
        settings = ", ".join(f"{key}={field.default!r}" for key, field in kind.model_fields.items())
        first = (sys.modules[kind.__module__].__doc__ or "").splitlines()[0]
        listed.append((name, first.partition(": ")[2], settings or "-"))
    _list(("name", "what", "settings"), listed)


sources = typer.Typer(
    help="What data sets are present, where, and how to get what is missing.", invoke_without_command=True
)
app.add_typer(sources, name="data")


@sources.callback()
def data(context: typer.Context) -> None:
    """What data sets are present, where, and how to get what is missing."""
    if context.invoked_subcommand is None:
        _list(("name", "what", "where"), [(source.name, source.what, source.where) for source in DATA.values()])


@sources.command()
def fetch(name: Annotated[str, typer.Argument(metavar="NAME")]) -> None:
    """Download a data set, checked, into the user's cache; nothing is done if it is already there."""
    if name not in DATA:
        raise ConfigError(f"data set {name!r} is not known; it should be one of {', '.join(DATA)}")
    source = DATA[name]
    if source.locate() is None and source.fetch is not None:
        source.fetch()
    say(f"{name}: {source.where}")


def _numbers(text: str | None) -> list[int] | None:
    try:
        return None if text is None else [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--rounds {text!r} is not allowed; it should be numbers with commas, as 0,100,200") from None


def _experiment(folder: Path) -> Experiment | None:
    """What was run in a folder; None for what `cobo.fit` left there."""
    path = folder / "experiment.toml"
    if path.is_file():
        return load_experiment(str(path), EXPERIMENTS)
    if not summary.places(folder, "result.json"):
        raise ConfigError(f"{folder} holds no run; give a folder that `cobo run`, `cobo compare` or `cobo.fit` wrote")
    return None


def _list(columns: tuple[str, ...], listed: Sequence[tuple[str, ...]]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in listed:
        table.add_row(*(escape(cell) for cell in row))
    Console().print(table)
