"""The `cobo` command: reads arguments, calls the library, turns errors into one line and an exit code."""

import math
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

import click
import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from cobo.compute.allocator import keep_freed_memory
from cobo.data import DATA
from cobo.errors import CheckpointError, CoboError, ConfigError, DataError, RunError
from cobo.experiments import EXPERIMENTS, Experiment, load_experiment
from cobo.experiments import tune as search
from cobo.experiments.figure1 import situations
from cobo.experiments.outlook import outlook
from cobo.experiments.quadratic import Quadratic
from cobo.experiments.runner import compare as run_all
from cobo.experiments.runner import run as run_one
from cobo.experiments.theory_bench import Plan
from cobo.experiments.tune import FIRST_SEED
from cobo.experiments.vary import Variation, load_values, safe
from cobo.experiments.worker import work
from cobo.methods import METHODS
from cobo.report import comparison, summary
from cobo.report import table as tables
from cobo.report import theory as findings
from cobo.report import vary as variations
from cobo.report.board import Board
from cobo.training.events import Listener, TensorBoard

app = typer.Typer(
    help="Collaborative learning: one personal model per party, and who should learn from whom.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Name = Annotated[str, typer.Argument(help="A preset (see `cobo experiments`) or a .toml file.", metavar="EXPERIMENT")]
Rounds = Annotated[int | None, typer.Option(help="Number of rounds, instead of the experiment's.")]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", help="KEY=VALUE, METHOD.KEY=VALUE or clocks.KEY=VALUE, over the experiment's. Repeatable."),
]
Out = Annotated[Path | None, typer.Option(help="Folder for what the run leaves behind. By default runs/EXPERIMENT.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoints in the folder.")]
Tuned = Annotated[
    str | None, typer.Option(help="The methods' settings from a file that `cobo tune` wrote, or `paper`.")
]
Methods = Annotated[str, typer.Option(help="Names separated by commas, or all.")]
Seeds = Annotated[int, typer.Option(min=1, max=FIRST_SEED, help="How many: seeds 0, 1, ...")]
Jobs = Annotated[int, typer.Option(min=1, help="Runs at a time, in processes of their own.")]
Boards = Annotated[Path | None, typer.Option(help="Also write metrics for TensorBoard into this folder.")]


@app.command()
def demo(
    out: Annotated[Path | None, typer.Option(help="Folder for the results. By default a new one in runs.")] = None,
) -> None:
    """All eight methods on the digits data: nothing to download, about a minute, ends with a table."""
    folder = out or Path("runs") / f"demo-{datetime.now():%Y%m%d-%H%M%S}"
    _compare(load_experiment("digits", EXPERIMENTS), list(METHODS), 1, folder, resume=out is not None)


@app.command()
def run(
    experiment: Name,
    method: Annotated[str, typer.Option(help="See `cobo methods`.")] = "cobo",
    seed: Annotated[int, typer.Option(min=0)] = 0,
    rounds: Rounds = None,
    set_: Changes = None,
    out: Out = None,
    resume: Resume = False,
    tuned: Tuned = None,
    tensorboard: Boards = None,
) -> None:
    """Run one method of an experiment with one seed."""
    chosen = load_experiment(experiment, EXPERIMENTS, _changes(set_, rounds), tuned)
    folder = out or _folder(experiment)
    listeners: list[Listener] = [] if tensorboard is None else [_tensorboard(tensorboard)]
    _say_outlook(chosen, [(method, seed)], folder, resume=resume)
    with _resumable(folder):
        run_one(chosen, method, seed, folder, resume=resume, listeners=listeners)
    _show(folder, chosen)


@app.command()
def compare(
    experiment: Name,
    methods: Methods = "all",
    seeds: Seeds = 1,
    rounds: Rounds = None,
    set_: Changes = None,
    out: Out = None,
    resume: Resume = False,
    tuned: Tuned = None,
    jobs: Jobs = 1,
) -> None:
    """Run several methods with several seeds, and put them in one table."""
    chosen = load_experiment(experiment, EXPERIMENTS, _changes(set_, rounds), tuned)
    wanted = _wanted(methods, chosen, tuned)
    _compare(chosen, wanted, seeds, out or _folder(experiment), resume=resume, jobs=jobs)


