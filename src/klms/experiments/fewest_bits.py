"""Which method reaches the accuracy of uncompressed training with the fewest bits: a table and a picture.

The rows are those of the experiment `fewest-bits`, beside the KLMS methods on the same data and splits, which tables 1
and 2 hold.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from klms.experiments import tables

_TABLES = {"mnist": "table1", "fashion-mnist": "table2"}
_OURS = ("fedpm-klms", "signsgd-klms", "qsgd-klms")
_REFERENCE = "fedavg"
TOLERANCE = 0.005
_TICKS = (0.005, 0.01, 0.02, 0.05, 0.1)


class Point(NamedTuple):
    """One row on one data set."""

    data: str
    method: str
    row: str
    seeds: int
    accuracy: float
    bits: float


def points(results: Mapping[str, Any]) -> list[Point]:
    """Return all rows of the named results, those of uncompressed training first."""

    def collected() -> Iterator[Point]:
        for data, table in _TABLES.items():
            rows = dict(results["fewest-bits"]["data"].get(data, {}))
            rows |= {row: results[table]["data"][data][row] for row in _OURS}
            for row, entry in rows.items():
                accuracy, _ = tables.mean_and_deviation(entry, "accuracy")
                bits, _ = tables.mean_and_deviation(entry, "bits_per_parameter")
                yield Point(data, entry["config"]["method"], row, len(entry["seeds"]), accuracy, bits)

    return list(collected())


def markdown(results: Mapping[str, Any]) -> str:
    """Return a table of all rows, by bits, which says what reaches the accuracy of FedAvg."""
    found = points(results)
    wanted = {point.data: point.accuracy - TOLERANCE for point in found if point.method == _REFERENCE}
    lines = [
        (
            point.data,
            point.row,
            str(point.seeds),
            f"{point.accuracy:.4f}",
            f"{point.bits:.4f}",
            f"{32 / point.bits:,.0f}",
            "yes" if point.accuracy >= wanted[point.data] else "",
        )
        for point in sorted(found, key=lambda point: (list(_TABLES).index(point.data), point.bits))
    ]
    head = ("data", "row", "seeds", "accuracy", "bits per parameter", "x smaller than float32", "reaches it")
    return tables.table(head, lines)


def draw(results: Mapping[str, Any], path: Path | str) -> None:
    """Draw accuracy against bits, one panel per data set."""
    from matplotlib.figure import Figure

    found = points(results)
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    panels = figure.subplots(1, len(_TABLES))
    methods = list(dict.fromkeys(point.method for point in found if point.method != _REFERENCE))
    for axes, data in zip(panels, _TABLES, strict=True):
        reference = next(point for point in found if point.data == data and point.method == _REFERENCE)
        axes.axhline(reference.accuracy, color="black", linewidth=1, label="FedAvg, float32")
        axes.axhline(reference.accuracy - TOLERANCE, color="black", linewidth=1, linestyle=":", label="0.5 points less")
        for place, method in enumerate(methods):
            own = sorted(
                (point.bits, point.accuracy) for point in found if (point.data, point.method) == (data, method)
            )
            if own:
                axes.plot(
                    *zip(*own, strict=True),
                    color=f"C{place}",
                    marker="osD^vP*X"[place % 8],
                    markersize=5,
                    linewidth=1,
                    label=method,
                )
        axes.set(xscale="log", title=data, xlabel="bits per parameter, uplink", ylabel="test accuracy")
        axes.set_xticks(_TICKS, [f"{tick:g}" for tick in _TICKS])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    figure.savefig(path, dpi=150)
