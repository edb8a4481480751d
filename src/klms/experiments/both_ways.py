"""Bytes in both directions, and in total: a table and a picture."""

from pathlib import Path
from typing import Any

from klms.experiments.tables import mean_and_deviation, table


def markdown(results: dict[str, Any]) -> str:
    """Return a table of bytes up, down and in total."""
    ((_, rows),) = results["data"].items()
    lines = []
    for name, row in rows.items():
        accuracy, up, down = _measured(row)
        factor, _ = mean_and_deviation(row, "times_smaller_total")
        megabytes = (f"{up:.3f}", f"{down:.3f}", f"{up + down:.3f}")
        lines.append([name, str(len(row["seeds"])), f"{accuracy:.4f}", *megabytes, f"{factor:,.0f}"])
    head = ("row", "seeds", "accuracy", "MB up", "MB down", "MB in total", "x smaller than float32 both ways")
    return table(head, lines)


def draw(results: dict[str, Any], path: Path | str) -> None:
    """Draw the total of the runs in which all clients take part, with their accuracies."""
    from matplotlib.figure import Figure

    ((_, rows),) = results["data"].items()
    shown = {name: _measured(row) for name, row in reversed(rows.items()) if not row["config"]["per_round"]}
    totals = [up + down for _, up, down in shown.values()]
    figure = Figure(figsize=(8, 2.8), layout="constrained")
    axes = figure.add_subplot()
    bars = axes.barh(list(shown), totals, color=["C0" if "klms" in name else "0.6" for name in shown])
    texts = [f"{total:,.1f} MB, accuracy {one[0]:.3f}" for total, one in zip(totals, shown.values(), strict=True)]
    axes.bar_label(bars, texts, padding=4)
    axes.set(xscale="log", xlabel="megabytes up and down together, all clients and rounds")
    axes.set_xlim(1, 20 * max(totals))
    figure.savefig(path, dpi=150)


def _measured(row: dict[str, Any]) -> tuple[float, float, float]:
    """Return accuracy, and megabytes up and down."""
    accuracy, _ = mean_and_deviation(row, "accuracy")
    up, down = (mean_and_deviation(row, f"{way}link_bytes")[0] / 1e6 for way in ("up", "down"))
    return accuracy, up, down