@app.command()
def vary(
    experiment: Name,
    setting: Annotated[str, typer.Argument(help="A setting, as --set names it, and its values.", metavar="KEY=V1,V2")],
    methods: Methods = "all",
    seeds: Seeds = 1,
    rounds: Rounds = None,
    set_: Changes = None,
    out: Annotated[Path | None, typer.Option(help="Folder. By default runs/vary-EXPERIMENT-KEY.")] = None,
    resume: Resume = False,
    tuned: Tuned = None,
    jobs: Jobs = 1,
) -> None:
    """Compare methods at each value of one setting. Methods that do not have it are run once, for all values."""
    folder = out or _folder(experiment, "vary-", "-" + setting.partition("=")[0].strip())
    key, values = load_values(experiment, EXPERIMENTS, setting, folder, _changes(set_, rounds), tuned)
    variation = Variation(key, values, _wanted(methods, values[0].experiment, tuned))
    runs = len(variation.jobs(range(seeds)))

    def table() -> Table | None:
        results = variations.summarise(variation)
        return variations.terminal(results) if results["values"] else None

    def show(*, draw: bool) -> None:
        results = variations.summarise(variation)
        if results["values"]:
            variations.write(folder, results)
            _print(variations.terminal(results))
            if draw:
                variations.draw(folder, results)
            _say(f"written to {folder}")

    try:
        with _resumable(folder), Board(runs, values[0].experiment.rounds, table) as board:
            variation.run(range(seeds), resume=resume, watch=board, at_once=jobs)
    except (RunError, _Stopped) as error:
        show(draw=isinstance(error, RunError))
        raise
    show(draw=True)


@app.command(hidden=True)
def worker(pipe: int) -> None:
    """What `--jobs` starts: runs that are asked for on stdin."""
    work(EXPERIMENTS, pipe)


@app.command()
def tune(
    experiment: Name,
    methods: Methods = "all",
    trials: Annotated[int, typer.Option(min=1, help="Settings to try for each method.")] = 16,
    seeds: Annotated[int, typer.Option(min=1, help=f"How many: seeds {FIRST_SEED}, {FIRST_SEED + 1}, ...")] = 3,
    rounds: Rounds = None,
    set_: Changes = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the search. By default runs/tune-EXPERIMENT.")] = None,
    resume: Resume = False,
) -> None:
    """Search each method's settings on validation data, with the same number of trials; for `compare --tuned`."""
    chosen = load_experiment(experiment, EXPERIMENTS, _changes(set_, rounds))
    wanted = _wanted(methods, chosen)
    folder = out or _folder(experiment, "tune-")
    if not resume and any(folder.glob("*/trials.jsonl")):
        raise CheckpointError(f"{folder} already holds a search; go on with it (--resume) or choose another --out")

    def table() -> Table:
        return _tuning_table(folder, wanted, trials, seeds)

    with _resumable(folder), Board(len(wanted) * trials * seeds, chosen.rounds, table) as board:
        search.tune(chosen, wanted, trials, seeds, folder, board)
    Console().print(table())
    _say(f"use it with `cobo compare {experiment} --tuned {folder / 'tuned.toml'}`")


@app.command()
def theory(
    seeds: Annotated[int, typer.Option(min=1, help="How many, side by side.")] = 5,
    doublings: Annotated[int, typer.Option(min=1, help="T = 4, 8, ..., so often doubled.")] = 9,
    out: Annotated[Path, typer.Option(help="Folder for tables and figures.")] = Path("runs/theory"),
) -> None:
    """The paper's theorem and Figure 1 on its example: measured beside claimed. Two to three minutes."""
    if (out / "theory.json").exists():
        raise CheckpointError(f"{out} already holds a theory bench; choose another --out")
    experiment = load_experiment("quadratic", EXPERIMENTS)
    assert isinstance(experiment, Quadratic)
    torch.set_num_threads(1)
    plan = Plan(experiment, seeds, doublings)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("rounds", total=plan.rounds)
        results = plan.run(lambda kind: bar.update(task, advance=1, description=kind))
    findings.write(out, results, situations())
    findings.show(Console(), results)
    _say(f"written to {out}")


@app.command()
def report(folder: Annotated[Path, typer.Argument(metavar="DIR")]) -> None:
    """(Re)build tables and figures from what is in a folder of runs."""
    path = folder / "experiment.toml"
    if not path.is_file():
        raise ConfigError(f"{folder} holds no experiment.toml; give a folder that `cobo run` or `compare` wrote")
    _show(folder, load_experiment(str(path), EXPERIMENTS))


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
    _say(f"{name}: {source.where}")


def main() -> None:
    """Run the command line: 0 success, 1 a run failed, 2 bad usage or configuration, 130 stopped by the user."""
    keep_freed_memory()
    try:
        sys.exit(app(standalone_mode=False))
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.ClickException as error:
        _fail(f"{error.format_message()} (see `cobo --help`)", 2)
    except _Stopped as stop:
        _fail(str(stop), 130)
    except (ConfigError, DataError, CheckpointError) as error:
        _fail(str(error), 2)
    except CoboError as error:
        _fail(str(error), 1)
    except OSError as error:
        _fail(f"{error.filename or 'a file'}: {error.strerror}; nothing that was written before is lost", 1)
    except (KeyboardInterrupt, click.Abort):
        _fail("stopped by the user", 130)


