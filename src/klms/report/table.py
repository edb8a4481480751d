"""The table of a task: one row per method, means and deviations over seeds, and the paper's numbers beside them."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from klms.engine.ledger import LedgerRecord, coding_share, last_evaluated, seconds_by_phase
from klms.report.collect import Run
from klms.report.groups import Group, Style, Task
from klms.report.paper import Point, reported


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


@dataclass(frozen=True)
class Row:
    """The numbers of a group."""

    method: str
    settings: str
    style: Style
    cells: tuple[Cell, ...]
    """One cell per column."""


@dataclass(frozen=True)
class Table:
    """All rows of a task; the column of methods, which stands first, is not among `columns`."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    paper: str
    """Where the paper's numbers are from; empty if there are none."""


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and the sample standard deviation if there is more than one value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def _evaluated(metric: Callable[[LedgerRecord], float | None]) -> Callable[[Run], float | None]:
    def of(run: Run) -> float | None:
        record = last_evaluated(run.records)
        return metric(record) if record else None

    return of


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
        return Cell(
            f"{mean:{form}}", mean, f"{deviation:{form}}" if spread and deviation is not None else "", deviation
        )

    return cell


_bits = _mean(lambda run: run.bits, spread=True)


def _times_smaller(group: Group) -> Cell:
    bits = _bits(group).value
    return Cell(f"{32 / bits:,.{places(32 / bits)}f}", 32 / bits) if bits else Cell("", None)


def _rounds(group: Group) -> Cell:
    done = min(len(run.records) for run in group.runs)
    planned = max(run.rounds for run in group.runs)
    return Cell(str(done) if group.finished else f"{done} of {planned}", float(done))


def _seeds(group: Group) -> Cell:
    more = f" of {len(group.runs) + len(group.unfinished)}" if group.unfinished else ""
    return Cell(f"{len(group.runs)}{more}", float(len(group.runs)))


def _paper(points: Sequence[Point]) -> Cell:
    shown = "\n".join(f"{point.accuracy:g} at {point.bits:g}" for point in points)
    return Cell(shown, points[0].accuracy if points else None)


_COLUMNS: tuple[tuple[Column, Callable[[Group], Cell]], ...] = (
    (Column("accuracy", "at the last evaluation"), _mean(accuracy, 4, spread=True)),
    (Column("bits/parameter up", "8 * len(message) / d, mean over the rounds that were aggregated"), _bits),
    (Column("x smaller", "than float32: 32 / (bits/parameter up)"), _times_smaller),
    (Column("MB up", "megabytes of all messages of all rounds"), _mean(lambda run: run.megabytes)),
    (Column("nll", "negative log-likelihood, in nats"), _mean(_evaluated(lambda r: r.nll), 4, spread=True)),
    (Column("ece", "expected calibration error"), _mean(_evaluated(lambda r: r.ece), 4, spread=True)),
    (Column("loss", "at the last evaluation"), _mean(_evaluated(lambda r: r.loss), 4, spread=True)),
    (
        Column("coding", "encoding and decoding as a share of the working time of clients and server"),
        _mean(lambda run: coding_share(run.records), 1, percent=True),
    ),
    (Column("seconds", "of the whole run"), _mean(lambda run: seconds_by_phase(run.records).get("total"), 0)),
    (Column("rounds", "rounds that are done"), _rounds),
    (Column("seeds", "runs in the means, which leave out unfinished runs if others are finished"), _seeds),
)


def make(task: Task) -> Table:
    """The table of a task; columns that would be empty are left out."""
    columns = [(column, [cell(group) for group in task.groups]) for column, cell in _COLUMNS]
    from_paper = reported(task.config)
    if from_paper:
        column = Column("paper, other model and rounds", "accuracy at bits/parameter up, as the paper reports it")
        columns.append((column, [_paper(from_paper.methods.get(group.method, ())) for group in task.groups]))
    columns = [(column, cells) for column, cells in columns if any(cell.value is not None for cell in cells)]
    rows = [
        Row(group.method, group.settings, group.style, tuple(cells[index] for _, cells in columns))
        for index, group in enumerate(task.groups)
    ]
    shown = from_paper and any(group.method in from_paper.methods for group in task.groups)
    source = from_paper.source if from_paper and shown else ""
    return Table(tuple(column for column, _ in columns), tuple(rows), source)
