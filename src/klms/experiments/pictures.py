"""Results of experiments as pictures. They need the extra `plots`."""

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from klms.benchmarks.mean import Row, limit, with_default_effort
from klms.engine.ledger import LedgerRecord
from klms.errors import MissingExtra
from klms.exchange.quality import TARGET
from klms.experiments.diloco.diloco import rows as diloco_rows
from klms.experiments.results_file import Results
from klms.experiments.tables import HALF_A_POINT, beside_klms, mean, megabytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TICKS = (0.005, 0.01, 0.02, 0.05, 0.1)


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure; raise `MissingExtra` without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra.told("the picture needs matplotlib", "plots") from error
    return Figure(figsize=(width, height), layout="constrained")


def toy(results: dict[str, Any], path: Path | str) -> None:
    """Draw the paper's figure: deviation (left) and mean (right) of the gap against the number of clients."""
    figure = new_figure(9, 3.8)
    panels = figure.subplots(1, 2)
    for axes, what in zip(panels, ("deviation", "mean"), strict=True):
        for value, curve in results["curves"].items():
            axes.plot(results["clients"], curve[what], marker="o", markersize=3, label=f"{results['symbol']} = {value}")
        axes.set(xscale="log", xlabel="clients", ylabel=f"estimation gap, {what}")
        axes.grid(alpha=0.3)
    panels[1].legend()
    figure.savefig(path, dpi=150)


def both_ways(results: Results, path: Path | str) -> None:
    """Draw the bytes of every row in both directions, and its accuracy; one panel per data set."""
    figure = new_figure(8, 1.2 + 0.27 * sum(1.5 + len(rows) for rows in results.values()))
    panels = figure.subplots(len(results), 1, height_ratios=[1 + len(rows) for rows in results.values()], sharex=True)
    for axes, (data, rows) in zip(panels, results.items(), strict=True):
        totals = {name: megabytes(row, "up", "down") for name, row in rows.items()}
        shown = sorted(totals, key=lambda name: -totals[name])  # the row with the fewest bytes is on top
        colours = ["C0" if "klms" in name or "trellis" in name else "0.6" for name in shown]
        bars = axes.barh(shown, [totals[name] for name in shown], color=colours)
        texts = [f"{totals[name]:,.1f} MB, accuracy {mean(rows[name], 'accuracy'):.3f}" for name in shown]
        axes.bar_label(bars, texts, padding=4, fontsize=9)
        axes.set_title(f"{data}, {rows[shown[0]]['config']['model']}", fontsize=10)
        axes.tick_params(axis="y", labelsize=9)
    panels[-1].set(xscale="log", xlabel="megabytes up and down together, all clients and rounds")
    panels[-1].set_xlim(0.5, 30_000)
    figure.savefig(path, dpi=150)


def fewest_bits(results: Mapping[str, Results], path: Path | str) -> None:
    """Draw accuracy against bits per parameter, one panel per data set."""
    by_data = beside_klms(results)
    methods = dict.fromkeys(row["config"]["method"] for rows in by_data.values() for row in rows.values())
    figure = new_figure(11, 4.2)
    panels = figure.subplots(1, len(by_data))
    for axes, (data, rows) in zip(panels, by_data.items(), strict=True):
        reference = mean(rows["fedavg"], "accuracy")
        axes.axhline(reference, color="black", linewidth=1, label="FedAvg, float32")
        axes.axhline(reference - HALF_A_POINT, color="black", linewidth=1, linestyle=":", label="0.5 points less")
        curves: dict[str, list[tuple[float, float]]] = {method: [] for method in methods if method != "fedavg"}
        for row in rows.values():
            point = (mean(row, "bits_per_parameter"), mean(row, "accuracy"))
            curves.get(row["config"]["method"], []).append(point)
        _draw_curves(axes, curves, markersize=5)
        axes.set(xscale="log", title=data, xlabel="bits per parameter, uplink", ylabel="test accuracy")
        axes.set_xticks(_TICKS, [f"{tick:g}" for tick in _TICKS])
        axes.minorticks_off()
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    figure.savefig(path, dpi=150)


