"""Figures as PNG and SVG files: one look for all, colours that colour-blind readers can tell apart, no global state."""

import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cobo.training.checkpoint import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette.
BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#7F7F7F"
PURPLE, SKY = "#CC79A7", "#56B4E9"

# A method has the same colour in all figures.
METHOD_COLOURS = {
    "local": GREY, "fedavg": PURPLE, "finetune": SKY, "ditto": ORANGE, "ifca": RED, "fc": GREEN, "cobo": BLUE,
    "oracle": "black",
}  # fmt: skip
OTHER = "#999933"
CLIENT_COLOURS = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY, "black", OTHER)


def style() -> Any:
    """The common look, as a context: inside it figures are made and saved."""
    import matplotlib as mpl

    return mpl.rc_context({
        "font.size": 9, "axes.titlesize": 10, "lines.linewidth": 1.6, "axes.spines.top": False,
        "axes.spines.right": False, "axes.grid": True, "grid.color": "#E6E6E6", "grid.linewidth": 0.6,
        "axes.axisbelow": True, "svg.hashsalt": "cobo",
    })  # fmt: skip


def new(width: float, height: float, columns: int = 1, rows: int = 1) -> "tuple[Figure, Sequence[Axes]]":
    """A figure in the common style, in inches, with axes side by side, row by row."""
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
    return figure, list(axes.flat)


