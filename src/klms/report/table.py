"""The table of a task: one row per method, means and deviations over seeds, and the paper's numbers beside them."""

import math
import statistics
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import chain

from klms.engine import ledger
from klms.engine.ledger import LedgerRecord, last_evaluated
from klms.report.collect import Run
from klms.report.groups import Group, Style, Task


@dataclass(frozen=True)
class Column:
    """A column, and an explanation of its numbers."""

    name: str
    hint: str


@dataclass(frozen=True)
class Cell:
    """The text of a cell, and the number that the table is sorted by."""

    text: str
    value: float | None
    spread: str = ""
    deviation: float | None = None


UNKNOWN = Cell("-", None)
"""A size that the run did not record."""


@dataclass(frozen=True)
class Row:
    """The numbers of a group."""

    name: str
    method: str
    title: str
    settings: str
    style: Style
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """All rows of a task; the column of methods, which stands first, is not among `columns`."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    paper: str
    """Where the paper's numbers are from; empty if there are none."""


@dataclass(frozen=True)
class Reported:
    """What the paper reports for one data set."""

    source: str
    """The paper's table, and what was trained there."""
    methods: Mapping[str, Sequence[tuple[float, float]]]
    """Pairs of accuracy and bits per parameter, by method."""

    def point(self, group: Group) -> tuple[float, float] | None:
        """The paper's point for a row: of several for its method, the one whose bitrate is nearest by ratio."""
        points = self.methods.get(group.method, ())
        bits = statistics.fmean(run.bits for run in group.runs)
        if not points or bits <= 0:
            return None
        accuracy, rate = min(points, key=lambda point: abs(math.log(point[1] / bits)))
        return accuracy, rate


def reported(config: Mapping[str, object]) -> Reported:
    """The paper's results for a run's data and split, from all experiments that match; empty if none does.

    Models, rounds and numbers of examples are not compared: the report says so beside the numbers.
    """
    settings = {**config, "partial": config.get("per_round") not in (None, 0, config.get("clients"))}
    found = [entry for entry, conditions in _entries() if conditions.items() <= settings.items()]
    methods = {name: points for entry in found for name, points in entry.methods.items()}
    return Reported("; ".join(entry.source for entry in found), methods)


@cache
def _entries() -> list[tuple[Reported, dict[str, object]]]:
    """Every entry of the file, with the settings that a run must have for it."""
    file = resources.files("klms.report").joinpath("paper_results.toml")
    entries = chain.from_iterable(tomllib.loads(file.read_text(encoding="utf-8")).values())
    return [(Reported(entry.pop("source"), entry.pop("methods")), entry) for entry in entries]


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and the sample standard deviation if there is more than one value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def _evaluated(metric: Callable[[LedgerRecord], float | None]) -> Callable[[Run], float | None]:
    return lambda run: metric(record) if (record := last_evaluated(run.records)) else None


accuracy = _evaluated(lambda record: record.accuracy)
"""Test accuracy at the last evaluation of a run; None if there is none."""


def places(value: float, digits: int = 3) -> int:
    """How many decimals show `digits` significant digits of a number."""
    rounded = abs(float(f"{value:.{digits}g}"))
    return max(0, digits - 1 - math.floor(math.log10(rounded))) if rounded else digits


def _mean(
    of: Callable[[Run], float | None], decimals: int | None = None, *, spread: bool = False, percent: bool = False
) -> Callable[[Group], Cell]:
    """Means for a column, by default with three significant digits; `spread` adds the deviations."""

    def cell(group: Group) -> Cell:
        values = [value for value in map(of, group.runs) if value is not None]
        if not values:
            return Cell("", None)
        mean, deviation = mean_and_deviation(values)
        digits = places(mean) if decimals is None else decimals
        form = f".{digits}%" if percent else f",.{digits}f"
        shown = f"{deviation:{form}}" if spread and deviation is not None else ""
        return Cell(f"{mean:{form}}", mean, shown, deviation)

    return cell