def mean_estimation(rows: Sequence[Row], clients: int, path: Path | str) -> None:
    """Draw error against bits per parameter with default effort, and the limit; one panel per kind of vectors."""
    rows = with_default_effort(rows)
    kinds = list(dict.fromkeys(row.vectors for row in rows))
    labels = {row.scheme: row.scheme if row.unbiased else f"{row.scheme} (biased)" for row in rows}
    columns = min(len(kinds), 3)
    lines = -(-len(kinds) // columns)
    figure = new_figure(4.6 * columns + 1.6, 4.2 * lines)
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes in panels[len(kinds) :]:
        axes.remove()
    measured = [row.bits_per_parameter for row in rows]
    rates = np.geomspace(min(measured), max(measured), 60)
    for axes, kind in zip(panels, kinds, strict=False):
        curves: dict[str, list[tuple[float, float]]] = {label: [] for label in labels.values()}
        for row in rows:
            if row.vectors == kind:
                curves[labels[row.scheme]].append((row.bits_per_parameter, row.error))
        _draw_curves(axes, curves, markersize=4)
        axes.plot(rates, [limit(rate, clients) for rate in rates], color="black", linewidth=1, label="limit, unbiased")
        axes.set(xscale="log", yscale="log", title=f"{kind} vectors", xlabel="bits per parameter")
    panels[0].set_ylabel(f"normalised error of the average of {clients}")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    figure.savefig(path, dpi=150)


def diloco(results: dict[str, Any], path: Path | str) -> None:
    """Draw the loss against the bits per parameter that a worker sends and receives, a panel per number of workers."""
    rows = [row for row in diloco_rows(results) if math.isfinite(row.loss)]
    numbers = list(dict.fromkeys(row.workers for row in rows))
    families = list(dict.fromkeys(row.family for row in rows if row.family != "none"))
    figure = new_figure(5 * len(numbers) + 1.8, 4.2)
    panels = figure.subplots(1, len(numbers), squeeze=False).ravel()
    for axes, workers in zip(panels, numbers, strict=True):
        curves: dict[str, list[tuple[float, float]]] = {family: [] for family in families}
        for row in [row for row in rows if row.workers == workers]:
            if row.family == "none":
                axes.axhline(row.loss, color="black", linewidth=1, label="none, 64 bits")
            else:
                curves[row.family].append((row.bits_sent + row.bits_received, row.loss))
        _draw_curves(axes, curves, markersize=5)
        axes.set(xscale="log", title=f"{workers} workers", ylabel="test loss")
        axes.set_xlabel("bits per parameter that a worker sends and receives")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    figure.savefig(path, dpi=150)


def accuracy_against_bytes(results: Mapping[str, Results], path: Path | str) -> None:
    """Draw the accuracy of every method against all bytes of its run, one panel per experiment on MNIST."""
    figure = new_figure(11, 5)
    panels = figure.subplots(1, len(results))
    for axes, (title, by_data) in zip(panels, results.items(), strict=True):
        rows = {name: row for name, row in by_data["mnist"].items() if not row["config"]["per_round"]}
        for place, (name, row) in enumerate(rows.items()):
            ours = "klms" in name or "trellis" in name
            colour = f"C{place % 10}" if ours else "0.5"
            point = megabytes(row, "up", "down"), mean(row, "accuracy")
            axes.scatter(*point, s=60, color=colour, marker="osD^vP*X<>"[place % 10], label=name)
        axes.set(xscale="log", title=title, ylabel="test accuracy")
        axes.set_xlabel("megabytes up and down, all clients and rounds")
        axes.margins(0.12)
        axes.grid(alpha=0.3)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=3, fontsize=8)
    figure.savefig(path, dpi=150)


def over_rounds(runs: Mapping[str, Any], path: Path | str) -> None:
    """Draw the rates chosen to keep a constant quality, and the resulting noise and harm, round by round."""
    shown = ("transformer, 3 clients, FedAvg", "lenet, 10 clients, FedAvg", "lora, 10 clients, FedAdam, skewed")
    figure = new_figure(11, 3.8)
    panels = figure.subplots(1, 3)
    for colour, federation in enumerate(shown):
        records = runs[f"{federation}; quality 1; seed 0"]["rounds"]
        rounds = range(1, len(records) + 1)
        for axes, field, line in ((0, "bits_up", "-"), (0, "bits_down", ":"), (1, "noise", "-"), (2, "harm", "-")):
            values = [record[field] for record in records]
            panels[axes].plot(rounds, values, line, color=f"C{colour}", label=federation)
    panels[2].axhline(TARGET, color="black", linewidth=1)
    titles = (
        "bits per parameter, up (line) and down (dots)",
        "noise relative to the mean update",
        "harm, and its target",
    )
    for axes, title in zip(panels, titles, strict=True):
        axes.set(yscale="log", xlabel="round", title=title)
        axes.title.set_fontsize(10)
        axes.grid(alpha=0.3)
    figure.legend(*panels[1].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    figure.savefig(path, dpi=150)


def _draw_curves(axes: "Axes", curves: Mapping[str, list[tuple[float, float]]], markersize: int) -> None:
    """Draw one line per name; the lines of biased schemes are dotted."""
    for place, (label, points) in enumerate(curves.items()):
        if points:
            bits, values = zip(*sorted(points), strict=True)
            line = ":" if "biased" in label else "-"
            marker = "osD^vP*X"[place % 8]
            (drawn,) = axes.plot(bits, values, line, color=f"C{place}", marker=marker, label=label)
            drawn.set(markersize=markersize, linewidth=1)
    axes.grid(alpha=0.3)


def demo(runs: Mapping[str, Sequence[LedgerRecord]], path: Path | str) -> None:
    """Draw the accuracy of runs against the megabytes that were sent up and down."""
    figure = new_figure(7, 4.2)
    axes = figure.add_subplot()
    for method, records in runs.items():
        sent = accumulate(record.uplink_bytes + record.downlink_bytes for record in records)
        points = [(size / 1e6, record.accuracy) for size, record in zip(sent, records, strict=True)]
        evaluated = [point for point in points if point[1] is not None]
        axes.plot(*zip(*evaluated, strict=True), marker="o", markersize=3, label=method)
    axes.set(xscale="log", xlabel="megabytes up and down, all clients", ylabel="test accuracy")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
