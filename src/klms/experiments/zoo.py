"""The zoo, `docs/zoo.md`: bits, error and time of every scheme, made from the committed results alone.

The page joins two measurements. Experiments train a model with a scheme, and give accuracies. The bench of mean
estimation codes updates of the same kind of model, and gives errors and times. The row of a trained model takes its
error and times from the bench's row with the same scheme and model and the nearest rate, if the rates differ by less
than a factor of `NEAR`.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from klms.benchmarks.mean import Row, with_default_effort
from klms.experiments.results_file import Entry, Results
from klms.experiments.tables import mean, mean_and_deviation, table

NEAR = 1.5
_HEAD = """# The zoo of schemes

`klms results` makes this page from the JSON files in `results/`. Bits are those of messages that were sent and decoded.
The error is that of an average of {clients} clients' updates, relative to the energy of an update: an error of 1 is as
large as the update itself. Times are nanoseconds of CPU time per parameter, on one thread of a busy machine.
[Results](results.md) says how each experiment was run, and [which scheme, rate and noise](choosing.md) says what to
use.
"""
_TRAINED = """
## In training

Each table has the accuracy of every method on one data set with one model, and the bits of its uplink. Errors and times
are those of the same scheme when it codes updates of the same kind of model at about the same bits. Methods that send
masks, signs without magnitudes or samples of a posterior have no such error. Where there are several seeds, the
accuracy is shown as mean ± standard deviation.
"""
_CODED = """
## Coding real updates

The schemes code updates after two rounds of FedAvg, with default effort: LeNet on MNIST, CONV6 on CIFAR-10, and an
LSTM on chat messages.
[The picture](pictures.md#error-against-bits) has normal and lognormal vectors too.
"""


class Source(NamedTuple):
    """An experiment whose rows are shown, and how its data were split."""

    experiment: str
    profile: str
    setting: str


SOURCES = (
    Source("table1", "small", "i.i.d., 10 clients"),
    Source("beyond", "small", "i.i.d., 10 clients"),
    Source("fewest-bits", "small", ""),
    Source("sgld-vs-qlsd", "small", "i.i.d., 10 clients"),
    Source("table1", "cpu", "all images, i.i.d., 10 clients"),
    Source("table2", "small", "non-i.i.d., 20 of 100 clients"),
    Source("noniid-hard", "small", "2 classes per client, 10 of 100"),
    Source("stackoverflow", "small", "by author, 10 of 20 clients"),
)
"""The experiments of the page. Data sets of `fewest-bits` are split as in tables 1 and 2 (`_SPLITS`)."""
_SPLITS = {"mnist": "i.i.d., 10 clients", "fashion-mnist": "non-i.i.d., 20 of 100 clients"}


def document(results: Mapping[Source, Results], rows: Sequence[Row], clients: int) -> str:
    """Return the page, given the results of `SOURCES` and of the bench."""
    bench = with_default_effort(rows)
    parts = [_HEAD.format(clients=clients), _TRAINED]
    for title, lines in _by_federation(results, bench).items():
        head = ("method", "bits up", "x smaller", "seeds", "accuracy", "error", "encode, ns", "decode, ns")
        parts.append(f"\n### {title}\n\n{table(head, lines)}\n")
    parts.append(_CODED)
    for kind, title in (("lenet", "LeNet"), ("conv6", "CONV6"), ("lstm", "LSTM")):
        head = ("scheme", "setting", "unbiased", "bits", "x smaller", "error", "encode, ns", "decode, ns")
        ordered = sorted((row for row in bench if row.vectors == kind), key=lambda row: row.bits_per_parameter)
        parts.append(f"\n### Updates of {title}\n\n{table(head, map(_coded, ordered))}\n")
    return "".join(parts)


def _by_federation(results: Mapping[Source, Results], bench: Sequence[Row]) -> dict[str, list[list[str]]]:
    """Return the lines of every federation, by decreasing accuracy; a row that two experiments share appears once."""
    found: dict[str, dict[tuple[str, ...], tuple[float, list[str]]]] = {}
    for title, name, row in _rows(results):
        line = [name, *_trained(row, bench)]
        key = (name.partition(",")[0], line[1], line[4])
        found.setdefault(title, {}).setdefault(key, (mean(row, "accuracy"), line))
    ordered = {title: sorted(lines.values(), key=lambda one: -one[0]) for title, lines in found.items()}
    return {title: [line for _, line in lines] for title, lines in ordered.items()}


def _rows(results: Mapping[Source, Results]) -> Iterator[tuple[str, str, Entry]]:
    for source, by_data in results.items():
        for data, rows in by_data.items():
            for name, row in rows.items():
                setting = source.setting or _SPLITS[data]
                yield f"{row['config']['model']} on {data}, {setting}", name, row


def _trained(row: Entry, bench: Sequence[Row]) -> list[str]:
    bits = mean(row, "bits_per_parameter")
    accuracy, deviation = mean_and_deviation(row, "accuracy")
    shown = f"{accuracy:.4f} ± {deviation:.4f}" if len(row["seeds"]) > 1 else f"{accuracy:.4f}"
    near = _nearest(row["config"], bits, bench)
    costs = ["", "", ""] if near is None else _costs(near)
    return [f"{bits:.4g}", f"{32 / bits:,.0f}", str(len(row["seeds"])), shown, *costs]


def _nearest(config: Mapping[str, Any], bits: float, bench: Sequence[Row]) -> Row | None:
    """Return the row of the bench with the run's scheme and model and the nearest rate; None if no rate is near."""
    alike = [row for row in bench if row.scheme == config["method"] and row.vectors == config["model"]]
    distances = [(abs(math.log(row.bits_per_parameter / bits)), place) for place, row in enumerate(alike)]
    distance, place = min(distances, default=(math.inf, 0))
    return alike[place] if distance < math.log(NEAR) else None


def _coded(row: Row) -> list[str]:
    bits = row.bits_per_parameter
    setting = row.setting.replace(", effort balanced", "")
    return [row.scheme, setting, "yes" if row.unbiased else "", f"{bits:.4g}", f"{32 / bits:,.0f}", *_costs(row)]


def _costs(row: Row) -> list[str]:
    return [f"{row.error:.3g}", f"{row.encode_ns:.0f}", f"{row.decode_ns:.0f}"]
