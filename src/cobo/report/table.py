"""The table of a comparison: for a terminal, and as Markdown, CSV and LaTeX."""

import csv
import io
import json
from pathlib import Path
from typing import Any

from rich.table import Table

from cobo.report.summary import Results
from cobo.training.checkpoint import write_atomic

COLUMNS = (
    "method", "accuracy %", "loss", "improved %", "recovery %", "gradients", "comparisons", "MB sent", "to target",
    "W error", "groups", "W right", "s",
)  # fmt: skip
SPREAD = ("accuracy", "loss", "improved", "recovery")
SINGLE = (
    "gradients", "comparisons", "bytes", "rounds_to_target", "weights_error", "groups_score", "seconds", "time",
    "time_to_target", "gradients_to_target", "rounds_to_ditto", "gradients_to_ditto", "told",
)  # fmt: skip


def write(folder: Path, results: Results) -> None:
    """results.json and the table in every form."""
    write_atomic(folder / "table.md", markdown(results).encode())
    write_atomic(folder / "table.csv", comma_separated(results).encode())
    write_atomic(folder / "table.tex", latex(results).encode())
    write_atomic(folder / "results.json", json.dumps(results, indent=1).encode())


def markdown(results: Results) -> str:
    lines = [COLUMNS, tuple("---" for _ in COLUMNS), *_rows(results)]
    table = "".join("| " + " | ".join(line) + " |\n" for line in lines)
    return f"{_title(results)}\n\n{table}\n{_notes(results)}\n"


def comma_separated(results: Results) -> str:
    """Every number in full, for other programs; empty where it does not apply."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["method", *(f"{name}_{part}" for name in SPREAD for part in ("mean", "std")), *SINGLE,
                     "graph_settled_round", "seeds"])  # fmt: skip
    for name, m in results["methods"].items():
        spreads = [(m[key] or {}).get(part) for key in SPREAD for part in ("mean", "std")]
        seeds = " ".join(str(seed) for seed in m["seeds"])
        values = [*spreads, *(m[key] for key in SINGLE), _settled(m)]
        writer.writerow([name, *("" if v is None else v for v in values), seeds])
    return out.getvalue()


def latex(results: Results) -> str:
    """A tabular for booktabs; the best accuracy among methods that are not told the groups is bold."""
    rows = [[_escaped(cell) for cell in row] for row in _rows(results)]
    best = _best(results)
    for row, name in zip(rows, results["methods"], strict=True):
        if name == best:
            row[1] = rf"\textbf{{{row[1]}}}"
    heads = " & ".join(_escaped(column) for column in COLUMNS)
    body = "".join(" & ".join(row) + " \\\\\n" for row in rows)
    notes = "".join(f"% {line}\n" for line in (_title(results), _notes(results)))
    columns = "l" + "r" * (len(COLUMNS) - 1)
    return (
        f"% needs \\usepackage{{booktabs}}; bold: the best of those that are told nothing of the groups\n{notes}"
        f"\\begin{{tabular}}{{{columns}}}\n\\toprule\n{heads} \\\\\n\\midrule\n{body}\\bottomrule\n\\end{{tabular}}\n"
    )


def terminal(results: Results) -> Table:
    """The table for 80 columns: the spread over seeds is shown for accuracy only."""
    table = Table(
        title=_title(results), title_justify="left", caption=_notes(results, short=True), caption_justify="left",
        box=None, padding=(0, 0, 0, 1), pad_edge=False,
    )  # fmt: skip
    heads = (
        "method", "accuracy\n%", "loss", "impr.\n%", "recov.\n%", "grad.\nk", "sent\nMB", "to\ntarget", "W\nerror",
        "ARI", "s",
    )  # fmt: skip
    for k, head in enumerate(heads):
        table.add_column(head, justify="left" if k == 0 else "right", no_wrap=True)
    for m, row in zip(results["methods"].values(), _rows(results), strict=True):
        brief = [text.partition(" ±")[0] for text in row]
        brief[1], brief[5], brief[-1] = row[1], f"{m['gradients'] / 1000:.1f}", f"{m['seconds']:.0f}"
        table.add_row(*brief[:6], *brief[7:11], brief[-1])
    return table


def _rows(results: Results) -> list[tuple[str, ...]]:
    """The table as text, a row per method."""
    return [
        (
            name + "*" * (m["seeds"] != results["seeds"]),
            _plus_minus(m["accuracy"], 1),
            _plus_minus(m["loss"], 3),
            _plus_minus(m["improved"], 0),
            _plus_minus(m["recovery"], 0),
            f"{m['gradients']:,}",
            f"{m['comparisons']:,}",
            f"{m['bytes'] / 1e6:,.0f}",
            _number(m["rounds_to_target"], 0),
            _number(m["weights_error"], 3),
            _number(m["groups_score"], 2),
            _number(_settled(m), 0),
            _number(m["seconds"], 1),
        )
        for name, m in results["methods"].items()
    ]


def _settled(m: dict[str, Any]) -> float | None:
    """The round from which on W had the true groups, with every seed."""
    return (m["graph_settled"] or {}).get("round")


def _title(results: Results) -> str:
    seeds = len(results["seeds"])
    return f"{results['experiment']}: {results['rounds']} rounds, {seeds} seed{'s' * (seeds > 1)}"


def _notes(results: Results, *, short: bool = False) -> str:
    """What a reader has to know: the spread, who is told what, and which runs are missing."""
    notes = [] if short or len(results["seeds"]) < 2 else ["± is the standard deviation over seeds."]
    told = [f"{name} {m['told']}" for name, m in results["methods"].items() if m["told"]]
    notes += [f"Told: {', '.join(told)}."] if told else []
    fewer = [f"{name} {len(m['seeds'])}" for name, m in results["methods"].items() if m["seeds"] != results["seeds"]]
    notes += [f"* fewer seeds: {', '.join(fewer)}."] if fewer else []
    timed = {name: m for name, m in results["methods"].items() if m.get("time") is not None}
    spent = [f"{name} {_number(m['time_to_target'], 0)} of {_number(m['time'], 0)}" for name, m in timed.items()]
    notes += [f"Simulated time to target: {', '.join(spent)}."] if spent else []
    missing = results["unfinished"]
    notes += [f"Begun but not finished: {', '.join(missing)}."] if missing else []
    return ("\n" if short else " ").join(notes)


def _best(results: Results) -> str | None:
    scores = {name: m["accuracy"]["mean"] for name, m in results["methods"].items() if m["accuracy"] and not m["told"]}
    return max(scores, key=lambda name: scores[name]) if scores else None


def _escaped(text: str) -> str:
    for plain, tex in (("%", r"\%"), ("_", r"\_"), ("&", r"\&"), ("#", r"\#"), (" ± ", r" $\pm$ ")):
        text = text.replace(plain, tex)
    return text


def _plus_minus(spread: dict[str, float | None] | None, digits: int) -> str:
    if spread is None:
        return "-"
    text = _number(spread["mean"], digits)
    return text if spread["std"] is None else f"{text} ± {_number(spread['std'], digits)}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
