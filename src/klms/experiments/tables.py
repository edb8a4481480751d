"""Results of experiments as Markdown tables."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from klms.benchmarks import mean as mean_bench
from klms.engine.ledger import LedgerRecord, coding_share
from klms.errors import InvalidArgument
from klms.experiments.results_file import Entry, Results

TOLERANCE = 0.3
"""Maximum relative deviation of the index bits from the KL, in the comparison of block policies."""
HALF_A_POINT = 0.005
"""Maximum loss of accuracy, compared with FedAvg, at which a method still counts as reaching FedAvg's accuracy."""


class Claim(NamedTuple):
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


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *lines))


def mean_and_deviation(row: Entry, name: str) -> tuple[float, float]:
    """Return the mean and the standard deviation over seeds; the deviation of a single seed is 0."""
    values = [float(seed[name]) for seed in row["seeds"].values()]
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def mean(row: Entry, name: str) -> float:
    """Return the mean over seeds."""
    return mean_and_deviation(row, name)[0]


def megabytes(row: Entry, *ways: str) -> float:
    """Return the mean megabytes that were sent in these directions, `up` or `down` or both."""
    return sum(mean(row, f"{way}link_bytes") for way in ways) / 1e6


def _accuracy(row: Entry) -> str:
    accuracy, deviation = mean_and_deviation(row, "accuracy")
    return f"{accuracy:.4f} ± {deviation:.4f}" if len(row["seeds"]) > 1 else f"{accuracy:.4f}"


def _bits(row: Entry) -> str:
    return f"{mean(row, 'bits_per_parameter'):.4f}"


def _times_smaller(row: Entry) -> str:
    return f"{32 / mean(row, 'bits_per_parameter'):,.0f}"


_COLUMNS: dict[str, Callable[[Entry], str]] = {
    "seeds": lambda row: str(len(row["seeds"])),
    "accuracy": _accuracy,
    "nll": lambda row: f"{mean(row, 'nll'):.3f}",
    "ece": lambda row: f"{mean(row, 'ece'):.3f}",
    "bits per parameter": _bits,
    "x smaller than float32": _times_smaller,
    "bits per parameter up": _bits,
    "MB up": lambda row: f"{megabytes(row, 'up'):,.3f}",
    "MB down": lambda row: f"{megabytes(row, 'down'):,.3f}",
    "MB in total": lambda row: f"{megabytes(row, 'up', 'down'):,.3f}",
    "x smaller than float32 both ways": lambda row: f"{mean(row, 'times_smaller_total'):,.0f}",
}
_UPLINK = ("seeds", "accuracy", "bits per parameter", "x smaller than float32")
_UPLINK_BAYESIAN = ("seeds", "accuracy", "nll", "ece", "bits per parameter", "x smaller than float32")
_BOTH_WAYS = ("seeds", "accuracy", *list(_COLUMNS)[-5:])


def _rows(rows: Mapping[str, Entry], columns: Sequence[str]) -> str:
    lines = ([name, *(_COLUMNS[column](row) for column in columns)] for name, row in rows.items())
    return table(("row", *columns), lines)


def uplink(results: Results) -> str:
    """Return a table of accuracies and bits per parameter for every data set, with a line per row of the experiment."""
    parts = []
    for data, rows in results.items():
        bayesian = all(row["config"]["method"] in ("sgld", "qlsd", "sgld-klms") for row in rows.values())
        parts.append(f"{data}:\n\n{_rows(rows, _UPLINK_BAYESIAN if bayesian else _UPLINK)}")
    return "\n\n".join(parts)


def both_ways(results: Results) -> str:
    """Return a table of bytes up, down and in total."""
    (rows,) = results.values()
    return _rows(rows, _BOTH_WAYS)


def both_ways_by_data(results: Results) -> str:
    """Return a table like `both_ways` for every data set; its title has the model and the numbers of images."""
    parts = []
    for data, rows in results.items():
        trained = " or ".join(dict.fromkeys(map(_trained, rows.values())))
        parts.append(f"{data}, {trained}:\n\n{_rows(rows, _BOTH_WAYS)}")
    return "\n\n".join(parts)


def _trained(row: Entry) -> str:
    config, examples = row["config"], row["examples"]
    width = f" of width {config['width']:g}" if config["width"] != 1 else ""
    train, test = (f"{examples[half]:,}" if half in examples else "an unknown number of" for half in ("train", "test"))
    return f"{config['model']}{width}, {config['rounds']} rounds, {train} training and {test} test images"


