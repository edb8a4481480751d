"""Figures as PNG and SVG files, for papers and slides: the same numbers and colours as on the page, on white."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, NullFormatter

from klms.report.figures import Bars, Curves, Figure, Heat, Steps
from klms.report.groups import Style

COLOURS = (
    *("#2060df", "#d95f0e", "#158043", "#7a3be0", "#cf2038", "#d6409f", "#8a5a2b"),
    *("#0a868c", "#75760f", "#b78700", "#16202c", "#1596cc", "#84888f"),
)
"""Those of `assets/page.css`."""
_DASHES = ("-", (0, (5, 3)), (0, (1, 2)), (0, (6, 2, 1, 2)))
_MARKERS = "os^Dv"
_SETTINGS: dict[Any, Any] = {
    "text.parse_math": False,  # names are names, dollars and all
    "svg.hashsalt": "klms",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
}


def draw(figure: Figure, task: str, path: Path) -> None:
    """Write `path`.png and `path`.svg. The same figure gives the same bytes."""
    with mpl.rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a name in a script that the font does not have
        if isinstance(figure, Curves):
            canvas = _curves(figure)
        elif isinstance(figure, Heat):
            canvas = _stacked(len(figure.panels), 2.2, lambda index, axes: _heat(figure, index, axes))
        elif isinstance(figure, Steps):
            canvas = _stacked(len(figure.panels), 2.0, lambda index, axes: _steps(figure, index, axes))
        elif isinstance(figure, Bars):
            height = 0.28 * max(len(panel.categories) for panel in figure.panels) + 0.9 if figure.lying else 2.6
            canvas = _stacked(len(figure.panels), height, lambda index, axes: _bars(figure, index, axes))
        else:
            raise TypeError(f"no picture of a {type(figure).__name__}")
        canvas.suptitle(f"{figure.title} ({task})", fontsize=10)
        canvas.savefig(path.with_name(path.name + ".png"), dpi=150)
        canvas.savefig(path.with_name(path.name + ".svg"), metadata={"Date": None})


_plain = FuncFormatter(lambda value, _: f"{value:g}")  # powers of ten would need mathematics in texts


def _label(name: str) -> str:
    """Matplotlib leaves names that begin with an underscore out of legends."""
    return f" {name}" if name.startswith("_") else name


def _look(style: Style) -> dict[str, Any]:
    colour = COLOURS[style.hue % len(COLOURS)]
    face = "white" if style.hollow else colour
    return {"color": colour, "marker": _MARKERS[style.shape % len(_MARKERS)], "markerfacecolor": face}


def _curves(figure: Curves) -> Canvas:
    canvas = Canvas(figsize=(8.5, 4.4), layout="constrained")
    axes = canvas.add_subplot()
    for series in figure.series:
        xs, ys = [point.x for point in series.points], [point.y for point in series.points]
        spread = [point.deviation or 0.0 for point in series.points]
        colour = COLOURS[series.style.hue % len(COLOURS)]
        label = _label(series.name)
        if series.paper:
            label = "_" if any(axis.get_label() == "paper" for axis in axes.lines) else "paper"  # one entry for all
            axes.plot(xs, ys, linestyle="", marker="x", markersize=5, color=colour, alpha=0.7, label=label)
        elif not figure.joined:
            axes.errorbar(xs, ys, yerr=spread, fmt="none", ecolor=colour, capsize=2, linewidth=1)
            axes.plot(xs, ys, linestyle="", markersize=6, label=label, **_look(series.style))
        else:
            look = _look(series.style) if len(xs) <= 14 else {"color": colour}
            dashes = _DASHES[series.style.variant % len(_DASHES)]
            axes.plot(xs, ys, linestyle=dashes, linewidth=1.4, markersize=3, label=label, **look)
            if any(spread) and not figure.y.log:
                low, high = [[y + sign * s for y, s in zip(ys, spread, strict=True)] for sign in (-1, 1)]
                axes.fill_between(xs, low, high, color=colour, alpha=0.12, linewidth=0)
    axes.set_xlabel(figure.x.label)
    axes.set_ylabel(figure.y.label)
    if figure.x.log:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(_plain)
        axes.xaxis.set_minor_formatter(NullFormatter())
    if figure.y.log:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(_plain)
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), ncols=1 + len(figure.series) // 26)
    return canvas


def _stacked(count: int, height: float, paint: Callable[[int, Axes], None]) -> Canvas:
    canvas = Canvas(figsize=(8.5, 0.5 + height * count), layout="constrained")
    for index in range(count):
        paint(index, canvas.add_subplot(count, 1, index + 1))
    return canvas


def _heat(figure: Heat, index: int, axes: Axes) -> None:
    panel = figure.panels[index]
    positive = [value for row in panel.values for value in row if value > 0]
    norm = LogNorm(min(positive), max(positive)) if positive and max(positive) > 30 * min(positive) else None
    image = axes.imshow(panel.values, aspect="auto", norm=norm, interpolation="nearest")
    axes.grid(False)
    axes.set_yticks(range(len(panel.rows)), panel.rows, fontsize=6)
    every = max(1, len(panel.columns) // 10)
    axes.set_xticks(
        range(0, len(panel.columns), every), [column.split()[0] for column in panel.columns[::every]], fontsize=7
    )
    axes.set_xlabel(figure.x.label)
    axes.set_title(panel.name, fontsize=8)
    bar = axes.figure.colorbar(image, ax=axes, label=f"{figure.unit}, bits/parameter")
    bar.ax.yaxis.set_major_formatter(_plain)
    bar.ax.yaxis.set_minor_formatter(NullFormatter())


def _steps(figure: Steps, index: int, axes: Axes) -> None:
    panel = figure.panels[index]
    axes.stairs(panel.heights, panel.starts, fill=True, alpha=0.3, color=COLOURS[panel.style.hue % len(COLOURS)])
    axes.stairs(panel.heights, panel.starts, linewidth=0.8, color=COLOURS[panel.style.hue % len(COLOURS)])
    for position, _ in panel.marks[1:]:
        axes.axvline(position, color="gray", linewidth=0.6, linestyle=":")
    axes.set_xlabel(figure.x.label)
    axes.set_ylabel("block size")
    axes.set_title(panel.name, fontsize=8)


def _bars(figure: Bars, index: int, axes: Axes) -> None:
    panel = figure.panels[index]
    places = range(len(panel.categories))
    base = [0.0] * len(panel.categories)
    few = len(figure.parts) <= 10
    for number, part in enumerate(figure.parts):
        sizes = [values[number] for values in panel.values]
        colour = COLOURS[number] if few else mpl.colormaps["hsv"](number / len(figure.parts))
        if figure.lying:
            axes.barh(places, sizes, left=base, color=colour, label=part, height=0.7)
        else:
            axes.bar(places, sizes, bottom=base, color=colour, label=part)
        base = [low + size for low, size in zip(base, sizes, strict=True)]
    if figure.lying:
        axes.set_yticks(places, panel.categories)
        axes.invert_yaxis()
        axes.set_xlabel(figure.axis.label)
    else:
        axes.set_xlabel(figure.categories)
        axes.set_ylabel(figure.axis.label)
        axes.set_title(panel.name, fontsize=8)
    axes.grid(False, axis="y" if figure.lying else "x")
    if 1 < len(figure.parts) <= 20:
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
