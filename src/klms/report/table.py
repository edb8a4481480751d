"""The table of a task: one line per row, with means and deviations over seeds, and the paper's numbers."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from klms.engine import ledger
from klms.engine.ledger import InTable, LedgerRecord
from klms.report import paper
from klms.report.collect import ReportedRun
from klms.report.rows import Row, Task


@dataclass(frozen=True)
class Cell:
    """The text of a cell, and the number that the table is sorted by."""

    text: str = ""
    value: float | None = None
    spread: str = ""
    deviation: float | None = None


@dataclass(frozen=True)
class Column:
    """A column, an explanation of its numbers, and its cells, one per row."""

    name: str
    hint: str
    cells: list[Cell]


@dataclass(frozen=True)
class Table:
    """All columns but the first, which lists the names of the rows."""

    columns: list[Column]
    paper: str
    """Source of the paper's numbers; empty if there are none."""


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean, and the sample standard deviation if there is more than one value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def places(value: float, digits: int = 3) -> int:
    """Return the number of decimals that show `digits` significant digits of a number."""
    rounded = abs(float(f"{value:.{digits}g}"))
    return max(0, digits - 1 - math.floor(math.log10(rounded))) if rounded else digits


def _mean(
    of: Callable[[ReportedRun], float | None], decimals: int | None = None, *, spread: bool = False, unit: str = "f"
) -> Callable[[Row], Cell]:
    """Return a function that makes cells of means, with three digits by default; `spread` adds deviations."""

    def cell(row: Row) -> Cell:
        values = [value for value in map(of, row.runs) if value is not None]
        if not values:
            return Cell()
        mean, deviation = mean_and_deviation(values)
        form = f",.{places(mean) if decimals is None else decimals}{unit}"
        shown = f"{deviation:{form}}" if spread and deviation is not None else ""
        return Cell(f"{mean:{form}}", mean, shown, deviation)

    return cell


def _smaller(times: Callable[[Sequence[LedgerRecord]], float | None]) -> Callable[[Row], Cell]:
    def cell(row: Row) -> Cell:
        ratio = times([record for run in row.runs for record in run.records])
        return Cell() if ratio is None else Cell(f"{ratio:,.{places(ratio)}f}", ratio)

    return cell


def _rounds(row: Row) -> Cell:
    done = min(len(run.records) for run in row.runs)
    planned = max(run.rounds for run in row.runs)
    return Cell(str(done) if all(run.finished for run in row.runs) else f"{done} of {planned}", float(done))


def _seeds(row: Row) -> Cell:
    used, found = len(row.runs), len(row.all_runs)
    return Cell(f"{used} of {found}" if used < found else str(used), float(used))


def _of_field(name: str, mark: InTable) -> tuple[str, Callable[[Row], Cell]]:
    """Return the column of a ledger field."""

    def over_rounds(run: ReportedRun) -> float | None:
        measured = [number for record in run.records if (number := getattr(record, name)) is not None]
        return statistics.fmean(measured) if measured else None

    if mark.over_rounds:
        return mark.hint, _mean(over_rounds)
    return mark.hint, _mean(lambda run: getattr(run.evaluated, name), 4, spread=True)


_OF_FIELDS = {
    name: _of_field(name, mark)
    for name, info in LedgerRecord.model_fields.items()
    for mark in info.metadata
    if isinstance(mark, InTable)
}
_COLUMNS: dict[str, tuple[str, Callable[[Row], Cell]]] = {
    "accuracy": _OF_FIELDS["accuracy"],
    "bits/parameter up": (
        "8 * len(message) / d, mean over the rounds that were aggregated",
        _mean(lambda run: run.bits, spread=True),
    ),
    "MB up": (
        "megabytes that all clients sent in all rounds",
        _mean(lambda run: ledger.uplink_bytes(run.records) / 1e6),
    ),
    "MB down": (
        "megabytes that were sent to all clients in all rounds",
        _mean(lambda run: ledger.downlink_bytes(run.records) / 1e6),
    ),
    "MB total": ("megabytes up and down", _mean(lambda run: ledger.total_bytes(run.records) / 1e6)),
    "x smaller up": ("than float32 up: 32 / (bits/parameter up)", _smaller(ledger.times_smaller_up)),
    "x smaller total": (
        "MB total, against float32 up and down: 32 bits per parameter each way",
        _smaller(ledger.times_smaller_total),
    ),
    **_OF_FIELDS,
    "coding": (
        "encoding and decoding as a share of the working time of clients and server",
        _mean(lambda run: ledger.coding_share(run.records), 1, unit="%"),
    ),
    "seconds": ("of the whole run", _mean(lambda run: ledger.seconds_by_phase(run.records).get("total"), 0)),
    "rounds": ("rounds that are done", _rounds),
    "seeds": ("runs in the means, which leave out unfinished runs if others are finished", _seeds),
}
"""The columns by name: an explanation, and the function that makes the cell of a row."""
_PAPER = "accuracy at bits/parameter up, as the paper reports it for the method at the bitrate nearest to the row's"


def make(task: Task) -> Table:
    """Return the table of a task; columns that would be empty are left out."""
    columns = [Column(name, hint, list(map(cell, task.rows))) for name, (hint, cell) in _COLUMNS.items()]
    reported = paper.results_for(task.config)
    points = [reported.point(row) for row in task.rows]
    cells = [Cell(f"{point[0]:g} at {point[1]:g}", point[0]) if point else Cell() for point in points]
    columns.append(Column("paper, other model and rounds", _PAPER, cells))
    shown = [column for column in columns if any(cell.value is not None for cell in column.cells)]
    return Table(shown, reported.source if any(row.method in reported.methods for row in task.rows) else "")