def claims(rows: Mapping[str, Entry]) -> str:
    """Return the paper's claims as measured: each method with KLMS compared with the method without it."""
    lines = ["| with KLMS, without | difference in accuracy | at least | times fewer bits | at least | |"]
    lines.append("| --- " * 6 + "|")
    for claim in CLAIMS:
        ours, theirs = rows[claim.with_klms], rows[claim.without]
        gap = mean(ours, "accuracy") - mean(theirs, "accuracy")
        factor = mean(theirs, "bits_per_parameter") / mean(ours, "bits_per_parameter")
        verdict = "reached" if gap >= -claim.gap and factor >= claim.factor else "not reached"
        cells = (f"{gap:+.4f}", f"{-claim.gap:+.3f}", f"{factor:.1f}", f"{claim.factor:.0f}", verdict)
        lines.append(f"| {claim.with_klms}, {claim.without} | {' | '.join(cells)} |")
    return "\n".join(lines)


def beside_klms(results: Mapping[str, Results]) -> dict[str, dict[str, Entry]]:
    """Return, by data set, the rows of the experiment `fewest-bits` and those of the KLMS methods in tables 1 and 2."""
    found = {}
    for data, name in (("mnist", "table1"), ("fashion-mnist", "table2")):
        ours = {row: results[name][data][row] for row in ("fedpm-klms", "signsgd-klms", "qsgd-klms")}
        found[data] = results["fewest-bits"][data] | ours
    return found


def fewest_bits(results: Mapping[str, Results]) -> str:
    """Return a table of all rows, sorted by bits per parameter; it marks the rows that reach the accuracy of FedAvg."""
    lines = []
    for data, rows in beside_klms(results).items():
        wanted = mean(rows["fedavg"], "accuracy") - HALF_A_POINT
        for name, row in sorted(rows.items(), key=lambda named: mean(named[1], "bits_per_parameter")):
            accuracy = mean(row, "accuracy")
            numbers = (str(len(row["seeds"])), f"{accuracy:.4f}", _bits(row), _times_smaller(row))
            lines.append((data, name, *numbers, "yes" if accuracy >= wanted else ""))
    return table(("data", "row", *_UPLINK, "reaches FedAvg"), lines)


def block_policies(results: Results) -> str:
    """Return the paper's comparison of block policies (figure 3): a table of every few rounds, and a sentence per run.

    Adaptive blocks grow as the KL falls, whereas fixed blocks, of the size that suits the first round, keep costing as
    much as in that round.
    """
    (rows,) = results.values()
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


