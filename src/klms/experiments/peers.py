"""Results of `examples/peers/compare.py`: codecs of other projects compared with `trellis` at the same bytes."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from klms.experiments import pictures
from klms.experiments.tables import table

NAME = "peers"
_TICKS = (0.1, 0.2, 0.5, 1, 2, 5)
Rows = Sequence[dict[str, Any]]


def markdown(results: dict[str, Any]) -> str:
    """Return one table of errors and one of times."""
    return f"{errors(results['rows'])}\n\n{times(results['rows'])}"


def errors(rows: Rows) -> str:
    """Return a table of rates and errors of the average: those of a peer, and the error of `trellis` as a multiple."""
    kinds = list(dict.fromkeys(row["vectors"] for row in rows))
    lines = []
    for peer, setting in _settings(rows):
        cells = {row["vectors"]: _error_cell(row) for row in rows if (row["peer"], row["setting"]) == (peer, setting)}
        lines.append([peer, setting, *(cells.get(kind, "") for kind in kinds)])
    return table(("peer", "setting", *kinds), lines)


def times(rows: Rows) -> str:
    """Return a table of nanoseconds per parameter: medians over all kinds of vectors."""
    lines = []
    for peer, setting in _settings(rows):
        own = [row for row in rows if (row["peer"], row["setting"]) == (peer, setting)]
        beside = [row["trellis"] for row in own if row["trellis"]]
        cells = [f"{median(row[name] for row in own):,.0f}" for name in ("encode_ns", "decode_ns")]
        for name in ("encode_ns", "decode_ns"):
            cells.append(f"{median(row[name] for row in beside):,.0f}" if beside else "")
        lines.append([peer, setting, *cells])
    return table(("peer", "setting", "encodes, ns", "decodes, ns", "trellis encodes, ns", "trellis decodes, ns"), lines)


def _settings(rows: Rows) -> list[tuple[str, str]]:
    return list(dict.fromkeys((row["peer"], row["setting"]) for row in rows))


def _error_cell(row: dict[str, Any]) -> str:
    if row["average_error"] is None:
        return f"{row['bits_per_parameter']:.2f} bits: not a number"
    text = f"{row['bits_per_parameter']:.2f} bits: {row['average_error']:.2g}"
    if not row["trellis"]:
        return text
    return f"{text} (x {row['trellis']['average_error'] / row['average_error']:.2g})"


def draw(results: dict[str, Any], path: Path) -> None:
    """Draw the error of the average against bits per parameter, one panel per kind of vectors."""
    rows = results["rows"]
    kinds = list(dict.fromkeys(row["vectors"] for row in rows))
    figure = pictures.new_figure(13, 7.4)
    panels = figure.subplots(2, -(-len(kinds) // 2), squeeze=False).ravel()
    for axes, kind in zip(panels, kinds, strict=False):
        shown = [row for row in rows if row["clients"] > 2 and row["trellis"] and row["average_error"] is not None]
        own = [row for row in shown if row["vectors"] == kind]
        ours = sorted((row["bits_per_parameter"], row["trellis"]["average_error"]) for row in own)
        axes.plot(*zip(*ours, strict=True), marker="o", markersize=4, color="C0", label="trellis")
        for n, peer in enumerate(dict.fromkeys(row["peer"] for row in own), start=1):
            points = [(row["bits_per_parameter"], row["average_error"]) for row in own if row["peer"] == peer]
            axes.plot(*zip(*points, strict=True), linestyle="", marker="sDv^"[n % 4], color=f"C{n}", label=peer)
        axes.set(xscale="log", yscale="log", title=kind, xlabel="bits per parameter")
        axes.set_xticks(_TICKS, [f"{bits:g}" for bits in _TICKS])
        axes.minorticks_off()
        lowest, highest = min(row["bits_per_parameter"] for row in own), max(row["bits_per_parameter"] for row in own)
        axes.set_xlim(0.8 * lowest, 1.25 * highest)
        axes.grid(alpha=0.3)
    for axes in panels[len(kinds) :]:
        axes.remove()
    panels[0].set_ylabel("relative squared error of the average of ten")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center")
    figure.savefig(path, dpi=150)
