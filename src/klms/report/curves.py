"""What a run measured, round by round: columns of numbers, which the page draws as curves and the CSV files list."""

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from klms.engine.ledger import LedgerRecord
from klms.report.figures import Axis, Figure, Line

Column = tuple[float | None, ...]
"""A number for every round; None where a round has none."""
WIDE = 30.0
"""An axis is logarithmic if its largest value is so many times the smallest."""
AXES = {"round": "round", "seconds": "seconds since the start", "up": "MB up", "down": "MB down", "total": "MB total"}
"""Columns that curves can be drawn against, and how their axes are labelled. All but the first are running sums."""


class Track(NamedTuple):
    """The columns of one run, by name."""

    run: str
    row: str
    """Name of the row of the table that the run belongs to."""
    seed: str
    columns: dict[str, Column]


@dataclass(frozen=True)
class Measure:
    """A column that a figure shows, and what it is called where the figure shows several."""

    column: str
    """A field of `LedgerRecord`, or a name in `_DERIVED`."""
    label: str


@dataclass(frozen=True)
class Curves(Figure):
    """Columns of runs, against any of the axes and for runs or means over them, as the reader chooses."""

    y: Axis
    """Where it is logarithmic in `CURVES`, it is so only for numbers that are far apart."""
    measures: tuple[Measure, ...]
    tracks: tuple[Track, ...] = ()

    def of(self, tracks: Sequence[Track]) -> "Curves | None":
        """Return the figure with the tracks that have its columns; None if there is no number."""
        names = [measure.column for measure in self.measures]
        having = tuple(track for track in tracks if any(name in track.columns for name in names))
        numbers = [n for track in having for name in names for n in track.columns.get(name, ()) if n is not None]
        if not numbers:
            return None
        log = self.y.log and 0 < WIDE * min(numbers) < max(numbers)
        return replace(self, y=replace(self.y, log=log), tracks=having)

    def drawn(self) -> dict[str, object]:
        return Figure.drawn(replace(self, tracks=()))  # the page has the columns once, with its runs

    def table(self) -> Iterator[Line]:
        axes = [name for name in AXES if any(name in track.columns for track in self.tracks)]
        names = [*axes, *(measure.column for measure in self.measures)]
        yield ("run", "series", "seed", *(AXES[name] for name in axes), *(measure.label for measure in self.measures))
        for track in self.tracks:
            empty = (None,) * len(track.columns["round"])
            for line in zip(*(track.columns.get(name, empty) for name in names), strict=True):
                if any(number is not None for number in line[len(axes) :]):
                    yield (track.run, track.row, track.seed, *line)


_DERIVED: dict[str, Callable[[LedgerRecord], float | None]] = {
    "bits": lambda record: record.bits_per_parameter if record.aggregated else None,
    "round_up": lambda record: record.uplink_bytes / 1e6,
    "round_down": lambda record: record.downlink_bytes / 1e6,
}
CURVES = (
    Curves("accuracy", "Accuracy", "On the test data.", Axis("accuracy"), (Measure("accuracy", "accuracy"),)),
    Curves("nll", "Negative log-likelihood", "On the test data, in nats.", Axis("nll"), (Measure("nll", "nll"),)),
    Curves("loss", "Loss", "On the test data.", Axis("loss"), (Measure("loss", "loss"),)),
    Curves(
        "train-loss",
        "Training loss",
        "During the local training of a round, mean over its clients.",
        Axis("training loss"),
        (Measure("train_loss", "training loss"),),
    ),
    Curves("epsilon", "Privacy spent", "Epsilon until that round.", Axis("epsilon"), (Measure("epsilon", "epsilon"),)),
    Curves(
        "bits",
        "Bits per parameter up",
        "Size of the messages of a round, mean over its clients.",
        Axis("bits/parameter up", log=True),
        (Measure("bits", "bits/parameter up"),),
    ),
    Curves(
        "megabytes",
        "Megabytes per round",
        "What all clients of a round send, and what they are sent.",
        Axis("MB", log=True),
        (Measure("round_up", "up"), Measure("round_down", "down")),
    ),
    Curves(
        "kl",
        "KL and the bits spent on it",
        "KL of the clients' distributions to the shared one, and the bits of the indices that convey it.",
        Axis("bits/parameter", log=True),
        (Measure("kl_bits_per_parameter", "KL"), Measure("index_bits_per_parameter", "index bits")),
    ),
)
"""All figures of curves. One more ledger field is one more entry."""


def columns(records: Sequence[LedgerRecord]) -> dict[str, Column]:
    """Return the axes and the columns of all curves that hold a number."""
    up = [record.uplink_bytes for record in records]
    down = [record.downlink_bytes for record in records]
    made: dict[str, Column] = {
        "round": tuple(float(record.round) for record in records),
        "up": _megabytes(up),
        "down": _megabytes(down),
        "total": _megabytes(map(operator.add, up, down)),
    }
    if all("total" in record.seconds for record in records):
        made["seconds"] = tuple(round(sum_, 3) for sum_ in accumulate(record.seconds["total"] for record in records))
    for name in (measure.column for curves in CURVES for measure in curves.measures):
        column = tuple(map(_DERIVED.get(name) or operator.attrgetter(name), records))
        if any(number is not None for number in column):
            made[name] = column
    return made


def _megabytes(sizes: Iterable[int]) -> Column:
    return tuple(size / 1e6 for size in accumulate(sizes))
