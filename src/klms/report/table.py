"""The table of a task: a row a method, means and deviations over seeds, the paper's numbers beside them."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from klms.report.collect import Run, number
from klms.report.groups import Group, Style, Task
from klms.report.paper import Point, reported

PHASES = ("train", "encode", "decode", "aggregate", "evaluate")
_WORKING = ("train", "encode", "decode", "aggregate")


@dataclass(frozen=True)
class Column:
    """A column, and what its numbers are."""

    name: str
    hint: str


@dataclass(frozen=True)
class Cell:
    """What is read, and the number that it is sorted by."""

    text: str
    value: float | None
    spread: str = ""
    deviation: float | None = None


@dataclass(frozen=True)
class Row:
    """A group in numbers."""

    method: str
    settings: str
    style: Style
    cells: tuple[Cell, ...]
    """One for each column."""


@dataclass(frozen=True)
class Table:
    """All rows of a task; the method's column stands before `columns`."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    paper: str
    """Where the paper's numbers are from; empty without any."""


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and the sample deviation where there is more than one value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def last(run: Run, name: str) -> float | None:
    """A metric of the last round that was evaluated; None without one, or where it is not a number."""
    evaluated = [record for record in run.records if "accuracy" in record]
    return number(evaluated[-1].get(name)) if evaluated else None


def bits_per_parameter(run: Run) -> float:
    """Mean over the rounds of what was sent."""
    return statistics.fmean(number(record["bits_per_parameter"]) or 0.0 for record in run.records)


def megabytes(run: Run) -> float:
    """Sent by all clients in all rounds."""
    return sum(number(record["uplink_bytes"]) or 0.0 for record in run.records) / 1e6


def seconds(run: Run) -> dict[str, float]:
    """Seconds of each phase, over all rounds."""
    total: dict[str, float] = {}
    for record in run.records:
        phases = record.get("seconds")
        for phase, value in phases.items() if isinstance(phases, dict) else ():
            total[phase] = total.get(phase, 0.0) + (number(value) or 0.0)
    return total


def coding_share(run: Run) -> float | None:
    """Part of the clients' and server's working time that encoding and decoding took."""
    spent = seconds(run)
    working = sum(spent.get(phase, 0.0) for phase in _WORKING)
    return (spent.get("encode", 0.0) + spent.get("decode", 0.0)) / working if working else None


def places(value: float, digits: int = 3) -> int:
    """Decimals that show so many digits of a number."""
    rounded = abs(float(f"{value:.{digits}g}"))
    return max(0, digits - 1 - math.floor(math.log10(rounded))) if rounded else digits


Measure = Callable[[Run], float | None]


@dataclass(frozen=True)
class _Measure:
    column: Column
    of: Measure
    decimals: int | None = None
    """None: three digits."""
    spread: bool = False
    """Whether the deviation stands beside the mean; it is there in any case."""
    percent: bool = False


_MEASURES = (
    _Measure(Column("accuracy", "of the last evaluation, on the test set"), lambda run: last(run, "accuracy"), 4, True),
    _Measure(Column("nll", "negative log-likelihood, in nats"), lambda run: last(run, "nll"), 4, True),
    _Measure(Column("ece", "expected calibration error"), lambda run: last(run, "ece"), 4, True),
    _Measure(Column("bits/parameter", "8 * len(message) / d, mean over rounds"), bits_per_parameter, None, True),
    _Measure(Column("below 32", "times fewer bits than float32"), lambda run: 32 / (bits_per_parameter(run) or 32)),
    _Measure(Column("MB up", "sent by all clients in all rounds"), megabytes),
    _Measure(Column("coding", "encoding and decoding as a share of the work"), coding_share, 1, percent=True),
    _Measure(Column("seconds", "of the whole run"), lambda run: seconds(run).get("total"), 0),
)


def make(task: Task) -> Table:
    """The table; columns that no run fills are left out."""
    from_paper = reported(task.config)
    known = from_paper.methods if from_paper else {}
    columns: list[Column] = []
    cells: list[list[Cell]] = [[] for _ in task.groups]
    for measure in _MEASURES:
        made = [_cell(group, measure) for group in task.groups]
        if any(cell.value is not None for cell in made):
            columns.append(measure.column)
            for row, cell in zip(cells, made, strict=True):
                row.append(cell)
    columns += [Column("rounds", "done"), Column("seeds", "runs that the numbers are the mean of")]
    for row, group in zip(cells, task.groups, strict=True):
        row += [_rounds(group), _seeds(group)]
    shows_paper = any(group.method in known for group in task.groups)
    if shows_paper:
        columns.append(Column("paper, other model and rounds", "accuracy at bits/parameter, as the paper reports it"))
        for row, group in zip(cells, task.groups, strict=True):
            row.append(_paper(known.get(group.method, ())))
    rows = [
        Row(group.method, group.settings, group.style, tuple(row))
        for group, row in zip(task.groups, cells, strict=True)
    ]
    return Table(tuple(columns), tuple(rows), from_paper.source if from_paper and shows_paper else "")


def _cell(group: Group, measure: _Measure) -> Cell:
    values = [value for value in map(measure.of, group.runs) if value is not None]
    if not values:
        return Cell("", None)
    mean, deviation = mean_and_deviation(values)
    decimals = places(mean) if measure.decimals is None else measure.decimals

    def shown(value: float) -> str:
        return f"{value:.{decimals}%}" if measure.percent else f"{value:,.{decimals}f}"

    return Cell(shown(mean), mean, shown(deviation) if measure.spread and deviation is not None else "", deviation)


def _rounds(group: Group) -> Cell:
    done = min(len(run.records) for run in group.runs)
    planned = max(run.rounds for run in group.runs)
    return Cell(str(done) if group.finished else f"{done} of {planned}", float(done))


def _seeds(group: Group) -> Cell:
    more = f" (+{group.waiting} going)" if group.waiting else ""
    return Cell(f"{len(group.runs)}{more}", float(len(group.runs)))


def _paper(points: Sequence[Point]) -> Cell:
    shown = "\n".join(f"{point.accuracy:g} at {point.bits:g}" for point in points)
    return Cell(shown, points[0].accuracy if points else None)
