"""What a theory bench found, for a terminal and as files: measured beside bound, in the worst group."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from cobo.report import figures
from cobo.training.checkpoint import write_atomic
from cobo.training.environment import environment

QUANTITIES = tuple(figures.PANELS)
BOUNDS = ("printed", "corrected")


class Grid(NamedTuple):
    """A table: its title, its heads, its rows as text."""

    title: str
    heads: Sequence[str]
    rows: list[list[str]]


def write(folder: Path, results: dict[str, Any], found: dict[str, Any]) -> None:
    """theory.json, table.md and the figures; theory.json last, as it says that the rest is there."""
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    figures.save(figures.theory(results), folder / "figures", "theory")
    figures.save(figures.figure1(found), folder / "figures", "figure1")
    write_atomic(folder / "table.md", markdown(results).encode())
    everything = {**results, "figure1": found, "environment": environment()}
    write_atomic(folder / "theory.json", json.dumps(everything, indent=1).encode())


def show(console: Console, results: dict[str, Any]) -> None:
    for grid in grids(results):
        table = Table(title=grid.title, title_justify="left", box=None, padding=(0, 0, 0, 1), pad_edge=False)
        for k, head in enumerate(grid.heads):
            words = k == 0 or head in ("why", "quantity")
            table.add_column(head, justify="left" if words else "right", overflow="fold")
        for row in grid.rows:
            table.add_row(*row)
        console.print(table, soft_wrap=not console.is_terminal)
        console.print()
    console.print(remarks(results), markup=False, highlight=False)


def markdown(results: dict[str, Any]) -> str:
    parts = []
    for grid in grids(results):
        lines = [list(grid.heads), ["---"] * len(grid.heads), *grid.rows]
        rows = (
            "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines
        )
        parts.append(f"{grid.title}\n\n" + "\n".join(rows))
    return "\n\n".join([*parts, remarks(results)]) + "\n"


def grids(results: dict[str, Any]) -> list[Grid]:
    return [
        _pairs(results),
        _conditions(results),
        *(
            _measured(f"{kind}: {results['selections'][kind]}", lines, results["constants"]["T0"])
            for kind, lines in results["series"].items()
        ),
        _verdict(results),
        _weights(results),
        _measured("Started between the centres, right weights from the first round: what the cap alone does",
                  results["from_the_middle"], results["constants"]["T0"]),
        _curvatures(results),
    ]  # fmt: skip


def verdict(results: dict[str, Any]) -> list[str]:
    """What was found for exact selection, which the proof is about, in a line for each quantity."""
    lines = results["series"]["exact"]
    said = []
    for name in QUANTITIES:
        above = {bound: [x["T"] for x in lines if x[name]["measured"] > x[name][bound]] for bound in BOUNDS}
        told = [f"{bound} bound {'holds at every T' if not T else f'exceeded at T = {_places(T, len(lines))}'}"
                for bound, T in above.items()]  # fmt: skip
        slope = results["slopes"]["exact"][name]["after_T0"]
        fitted = "too few T >= T0 for a slope" if slope is None else f"slope {slope:.2f} for T >= T0"
        said.append(f"Exact selection, {name}: {', '.join(told)}; {fitted}.")
    return said


def remarks(results: dict[str, Any]) -> str:
    quiet, k = results["noise_free"], results["constants"]
    return "\n".join(verdict(results)) + (
        "\n"
        f"* T < T0 = 48 L Delta / sigma^2 = {k['T0']:.0f}: the step size is capped. {results['seeds']} seeds, means, "
        "the worst group; x is measured / bound.\n"
        f"Without noise, after {quiet['rounds']} rounds: {quiet['distance']:.1e} between members of a group at most, "
        f"{quiet['from_centre']:.1e} from their centre; W is right from round {quiet['right_from']} on."
    )


def _pairs(results: dict[str, Any]) -> Grid:
    heads = ("i", "j", "M_ij", "zeta_ij^2", "zeta_ij^2, printed")
    rows = [
        [pair["i"], pair["j"], *(_short(pair[key]) if key in pair else "-" for key in ("M", "zeta2", "printed_zeta2"))]
        for pair in results["pairs"]
    ]
    k = results["constants"]
    title = (
        f"Constants: c = {k['c']}, L = {k['L']:g}, Delta = {k['Delta']:g}, rho = {k['rho']:.4g}, cap = {k['cap']:.4g}"
    )
    return Grid(title, heads, rows)


def _conditions(results: dict[str, Any]) -> Grid:
    rows = [[c["condition"], c["holds"], c["why"]] for c in results["conditions"]]
    return Grid("What the theorem asks for (exact selection, longest run)", ("condition", "so?", "why"), rows)


def _measured(title: str, lines: Sequence[dict[str, Any]], T0: float) -> Grid:
    heads = (
        "T", "eta", "consensus", "printed", "x", "corrected", "x", "gradient", "printed", "x", "client", "printed", "x",
    )  # fmt: skip
    rows = [
        [f"{line['T']}{'*' * (line['T'] < T0)}", f"{line['eta']:.3f}", *_cells(line, "consensus", corrected=True),
         *_cells(line, "gradient"), *_cells(line, "client")]
        for line in lines
    ]  # fmt: skip
    return Grid(title, heads, rows)


def _cells(line: dict[str, Any], name: str, *, corrected: bool = False) -> list[str]:
    value = line[name]
    bounds = ("printed", "corrected") if corrected else ("printed",)
    cells = [_short(value["measured"])]
    for bound in bounds:
        cells += [_short(value[bound]), _ratio(value["measured"], value[bound])]
    return cells


def _verdict(results: dict[str, Any]) -> Grid:
    heads = ("selection", "quantity", "above printed at T", "above corrected at T", "slope", "slope, T >= T0")
    rows = []
    for kind, lines in results["series"].items():
        for name in QUANTITIES:
            slopes = results["slopes"][kind][name]
            above = [_places([x["T"] for x in lines if x[name]["measured"] > x[name][bound]], len(lines))
                     for bound in BOUNDS]  # fmt: skip
            rows.append([kind, name, *above, _slope(slopes["all"]), _slope(slopes["after_T0"])])
    return Grid("Where a bound is exceeded, and the slope of log measured over log T", heads, rows)


def _places(above: list[int], count: int) -> str:
    if not above:
        return "-"
    return "all" if len(above) == count else " ".join(str(T) for T in above)


def _weights(results: dict[str, Any]) -> Grid:
    kinds = list(results["series"])
    heads = ["T", *(f"{kind}\n{what}" for kind in kinds for what in ("right %", "inside", "across"))]
    rows = []
    for lines in zip(*results["series"].values(), strict=True):
        cells = ([f"{100 * x['right']:.0f}", f"{x['inside']:.3f}", f"{x['across']:.3f}"] for x in lines)
        rows.append([str(lines[0]["T"]), *(cell for three in cells for cell in three)])
    title = "W: rounds in which all weights are w*; mean weight inside and across groups in the second half"
    return Grid(title, heads, rows)


def _curvatures(results: dict[str, Any]) -> Grid:
    heads = ("a", "M^2", "T", "consensus", "printed", "x", "corrected", "x", "gradient", "printed", "x")
    rows = [
        [" ".join(f"{a:g}" for a in line["a"]), f"{line['M2']:.3f}", str(line["T"]),
         *_cells(line, "consensus", corrected=True), *_cells(line, "gradient")]
        for line in results["curvatures"]
    ]  # fmt: skip
    return Grid(
        "The consensus bound against M^2, each at T = its T0 at most (exact selection): with M = 0 it says 0",
        heads,
        rows,
    )


def _short(value: float) -> str:
    return f"{value:.3g}"


def _ratio(value: float, bound: float) -> str:
    return f"{value / bound:.2f}" if bound > 0 else str(math.inf)


def _slope(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
