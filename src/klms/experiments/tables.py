"""Results of experiments as Markdown tables."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

TOLERANCE = 0.3


@dataclass(frozen=True)
class Claim:
    """With KLMS, a method loses at most `gap` of its accuracy and sends at least `factor` times fewer bits."""

    without: str
    with_klms: str
    gap: float
    factor: float


CLAIMS = (
    Claim("fedpm", "fedpm-klms", 0.005, 25.0),
    Claim("signsgd", "signsgd-klms", 0.0, 20.0),
    Claim("qsgd", "qsgd-klms", 0.005, 3.0),
    Claim("qlsd", "sgld-klms", 0.0, 5.0),
)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def mean_and_deviation(row: dict[str, Any], name: str) -> tuple[float, float]:
    """Return the mean and the standard deviation over seeds; the deviation of a single seed is 0."""
    values = [float(seed[name]) for seed in row["seeds"].values()]
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def accuracy_text(row: dict[str, Any]) -> str:
    """Return the mean accuracy, with its deviation if there are several seeds."""
    mean, deviation = mean_and_deviation(row, "accuracy")
    return f"{mean:.4f} ± {deviation:.4f}" if len(row["seeds"]) > 1 else f"{mean:.4f}"


def markdown(results: dict[str, Any]) -> str:
    """Return a table for every data set, with one line per row of the experiment."""
    parts = []
    for data, rows in results["data"].items():
        bayesian = all(row["config"]["method"] in ("sgld", "qlsd", "sgld-klms") for row in rows.values())
        extra = ("nll", "ece") if bayesian else ()
        lines = []
        for name, row in rows.items():
            bits, _ = mean_and_deviation(row, "bits_per_parameter")
            more = [f"{mean_and_deviation(row, what)[0]:.3f}" for what in extra]
            lines.append([name, str(len(row["seeds"])), accuracy_text(row), *more, f"{bits:.4f}", f"{32 / bits:,.0f}"])
        head = ("row", "seeds", "accuracy", *extra, "bits per parameter", "x smaller than float32")
        parts.append(f"{data}:\n\n{table(head, lines)}")
    return "\n\n".join(parts)


def block_policies(results: dict[str, Any]) -> str:
    """Return the paper's comparison of block policies (figure 3): a table of every few rounds, and a sentence per run.

    Adaptive blocks grow as the KL falls, whereas fixed blocks, of the size that suits the first round, keep costing
    what that round needed.
    """
    ((_, rows),) = results["data"].items()
    lines, notes = [], []
    for policy, row in rows.items():
        kls, indices, bits, updates = row["series"].values()
        ratios = [index / kl for index, kl in zip(indices, kls, strict=True)]
        for n in range(0, len(kls), max(1, len(kls) // 8)):
            numbers = (f"{kls[n]:.4f}", f"{indices[n]:.4f}", f"{ratios[n]:.2f}")
            lines.append((policy, str(n + 1), *numbers, "yes" if updates[n] else ""))
        inside = sum(abs(ratio - 1) <= TOLERANCE for ratio in ratios)
        notes.append(
            f"- {policy}: the index bits are within {TOLERANCE:.0%} of the KL in {inside} of {len(kls)} rounds "
            f"(ratios from {min(ratios):.2f} to {max(ratios):.2f}); all bytes, including the block maps of "
            f"{sum(map(bool, updates))} update rounds, cost {sum(bits) / sum(kls):.2f} times the KL."
        )
    head = ("blocks", "round", "KL, bits per parameter", "index bits per parameter", "index bits / KL", "update round")
    return "\n".join([table(head, lines), "", *notes])


def claims(rows: dict[str, Any]) -> str:
    """Return the paper's claims as measured: each method with KLMS compared with the same method without."""
    lines = ["| with KLMS, without | difference in accuracy | at least | times fewer bits | at least | |"]
    lines.append("| --- " * 6 + "|")
    for claim in CLAIMS:
        accuracy, bits = (
            [mean_and_deviation(rows[name], what)[0] for name in (claim.without, claim.with_klms)]
            for what in ("accuracy", "bits_per_parameter")
        )
        gap, factor = accuracy[1] - accuracy[0], bits[0] / bits[1]
        verdict = "reached" if gap >= -claim.gap and factor >= claim.factor else "not reached"
        cells = (f"{gap:+.4f}", f"{-claim.gap:+.3f}", f"{factor:.1f}", f"{claim.factor:.0f}", verdict)
        lines.append(f"| {claim.with_klms}, {claim.without} | {' | '.join(cells)} |")
    return "\n".join(lines)


def layers(results: dict[str, Any]) -> str:
    """Return a table of the KL of each layer in bits per parameter, at every few rounds."""
    ((_, rows),) = results["data"].items()
    ((_, row),) = rows.items()
    series = row["series"]["kl_by_layer"]
    shown = range(0, len(series), max(1, len(series) // 5))
    lines = [[name, *(f"{series[n][place]:.4f}" for n in shown)] for place, name in enumerate(row["layers"])]
    return table(["layer", *(f"round {n + 1}" for n in shown)], lines)


def flower(results: dict[str, Any]) -> str:
    """Return a table of `examples/flower-quickstart/compare.py`: the stock app, and the same app with compression."""
    groups: dict[tuple[str, ...], dict[str, Any]] = {}
    for name, run in results["runs"].items():
        *which, seed = name.split("; ")
        groups.setdefault(tuple(which), {})[seed] = run
    lines = []
    for (engine, strategy, app), runs in groups.items():
        stock = groups[engine, strategy, "stock"]
        accuracy = statistics.fmean([run["accuracy"][-1] for run in runs.values()])
        lost = [stock[seed]["accuracy"][-1] - run["accuracy"][-1] for seed, run in runs.items() if seed in stock]
        points = "" if app == "stock" or not lost else f"{100 * statistics.fmean(lost):z.1f}"
        sent = statistics.fmean([run["uplink_bytes"] + run["downlink_bytes"] for run in runs.values()])
        factor = f"{next(iter(runs.values()))['stock_bytes'] / sent:.1f}"
        wire = [f"{run[f'wire_{way}']:,}" if run["wire_up"] else "" for run in runs.values() for way in ("up", "down")]
        cells = [engine, strategy, app, str(len(runs)), f"{accuracy:.4f}", points, f"{sent / 1e6:.3f}", factor]
        lines.append([*cells, *wire[:2]])
    head = ("engine", "strategy", "app", "seeds", "accuracy", "points lost", "MB both ways", "x less")
    return table((*head, "wire up", "wire down"), lines)


def flower_overhead(results: dict[str, Any]) -> str:
    """Return a sentence about the times that `examples/flower-overhead/measure.py` measured."""
    medians = results["median"]
    return (
        f"A round takes {medians['stock']:.2f} s without klms and {medians['compressed']:.2f} s with it, at "
        f"{results['bits_per_parameter']:.3f} bits per parameter."
    )
