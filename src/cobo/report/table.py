"""The table of a comparison: for a terminal, and as Markdown, CSV and LaTeX."""

import csv
import io
import json
from collections.abc import Sequence
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
CSV_COLUMNS = (
    "method", *(f"{name}_{part}" for name in SPREAD for part in ("mean", "std")), *SINGLE, "graph_settled_round",
    "seeds",
)  # fmt: skip


def write(folder: Path, results: Results) -> None:
    """results.json and the table in every form."""
    write_atomic(folder / "table.md", markdown(results).encode())
    write_atomic(folder / "table.csv", comma_separated(results).encode())
    write_atomic(folder / "table.tex", latex(results).encode())
    write_atomic(folder / "results.json", json.dumps(results, indent=1).encode())


def markdown(results: Results) -> str:
    return f"{title(results)}\n\n{markdown_table(COLUMNS, rows(results))}\n{notes(results)}\n"


def comma_separated(results: Results) -> str:
    """Every number in full, for other programs; empty where it does not apply."""
    return csv_table(CSV_COLUMNS, csv_rows(results))


def latex(results: Results) -> str:
    """A tabular for booktabs; the best accuracy among methods that are not told the groups is bold."""
    best = _best(results)
    cells = [[escaped(cell) for cell in row] for row in rows(results)]
    for row, name in zip(cells, results["methods"], strict=True):
        if name == best:
            row[1] = rf"\textbf{{{row[1]}}}"
    about = ["bold: the best of those that are told nothing of the groups", title(results), notes(results)]
    return latex_table(COLUMNS, cells, about)


def markdown_table(heads: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *body]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def csv_table(heads: Sequence[str], body: Sequence[Sequence[object]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows([["" if cell is None else cell for cell in row] for row in body])
    return out.getvalue()


def latex_table(heads: Sequence[str], body: Sequence[Sequence[str]], about: Sequence[str], words: int = 1) -> str:
    """Of cells that are LaTeX already; so many columns, from the left, hold words."""
    lines = "".join(" & ".join(row) + " \\\\\n" for row in body)
    comments = "".join(f"% {line}\n" for line in ("needs \\usepackage{booktabs}", *about))
    return (
        f"{comments}\\begin{{tabular}}{{{'l' * words + 'r' * (len(heads) - words)}}}\n\\toprule\n"
        f"{' & '.join(escaped(head) for head in heads)} \\\\\n\\midrule\n{lines}\\bottomrule\n\\end{{tabular}}\n"
    )


def terminal(results: Results) -> Table:
    """The table for 80 columns: the spread over seeds is shown for accuracy only."""
    table = Table(
        title=title(results), title_justify="left", caption=notes(results, short=True), caption_justify="left",
        box=None, padding=(0, 0, 0, 1), pad_edge=False,
    )  # fmt: skip
    heads = (
        "method", "accuracy\n%", "loss", "impr.\n%", "recov.\n%", "grad.\nk", "sent\nMB", "to\ntarget", "W\nerror",
        "ARI", "s",
    )  # fmt: skip
    for k, head in enumerate(heads):
        table.add_column(head, justify="left" if k == 0 else "right", no_wrap=True)
    for m, row in zip(results["methods"].values(), rows(results), strict=True):
        brief = [text.partition(" ±")[0] for text in row]
        brief[1], brief[5], brief[-1] = row[1], f"{m['gradients'] / 1000:.1f}", f"{m['seconds']:.0f}"
        table.add_row(*brief[:6], *brief[7:11], brief[-1])
    return table


def csv_rows(results: Results) -> list[list[object]]:
    found = []
    for name, m in results["methods"].items():
        spreads = [(m[key] or {}).get(part) for key in SPREAD for part in ("mean", "std")]
        seeds = " ".join(str(seed) for seed in m["seeds"])
        found.append([name, *spreads, *(m[key] for key in SINGLE), _settled(m), seeds])
    return found


def rows(results: Results) -> list[tuple[str, ...]]:
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


def title(results: Results) -> str:
    seeds = len(results["seeds"])
    return f"{results['experiment']}: {results['rounds']} rounds, {seeds} seed{'s' * (seeds > 1)}"


def notes(results: Results, *, short: bool = False) -> str:
    """What a reader has to know: the spread, who is told what, and which runs are missing."""
    said = [] if short or len(results["seeds"]) < 2 else ["± is the standard deviation over seeds."]
    told = [f"{name} {m['told']}" for name, m in results["methods"].items() if m["told"]]
    said += [f"Told: {', '.join(told)}."] if told else []
    fewer = [f"{name} {len(m['seeds'])}" for name, m in results["methods"].items() if m["seeds"] != results["seeds"]]
    said += [f"* fewer seeds: {', '.join(fewer)}."] if fewer else []
    timed = {name: m for name, m in results["methods"].items() if m.get("time") is not None}
    spent = [f"{name} {_number(m['time_to_target'], 0)} of {_number(m['time'], 0)}" for name, m in timed.items()]
    said += [f"Simulated time to target: {', '.join(spent)}."] if spent else []
    missing = results["unfinished"]
    said += [f"Begun but not finished: {', '.join(missing)}."] if missing else []
    return ("\n" if short else " ").join(said)


def _best(results: Results) -> str | None:
    scores = {name: m["accuracy"]["mean"] for name, m in results["methods"].items() if m["accuracy"] and not m["told"]}
    return max(scores, key=lambda name: scores[name]) if scores else None


def escaped(text: str) -> str:
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