def save(figure: "Figure", folder: Path, name: str, dpi: int = 300) -> None:
    """FOLDER/NAME.png, fine enough for print, and .svg; the same figure gives the same bytes.

    Letters that matplotlib's font does not have are boxes, of which nobody need be warned for each.
    """
    with style(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
            out = io.BytesIO()
            figure.savefig(out, format=kind, dpi=dpi, metadata=metadata)
            write_atomic(folder / f"{name}.{kind}", out.getvalue())


def plain(text: str) -> str:
    """A name as it is, also with dollars in it, between which matplotlib would read formulas."""
    return text.replace("$", r"\$")


def matrix(ax: "Axes", W: Any, darkest: float = 1.0) -> Any:
    """W as an image: white is 0, grey is not a number."""
    ax.set(xticks=[], yticks=[], facecolor="#E3E3E3")
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    return ax.imshow(W, cmap="Blues", vmin=0, vmax=darkest, interpolation="nearest")


SERIES = {
    "exact": (BLUE, "o", "exact selection"),
    "stochastic": (ORANGE, "s", "stochastic selection"),
    "algorithm-1": (GREEN, "^", "Algorithm 1"),
}
PANELS = {
    "consensus": r"consensus distance $|x_i - x_j|^2$",
    "gradient": r"gradient $|\nabla \tilde f_{ij}(z_{ij})|^2$",
    "client": r"client gradient $|\nabla f_i(x_i)|^2$",
}


def theory(results: dict[str, Any]) -> "Figure":
    """The theorem's three quantities, measured, beside their bounds."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    figure, axes = new(10, 3.8, len(PANELS))
    T0 = results["constants"]["T0"]
    for ax, (name, title) in zip(axes, PANELS.items(), strict=True):
        lines = results["series"]["exact"]
        T = [line["T"] for line in lines]
        ax.axvline(T0, color=GREY, linewidth=0.8, linestyle=":")
        ax.annotate("$T_0$", (T0, 1), xycoords=("data", "axes fraction"), xytext=(3, -10), textcoords="offset points")
        ax.plot(T, [line[name]["printed"] for line in lines], "--", color="black", label="bound as printed")
        ax.plot(T, [line[name]["corrected"] for line in lines], "-.", color=GREY, label="bound corrected")
        for kind, (colour, marker, label) in SERIES.items():
            values = [line[name]["measured"] for line in results["series"][kind]]
            ax.plot(T, values, marker=marker, markersize=4.5, color=colour, label=label)
        ax.set(xscale="log", yscale="log", title=title, xlabel="rounds T")
        ax.set_xticks(T[::3], [str(t) for t in T[::3]])
        ax.minorticks_off()
        ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes[0].set_ylabel("average over the run, worst group")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return figure


def figure1(found: dict[str, Any]) -> "Figure":
    """The paper's Figure 1: when do two clients help each other?"""
    figure, (ax,) = new(6.4, 6.6)
    a, mu, joint = found["a"], np.array(found["mu"]), np.array(found["joint"])
    x, y = np.meshgrid(np.linspace(-3.9, 4.3, 300), np.linspace(-2.6, 5.4, 300))
    losses = [0.5 * a[k] * ((x - mu[k][0]) ** 2 + (y - mu[k][1]) ** 2) for k in range(2)]
    least = float(np.mean([0.5 * a[k] * np.sum((joint - mu[k]) ** 2) for k in range(2)]))
    ax.contour(x, y, sum(losses) / 2, levels=least + np.array([0.15, 0.6, 1.4, 2.5, 4.5, 7.0, 10.0, 14.0]),
               colors="#9A9A9A", linewidths=0.9)  # fmt: skip
    for loss in losses:
        ax.contour(x, y, loss, levels=[0.12, 0.5], colors="#C9C9C9", linewidths=0.7, linestyles=":")
    for place, label in zip([*mu, joint], (r"$\mu_1$", r"$\mu_2$", r"$\mu$"), strict=True):
        ax.plot(*place, marker="*", markersize=11, color="black", linestyle="")
        _label(ax, label, place, (0, -15), ha="center", fontsize=11)
    for name, point in found["points"].items():
        _situation(ax, name, point)
    ax.plot([], [], color=BLUE, label="descent directions at the midpoint: they decide $w_{12}$")
    ax.plot([], [], color=RED, label="descent directions at the models: they move them")
    ax.plot(
        [], [], color="#9A9A9A", linewidth=0.9, label=r"contours of $\frac{1}{2}(f_1 + f_2)$; dotted, of $f_1$, $f_2$"
    )
    ax.set(aspect="equal", xlim=(-3.9, 4.3), ylim=(-2.6, 5.4), xticks=[], yticks=[])
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    figure.legend(loc="outside lower center", frameon=False)
    return figure


def _situation(ax: "Axes", name: str, point: dict[str, Any]) -> None:
    """One of the points A, B and C: both models, the midpoint, four arrows, and what selection says."""
    z = np.array(point["midpoint"])
    models = np.array(point["models"])
    ax.plot(*models.T, color=GREY, linewidth=0.8, linestyle="-", zorder=2)
    arrow = {"arrowstyle": "-|>", "linewidth": 1.6, "shrinkA": 0, "shrinkB": 0}
    for start, ways, colour, order in ((models, point["at_models"], RED, 4), ([z, z], point["at_midpoint"], BLUE, 5)):
        for origin, way in zip(start, np.array(ways), strict=True):
            ax.annotate("", origin + 0.28 * way, origin, zorder=order, arrowprops={**arrow, "color": colour})
    ax.plot(*models.T, "o", color=RED, markersize=5, zorder=6)
    ax.plot(*z, "o", color=BLUE, markersize=5, zorder=6)
    for k in range(2):
        _label(ax, f"$x_{k + 1}^{name}$", models[k], (-12 if k == 0 else 12, 3), ha="center", color=RED)
    says = rf"$\langle g_1, g_2\rangle = {point['product']:.1f}$" + "\n" + rf"$w_{{12}} = {point['weight']:.0f}$"
    _label(ax, name, (4.2, z[1]), (0, 2), ha="right", va="bottom", fontsize=13, fontweight="bold")
    _label(ax, says, (4.2, z[1]), (0, 0), ha="right", va="top")


def _label(ax: "Axes", text: str, place: Any, offset: tuple[float, float], **options: Any) -> None:
    """Text with a white rim, legible over lines."""
    from matplotlib.patheffects import withStroke

    rim = [withStroke(linewidth=4, foreground="white")]
    ax.annotate(text, place, xytext=offset, textcoords="offset points", path_effects=rim, zorder=8, **options)
