"""Results of experiments as Markdown tables."""

import statistics
from typing import Any


def mean_and_deviation(row: dict[str, Any], name: str) -> tuple[float, float]:
    """Return the mean and the standard deviation over seeds; the deviation of a single seed is 0."""
    values = [float(seed[name]) for seed in row["seeds"].values()]
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def markdown(results: dict[str, Any]) -> str:
    """Return a table for every data set, with one line per row of the experiment."""
    parts = []
    for data, rows in results["data"].items():
        bayesian = all(row["config"]["method"] in ("sgld", "qlsd", "sgld-klms") for row in rows.values())
        extra = ("nll", "ece") if bayesian else ()
        head = ["row", "seeds", "accuracy", *extra, "bits per parameter", "x smaller than float32"]
        lines = [f"{data}:", "", "| " + " | ".join(head) + " |", "| --- " * len(head) + "|"]
        for name, row in rows.items():
            bits, _ = mean_and_deviation(row, "bits_per_parameter")
            mean, deviation = mean_and_deviation(row, "accuracy")
            accuracy = f"{mean:.4f} ± {deviation:.4f}" if len(row["seeds"]) > 1 else f"{mean:.4f}"
            more = [f"{mean_and_deviation(row, what)[0]:.3f}" for what in extra]
            cells = [name, str(len(row["seeds"])), accuracy, *more, f"{bits:.4f}", f"{32 / bits:,.0f}"]
            lines.append("| " + " | ".join(cells) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def layers(results: dict[str, Any]) -> str:
    """Return a table of the KL of each layer in bits per parameter, at every few rounds."""
    ((_, rows),) = results["data"].items()
    ((_, row),) = rows.items()
    series = row["series"]["kl_by_layer"]
    shown = [*range(0, len(series), max(1, len(series) // 5))]
    lines = ["| layer | " + " | ".join(f"round {n + 1}" for n in shown) + " |", "| --- " * (1 + len(shown)) + "|"]
    for place, name in enumerate(row["layers"]):
        lines.append(f"| {name} | " + " | ".join(f"{series[n][place]:.4f}" for n in shown) + " |")
    return "\n".join(lines)


def flower(results: dict[str, Any]) -> str:
    """Return a table of `examples/flower-quickstart/compare.py`: the stock app, and the same app with compression."""
    head = ["engine", "strategy", "app", "accuracy", "bits per parameter", "x smaller than float32", "wire bytes up"]
    lines = ["| " + " | ".join(head) + " |", "| --- " * len(head) + "|"]
    for name, run in results["runs"].items():
        bits, wire = run["bits_per_parameter"], f"{run['wire_up']:,}" if run["wire_up"] else ""
        cells = [*name.split(", "), f"{run['accuracy'][-1]:.4f}", f"{bits:.3f}", f"{32 / bits:.0f}", wire]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def flower_overhead(results: dict[str, Any]) -> str:
    """Return a sentence about the times that `examples/flower-overhead/measure.py` measured."""
    medians = results["median"]
    return (
        f"A round takes {medians['stock']:.2f} s without klms and {medians['compressed']:.2f} s with it, at "
        f"{results['bits_per_parameter']:.3f} bits per parameter."
    )
