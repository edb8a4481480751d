"""Bytes in both directions, and in total: a table and a picture."""

from pathlib import Path
from typing import Any

from klms.experiments.tables import accuracy_text, mean_and_deviation, table


def markdown(results: dict[str, Any]) -> str:
    """Return a table of bytes up, down and in total."""
    ((_, rows),) = results["data"].items()
    return _table(rows)


def by_data(results: dict[str, Any]) -> str:
    """Return such a table for every data set, with what was trained there on how many images."""
    return "\n\n".join(f"{data}, {_trained(rows)}:\n\n{_table(rows)}" for data, rows in results["data"].items())


def _trained(rows: dict[str, Any]) -> str:
    """Return model, rounds and numbers of images; several if the rows differ."""
    configs = [row["config"] for row in rows.values()]
    models = [f"{one['model']} of width {one['width']:g}" if one["width"] != 1 else one["model"] for one in configs]
    rounds = [str(one["rounds"]) for one in configs]
    train, test = ([_count(row["examples"].get(half)) for row in rows.values()] for half in ("train", "test"))
    return f"{_any(models)}, {_any(rounds)} rounds, {_any(train)} training and {_any(test)} test images"


def _count(images: int | None) -> str:
    return "an unknown number of" if images is None else f"{images:,}"


def _any(values: list[str]) -> str:
    return " or ".join(dict.fromkeys(values))


def _table(rows: dict[str, Any]) -> str:
    lines = []
    for name, row in rows.items():
        _, up, down = _measured(row)
        bits, _ = mean_and_deviation(row, "bits_per_parameter")
        factor, _ = mean_and_deviation(row, "times_smaller_total")
        numbers = (f"{bits:.4f}", f"{up:,.3f}", f"{down:,.3f}", f"{up + down:,.3f}", f"{factor:,.0f}")
        lines.append([name, str(len(row["seeds"])), accuracy_text(row), *numbers])
    sizes = ("MB up", "MB down", "MB in total", "x smaller than float32 both ways")
    return table(("row", "seeds", "accuracy", "bits per parameter up", *sizes), lines)


def draw(results: dict[str, Any], path: Path | str) -> None:
    """Draw the total of the runs in which all clients take part, with their accuracies."""
    from matplotlib.figure import Figure

    ((_, rows),) = results["data"].items()
    shown = {name: _measured(row) for name, row in reversed(rows.items()) if not row["config"]["per_round"]}
    totals = [up + down for _, up, down in shown.values()]
    figure = Figure(figsize=(8, 2.8), layout="constrained")
    axes = figure.add_subplot()
    bars = axes.barh(
        list(shown), totals, color=["C0" if "klms" in name or "trellis" in name else "0.6" for name in shown]
    )
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