def _compare(
    experiment: Experiment, methods: list[str], seeds: int, folder: Path, *, resume: bool, jobs: int = 1
) -> None:
    runs = [(method, seed) for seed in range(seeds) for method in methods]
    _say_outlook(experiment, runs, folder, resume=resume, at_once=jobs)

    def table() -> Table | None:
        return tables.terminal(_summarised(folder, experiment)) if summary.read_runs(folder) else None

    try:
        with _resumable(folder), Board(len(methods) * seeds, experiment.rounds, table) as board:
            run_all(experiment, methods, range(seeds), folder, resume=resume, watch=board, at_once=jobs)
    except (RunError, _Stopped) as error:
        if summary.read_runs(folder):  # what there is; somebody who stops it does not want to wait for figures
            _show(folder, experiment, draw=isinstance(error, RunError))
        raise
    _show(folder, experiment)


def _wanted(methods: str, experiment: Experiment, tuned: str | None = None) -> list[str]:
    """The methods asked for, checked before anything runs."""
    wanted = list(METHODS) if methods == "all" else list(dict.fromkeys(m.strip() for m in methods.split(",")))
    if methods == "all" and experiment.leave_out:
        wanted = [method for method in wanted if method not in experiment.leave_out]
        left_out = ", ".join(experiment.leave_out)
        sys.stderr.write(f"{experiment.experiment}: {left_out} left out, as it costs far more; name it to run it\n")
    for method in wanted:
        experiment.method(method)
        if tuned is not None and method not in experiment.methods:
            raise ConfigError(
                f"--tuned {tuned!r} has nothing for {method}; tune it too, or choose --methods without it"
            )
    return wanted


def _say_outlook(
    experiment: Experiment, runs: list[tuple[str, int]], folder: Path, *, resume: bool, at_once: int = 1
) -> None:
    for line in outlook(experiment, runs, folder, resume=resume, at_once=at_once):
        sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


class _Stopped(CoboError):
    """Ctrl-C, with how to go on."""


class _resumable:  # noqa: N801, reads as a verb where it is used
    """Adds to an error or a stop how to go on from what was written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, KeyboardInterrupt):  # in our words, before the command-line library sees it
            said = str(error).partition(";")[0] or "stopped by the user"
            raise _Stopped(f"{said}; go on with the same command and --resume (written to {self._folder})") from None
        if isinstance(error, RunError):
            error.args = (f"{error} (what was written before stays in {self._folder})",)


def _folder(experiment: str, prefix: str = "", suffix: str = "") -> Path:
    """Where runs of an experiment go: each preset, and each file, has a folder of its own."""
    return Path("runs") / safe(f"{prefix}{Path(experiment).stem}{suffix}")


def _changes(changes: list[str] | None, rounds: int | None) -> list[str]:
    return [*(changes or []), *([] if rounds is None else [f"rounds={rounds}"])]


def _tensorboard(folder: Path) -> TensorBoard:
    try:
        return TensorBoard(folder)
    except ImportError:
        raise ConfigError("--tensorboard needs the extra: pip install 'cobo[tensorboard]'") from None


def _summarised(folder: Path, experiment: Experiment) -> summary.Results:
    return summary.summarise(folder, experiment.experiment, experiment.target_accuracy)


def _show(folder: Path, experiment: Experiment, *, draw: bool = True) -> None:
    results = _summarised(folder, experiment)
    tables.write(folder, results)
    _print(tables.terminal(results))
    if draw:
        comparison.draw(folder, results)
    _say(f"written to {folder}")


def _print(table: Table) -> None:
    console = Console()
    console.print(table, soft_wrap=not console.is_terminal)


def _say(line: str) -> None:
    Console().print(line, markup=False, highlight=False, soft_wrap=True)


def _tuning_table(folder: Path, methods: Sequence[str], trials: int, seeds: int) -> Table:
    table = Table("method", "trials", "best score", "settings", box=None, pad_edge=False)
    for method in methods:
        tried = search.finished(folder, method, trials, seeds)
        scored = [(trial.score, -trial.number, trial.point) for trial in tried if trial.score is not None]
        score, _, point = max(scored, key=lambda found: found[:2], default=(math.nan, 0, {}))
        settings = ", ".join(f"{name} = {value}" for name, value in point.items())
        table.add_row(method, f"{len(tried)} of {trials}", f"{score:.4g}" if scored else "-", settings or "-")
    return table


def _list(columns: tuple[str, ...], listed: Sequence[tuple[str, ...]]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in listed:
        table.add_row(*row)
    Console().print(table)


def _fail(message: str, code: int) -> None:
    sys.stderr.write(f"cobo: {message}\n")
    sys.exit(code)
