"""Commands that run something: demo, run, compare, vary, tune, theory."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from cobo.cli.terminal import Stopped, app, resumable, say, say_first, show_runs, show_variation, summarised
from cobo.engines import join
from cobo.errors import CheckpointError, ConfigError, RunError
from cobo.experiments import EXPERIMENTS, Experiment, load_experiment
from cobo.experiments import tune as search
from cobo.experiments.figure1 import situations
from cobo.experiments.quadratic import Quadratic
from cobo.experiments.runner import compare as run_all
from cobo.experiments.runner import run as run_one
from cobo.experiments.theory_bench import Plan
from cobo.experiments.tune import FIRST_SEED
from cobo.experiments.vary import Variation, load_values, safe
from cobo.experiments.worker import work
from cobo.methods import METHODS
from cobo.report import summary
from cobo.report import table as tables
from cobo.report import theory as findings
from cobo.report import vary as variations
from cobo.report.board import Board
from cobo.training.trackers import TensorBoard, Tracker, WandB

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
Boards = Annotated[
    Path | None, typer.Option(help="Also write metrics and W for TensorBoard, into METHOD/seed-K of this folder.")
]
Project = Annotated[
    str | None, typer.Option(help="Also log metrics and W to this project of Weights & Biases.", metavar="PROJECT")
]


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
    wandb: Project = None,
) -> None:
    """Run one method of an experiment with one seed."""
    chosen = load_experiment(experiment, EXPERIMENTS, _changes(set_, rounds), tuned)
    folder = out or _folder(experiment)
    trackers: list[Tracker] = []
    if tensorboard is not None and join().leads:
        trackers.append(TensorBoard(tensorboard / method / f"seed-{seed}"))
    if wandb is not None and join().leads:
        trackers.append(WandB(wandb, name=f"{method} seed {seed}", group=chosen.experiment, dir=folder))
    with resumable(folder), ExitStack() as stack:
        for tracker in trackers:
            stack.enter_context(tracker)
        run_one(chosen, method, seed, folder, resume=resume, listeners=trackers, say=say_first)
    show_runs(folder, chosen)


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

    def found() -> summary.Results | None:
        """What there is, as soon as something is finished."""
        results = variations.summarise(variation)
        return results if any(at["methods"] for at in results["values"]) else None

    def table() -> Table | None:
        results = found()
        return None if results is None else variations.terminal(results)

    def show(*, draw: bool) -> None:
        if found() is not None:
            show_variation(folder, variation, draw=draw)

    try:
        with resumable(folder), Board(runs, values[0].experiment.rounds, table) as board:
            variation.run(range(seeds), resume=resume, watch=board, at_once=jobs, say=board.warn)
    except (RunError, Stopped) as error:
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
    among: Annotated[
        Path | None, typer.Option(help="Try the best of an earlier (shorter) search, in this folder, again.")
    ] = None,
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

    with resumable(folder), Board(len(wanted) * trials * seeds, chosen.rounds, table) as board:
        search.tune(chosen, wanted, trials, seeds, folder, board, among, say=board.warn)
    Console().print(table())
    say(f"use it with `cobo compare {experiment} --tuned {folder / 'tuned.toml'}`")


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
    say(f"written to {out}")


def _compare(
    experiment: Experiment, methods: list[str], seeds: int, folder: Path, *, resume: bool, jobs: int = 1
) -> None:
    def table() -> Table | None:
        return tables.terminal(summarised(folder, experiment)) if summary.read_runs(folder) else None

    try:
        with resumable(folder), Board(len(methods) * seeds, experiment.rounds, table) as board:
            run_all(experiment, methods, range(seeds), folder, resume=resume, watch=board, at_once=jobs, say=board.warn)
    except (RunError, Stopped) as error:
        if summary.read_runs(folder):  # what there is; somebody who stops it does not want to wait for figures
            show_runs(folder, experiment, draw=isinstance(error, RunError))
        raise
    show_runs(folder, experiment)


def _wanted(methods: str, experiment: Experiment, tuned: str | None = None) -> list[str]:
    """The methods asked for, checked before anything runs."""
    wanted = list(METHODS) if methods == "all" else list(dict.fromkeys(m.strip() for m in methods.split(",")))
    if methods == "all" and experiment.leave_out:
        wanted = [method for method in wanted if method not in experiment.leave_out]
        costly = []
        for method in experiment.leave_out:
            try:
                experiment.method(method)
                costly.append(method)
            except ConfigError as error:  # it could not be run if it were named, either
                sys.stderr.write(f"{experiment.experiment}: {method} left out: {error}\n")
        if costly:
            names = ", ".join(costly)
            sys.stderr.write(f"{experiment.experiment}: {names} left out, as it costs far more; name it to run it\n")
    for method in wanted:
        experiment.method(method)
        if tuned is not None and method not in experiment.methods:
            raise ConfigError(
                f"--tuned {tuned!r} has nothing for {method}; tune it too, or choose --methods without it"
            )
    return wanted


def _folder(experiment: str, prefix: str = "", suffix: str = "") -> Path:
    """Where runs of an experiment go: each preset, and each file, has a folder of its own."""
    return Path("runs") / safe(f"{prefix}{Path(experiment).stem}{suffix}")


def _changes(changes: list[str] | None, rounds: int | None) -> list[str]:
    return [*(changes or []), *([] if rounds is None else [f"rounds={rounds}"])]


def _tuning_table(folder: Path, methods: Sequence[str], trials: int, seeds: int) -> Table:
    table = Table("method", "trials", "best score", "settings", box=None, pad_edge=False)
    for method in methods:
        tried = search.finished(folder, method, trials, seeds)
        best = search.leader(tried)
        score = "-" if best is None else f"{best.score:.4g}"
        settings = "-" if best is None else ", ".join(f"{name} = {value}" for name, value in best.point.items())
        table.add_row(method, f"{len(tried)} of {trials}", score, escape(settings))
    return table