_bits = _mean(lambda run: run.bits, spread=True)


def _sent(count: Callable[[Sequence[LedgerRecord]], int]) -> Callable[[Group], Cell]:
    """Mean megabytes."""
    return _mean(lambda run: count(run.records) / 1e6)


def _smaller(times: Callable[[Sequence[LedgerRecord]], float | None]) -> Callable[[Group], Cell]:
    def cell(group: Group) -> Cell:
        ratio = times([record for run in group.runs for record in run.records])
        return UNKNOWN if ratio is None else Cell(f"{ratio:,.{places(ratio)}f}", ratio)

    return cell


def _rounds(group: Group) -> Cell:
    done = min(len(run.records) for run in group.runs)
    planned = max(run.rounds for run in group.runs)
    return Cell(str(done) if group.finished else f"{done} of {planned}", float(done))


def _seeds(group: Group) -> Cell:
    more = f" of {len(group.runs) + len(group.unfinished)}" if group.unfinished else ""
    return Cell(f"{len(group.runs)}{more}", float(len(group.runs)))


def _paper(point: tuple[float, float] | None) -> Cell:
    return Cell("", None) if point is None else Cell(f"{point[0]:g} at {point[1]:g}", point[0])


_COLUMNS: tuple[tuple[Column, Callable[[Group], Cell]], ...] = (
    (Column("accuracy", "at the last evaluation"), _mean(accuracy, 4, spread=True)),
    (Column("bits/parameter up", "8 * len(message) / d, mean over the rounds that were aggregated"), _bits),
    (Column("MB up", "megabytes that all clients sent in all rounds"), _sent(ledger.uplink_bytes)),
    (Column("MB down", "megabytes that were sent to all clients in all rounds"), _sent(ledger.downlink_bytes)),
    (Column("MB total", "megabytes up and down"), _sent(ledger.total_bytes)),
    (Column("x smaller up", "than float32 up: 32 / (bits/parameter up)"), _smaller(ledger.times_smaller_up)),
    (
        Column("x smaller total", "MB total, against float32 up and down: 32 bits per parameter each way"),
        _smaller(ledger.times_smaller_total),
    ),
    (Column("nll", "negative log-likelihood, in nats"), _mean(_evaluated(lambda r: r.nll), 4, spread=True)),
    (Column("ece", "expected calibration error"), _mean(_evaluated(lambda r: r.ece), 4, spread=True)),
    (Column("loss", "at the last evaluation"), _mean(_evaluated(lambda r: r.loss), 4, spread=True)),
    (
        Column("coding", "encoding and decoding as a share of the working time of clients and server"),
        _mean(lambda run: ledger.coding_share(run.records), 1, percent=True),
    ),
    (Column("seconds", "of the whole run"), _mean(lambda run: ledger.seconds_by_phase(run.records).get("total"), 0)),
    (Column("rounds", "rounds that are done"), _rounds),
    (Column("seeds", "runs in the means, which leave out unfinished runs if others are finished"), _seeds),
)


def make(task: Task) -> Table:
    """The table of a task; columns that would be empty are left out."""
    paper = reported(task.config)
    hint = "accuracy at bits/parameter up, as the paper reports it for the method at the bitrate nearest to the row's"
    makers = [*_COLUMNS, (Column("paper, other model and rounds", hint), lambda group: _paper(paper.point(group)))]
    columns = [(column, [cell(group) for group in task.groups]) for column, cell in makers]
    columns = [(column, cells) for column, cells in columns if any(cell.value is not None for cell in cells)]
    by_row = zip(task.groups, *(cells for _, cells in columns), strict=True)
    rows = tuple(
        Row(group.name, group.method, group.title, group.settings, group.style, tuple(cells))
        for group, *cells in by_row
    )
    source = paper.source if any(group.method in paper.methods for group in task.groups) else ""
    return Table(tuple(column for column, _ in columns), rows, source)
