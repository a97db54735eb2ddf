"""The table of a comparison: for a terminal, and as Markdown, CSV and LaTeX."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from cobo.report.summary import Results
from cobo.training.checkpoint import write_atomic

COLUMNS = (
    "method", "accuracy %", "perplexity", "loss", "improved %", "recovery %", "gradients", "comparisons", "MB sent",
    "to target", "W error", "groups", "W right", "s",
)  # fmt: skip
SCORES = {"accuracy": "accuracy %", "perplexity": "perplexity", "loss": "loss"}  # and their columns
DIGITS = {"accuracy": 1, "perplexity": 2, "loss": 3}
OF_GROUPS = ("recovery %", "W error", "groups", "W right")
TERMINAL = {  # what there is room for
    "method": "method", "accuracy %": "accuracy\n%", "perplexity": "perplexity", "loss": "loss",
    "improved %": "impr.\n%", "recovery %": "recov.\n%", "gradients": "grad.\nk", "MB sent": "sent\nMB",
    "to target": "to\ntarget", "W error": "W\nerror", "groups": "ARI", "s": "s",
}  # fmt: skip
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
    heads = columns(results)
    return f"{title(results)}\n\n{markdown_table(heads, cells(results, heads))}\n{notes(results)}\n"


def comma_separated(results: Results) -> str:
    """Every number in full, for other programs; empty where it does not apply."""
    heads = csv_columns(results)
    return csv_table(heads, csv_rows(results, heads))


def latex(results: Results) -> str:
    """A tabular for booktabs; the best score among methods that are not told the groups is bold."""
    first, heads = best(results), columns(results)
    body = [[escaped(cell) for cell in row] for row in cells(results, heads)]
    for row, name in zip(body, results["methods"], strict=True):
        if name == first:
            place = heads.index(SCORES[score(results)])
            row[place] = rf"\textbf{{{row[place]}}}"
    about = ["bold: the best of those that are told nothing of the groups", title(results), notes(results)]
    return latex_table(heads, body, about)


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
    """The table for 80 columns."""
    table = Table(
        title=escape(title(results)), title_justify="left", caption=escape(notes(results, short=True)),
        caption_justify="left",
        box=None, padding=(0, 0, 0, 1), pad_edge=False,
    )  # fmt: skip
    heads = [head for head in columns(results) if head in TERMINAL]
    for head in heads:
        add_column(table, head)
    for row in brief_cells(results, heads):
        table.add_row(*(escape(cell) for cell in row))
    return table


def add_column(table: Table, head: str) -> None:
    table.add_column(TERMINAL[head], justify="left" if head == "method" else "right", no_wrap=True)


def columns(*results: Results) -> list[str]:
    """The heads of a table, of one comparison or of several.

    Of accuracy and perplexity it has one. With perplexity, where true groups are rarely known, columns that compare
    with them are left out if they are empty.
    """
    if not _have_perplexity(*results):
        return [head for head in COLUMNS if head != "perplexity"]
    filled = {head for one in results for row in _rows(one) for head, text in row.items() if text != "-"}
    return [head for head in COLUMNS if head != "accuracy %" and (head in filled or head not in OF_GROUPS)]


def cells(results: Results, heads: Sequence[str]) -> list[list[str]]:
    """The table as text, a row per method."""
    return [[row[head] for head in heads] for row in _rows(results)]


def brief_cells(results: Results, heads: Sequence[str]) -> list[list[str]]:
    """The same for a terminal: the spread over seeds is shown for the score only."""
    found = []
    for m, row in zip(results["methods"].values(), _rows(results), strict=True):
        scores = ("accuracy %", "perplexity")
        brief = {head: text if head in scores else text.partition(" ±")[0] for head, text in row.items()}
        brief |= {"gradients": f"{m['gradients'] / 1000:.1f}", "s": f"{m['seconds']:.0f}"}
        found.append([brief[head] for head in heads])
    return found


def csv_columns(*results: Results) -> list[str]:
    """Always the same; perplexity, where there is one, comes last."""
    more = ("perplexity_mean", "perplexity_std") if _have_perplexity(*results) else ()
    return [*CSV_COLUMNS, *more]


def csv_rows(results: Results, heads: Sequence[str]) -> list[list[object]]:
    found = []
    for name, m in results["methods"].items():
        row: dict[str, object] = {"method": name, **{key: m[key] for key in SINGLE}, "graph_settled_round": _settled(m)}
        row |= {
            f"{key}_{part}": (m[key] or {}).get(part) for key in (*SPREAD, "perplexity") for part in ("mean", "std")
        }
        row["seeds"] = " ".join(str(seed) for seed in m["seeds"])
        found.append([row[head] for head in heads])
    return found


def _rows(results: Results) -> list[dict[str, str]]:
    return [
        {
            "method": name + "*" * (m["seeds"] != results["seeds"]),
            **{head: _plus_minus(m[name], DIGITS[name]) for name, head in SCORES.items()},
            "improved %": _plus_minus(m["improved"], 0),
            "recovery %": _plus_minus(m["recovery"], 0),
            "gradients": f"{m['gradients']:,}",
            "comparisons": f"{m['comparisons']:,}",
            "MB sent": f"{m['bytes'] / 1e6:,.0f}",
            "to target": _number(m["rounds_to_target"], 0),
            "W error": _number(m["weights_error"], 3),
            "groups": _number(m["groups_score"], 2),
            "W right": _number(_settled(m), 0),
            "s": _number(m["seconds"], 1),
        }
        for name, m in results["methods"].items()
    ]


def _have_perplexity(*results: Results) -> bool:
    return any(m["perplexity"] for one in results for m in one["methods"].values())


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


def score(results: Results) -> str:
    """What methods are judged by: accuracy or perplexity, and loss where there is neither."""
    known = (name for name in SCORES if any(m[name] for m in results["methods"].values()))
    return next(known, "accuracy")


def best(results: Results) -> str | None:
    """The method with the best score of those that are told nothing of the groups; None while one of them goes on."""
    name = score(results)
    untold = {method: m for method, m in results["methods"].items() if not m["told"]}
    if set(untold) & set(results.get("going", ())):
        return None
    scores = {method: m[name]["mean"] for method, m in untold.items() if m[name]}
    return (max if name == "accuracy" else min)(scores, key=lambda method: scores[method]) if scores else None


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
    if value is None:
        return "-"
    return f"{value:.{digits}f}" if value < 1e7 else f"{value:.1e}"  # a perplexity may run away