def layers(results: Results) -> str:
    """Return a table of the KL of each layer in bits per parameter, every few rounds."""
    (rows,) = results.values()
    (row,) = rows.values()
    series = row["series"]["kl_by_layer"]
    shown = range(0, len(series), max(1, len(series) // 5))
    lines = [[name, *(f"{series[n][place]:.4f}" for n in shown)] for place, name in enumerate(row["layers"])]
    return table(["layer", *(f"round {n + 1}" for n in shown)], lines)


def toy(results: dict[str, Any]) -> str:
    """Return a table of the gap at a few numbers of clients."""
    places = [results["clients"].index(n) for n in (1, 10, 100, 1000)]
    lines = []
    for value, curve in results["curves"].items():
        gaps = (f"{curve['mean'][n]:.3f} ± {curve['deviation'][n]:.3f}" for n in places)
        lines.append((value, str(curve["bits"]), *gaps))
    return table((results["symbol"], "bits", *(f"N = {results['clients'][n]}" for n in places)), lines)


def coding(results: dict[str, Any]) -> str:
    """Return a table of the seconds that a round of each method spends on training and coding."""
    lines = []
    for method, entry in results.items():
        seconds = entry["seconds"]
        share = coding_share([LedgerRecord(round=1, uplink_bytes=0, bits_per_parameter=0, seconds=seconds)])
        times = (f"{seconds['train']:.1f}", f"{seconds['encode']:.2f}", f"{seconds['decode']:.2f}")
        lines.append((method, *times, f"{share:.1%}"))
    return table(("method", "training, s", "encoding, s", "decoding, s", "share of coding"), lines)


def links(results: dict[str, Any]) -> str:
    """Return a table of how long a round takes at every link speed, without klms and with it."""
    by_size: dict[int, list[dict[str, Any]]] = {}
    for row in results["rows"]:
        by_size.setdefault(row["parameters"], []).append(row)
    lines = []
    for parameters, rows in by_size.items():
        times = [f"{_seconds(row['stock'])} to {_seconds(row['coded'])}" for row in rows]
        coding_seconds = rows[0]["client_seconds"] + rows[0]["server_seconds"]
        lines.append([f"{parameters:,}", f"{coding_seconds:.2f}", *times, f"{rows[0]['break_even']:.0f}"])
    speeds = [f"{row['speed']:g} Mbit/s" for row in next(iter(by_size.values()))]
    return table(("parameters", "coding, s", *speeds, "break-even, Mbit/s"), lines)


def _seconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def mean_estimation(results: dict[str, Any]) -> str:
    """Return a table of the best unbiased schemes at a few rates, with default effort and with other efforts."""
    rows = [mean_bench.Row(**row) for row in results["rows"]]
    usual = mean_bench.with_default_effort(rows)
    lines = []
    for kind, rate in product(dict.fromkeys(row.vectors for row in rows), (0.02, 0.1, 0.5, 1, 2, 4)):
        row = mean_bench.best(usual, kind, rate)
        others = [other for other in usual if other.scheme != row.scheme]
        try:
            other = mean_bench.best(others, kind, rate, 0.1)
            next_best = [other.scheme, f"{other.error:.3g}"]
        except InvalidArgument:  # on small models, headers alone take more bits
            next_best = ["none", ""]
        twins = [row.setting.replace("balanced", effort) for effort in ("balanced", "fast", "best")]
        ratios = [twin.over_eden for name in twins for twin in rows if (twin.vectors, twin.setting) == (kind, name)]
        lines.append(
            [
                *(kind, f"{rate:g}", row.scheme, f"{row.bits_per_parameter:.3f}", f"{row.error:.3g}"),
                *(f"{ratio or math.nan:.3g}" for ratio in ratios[:3]),
                *(f"{row.error / row.limit:.2f}", f"{row.encode_ns:.0f}", f"{row.decode_ns:.0f}"),
                *next_best,
            ]
        )
    head = ("vectors", "about, bits", "best unbiased", "bits", "error", "/ EDEN's", "`fast`", "`best`", "/ limit")
    return table((*head, "encode, ns", "decode, ns", "next best", "its error"), lines)


def flower(results: dict[str, Any]) -> str:
    """Return the table for `examples/flower-quickstart/compare.py`: the stock app, and the app with compression."""
    by_app: dict[tuple[str, ...], dict[str, Any]] = {}
    for name, run in results["runs"].items():
        *which, seed = name.split("; ")
        by_app.setdefault(tuple(which), {})[seed] = run
    lines = []
    for (engine, strategy, app), runs in by_app.items():
        stock = by_app[engine, strategy, "stock"]
        accuracy = statistics.fmean([run["accuracy"][-1] for run in runs.values()])
        lost = [stock[seed]["accuracy"][-1] - run["accuracy"][-1] for seed, run in runs.items() if seed in stock]
        points = "" if app == "stock" or not lost else f"{100 * statistics.fmean(lost):z.1f}"
        sent = statistics.fmean([run["uplink_bytes"] + run["downlink_bytes"] for run in runs.values()])
        first = next(iter(runs.values()))
        factor = f"{first['stock_bytes'] / sent:.1f}"
        wire = [f"{first[way]:,}" if first["wire_up"] else "" for way in ("wire_up", "wire_down")]
        cells = [engine, strategy, app, str(len(runs)), f"{accuracy:.4f}", points, f"{sent / 1e6:.3f}", factor]
        lines.append([*cells, *wire])
    head = ("engine", "strategy", "app", "seeds", "accuracy", "points lost", "MB both ways", "x smaller")
    return table((*head, "wire up", "wire down"), lines)


def flower_overhead(results: dict[str, Any]) -> str:
    """Return a sentence about the times that `examples/flower-overhead/measure.py` measured."""
    medians = results["median"]
    return (
        f"A round takes {medians['stock']:.2f} s without klms and {medians['compressed']:.2f} s with it, at "
        f"{results['bits_per_parameter']:.3f} bits per parameter."
    )
