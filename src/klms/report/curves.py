"""Figures with one curve or point per row of the table."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate

from klms.engine.ledger import LedgerRecord
from klms.report.collect import Run
from klms.report.figures import Axis, Curves, Figure, Point, Series
from klms.report.groups import Style, Task
from klms.report.paper import reported
from klms.report.table import accuracy, mean_and_deviation

Value = Callable[[LedgerRecord], float | None]
WIDE, LONGER = 30.0, 4.0
"""An axis is logarithmic if its largest value, or the length of the longest run, is so many times the smallest."""


def make(task: Task) -> list[Figure]:
    """The figures that the runs have data for."""
    figures = [
        _accuracy_and_bits(task),
        _over_rounds(
            task,
            {"": lambda record: record.accuracy},
            id="accuracy-rounds",
            title="Accuracy by round",
            caption="Test accuracy, mean over seeds; the band is one standard deviation.",
            label="accuracy",
        ),
        _accuracy_and_megabytes(task),
        _over_rounds(
            task,
            {"": lambda record: record.bits_per_parameter if record.aggregated else None},
            id="bits-rounds",
            title="Bits per parameter up, by round",
            caption="Size of the messages, mean over clients and seeds.",
            label="bits/parameter up",
        ),
        _over_rounds(
            task,
            {
                ": KL": lambda record: record.kl_bits_per_parameter,
                ": index bits": lambda record: record.index_bits_per_parameter,
            },
            id="kl-rounds",
            title="KL and the bits spent on it",
            caption="KL of the clients' distributions to the shared one, and the bits of the indices that convey it.",
            label="bits/parameter",
        ),
    ]
    return [figure for figure in figures if any(not series.paper for series in figure.series)]


def _accuracy_and_bits(task: Task) -> Curves:
    series = []
    for group in task.groups:
        accuracies = [value for run in group.runs if (value := accuracy(run)) is not None]
        bits = mean_and_deviation([run.bits for run in group.runs])[0]
        if accuracies and bits > 0:
            mean, deviation = mean_and_deviation(accuracies)
            series.append(Series(group.name, group.style, (Point(bits, mean, deviation),)))
    from_paper = reported(task.config)
    styles: dict[str, Style] = {}
    for group in task.groups:
        styles.setdefault(group.method, group.style)
    known = from_paper.methods if from_paper else {}
    for method, style in styles.items():
        points = tuple(Point(point.bits, point.accuracy) for point in known.get(method, ()))
        if points:
            series.append(Series(f"paper: {method}", style, points, paper=True))
    return Curves(
        "accuracy-bits",
        "Accuracy against bits per parameter up",
        "At the last evaluation, with one standard deviation over seeds."
        + (" Crosses are the paper's points, with its own model and rounds." if any(s.paper for s in series) else ""),
        Axis("bits/parameter up", log=True),
        Axis("accuracy"),
        tuple(series),
        joined=False,
    )


def _accuracy_and_megabytes(task: Task) -> Curves:
    series = []
    for group in task.groups:
        sent = [list(accumulate(record.uplink_bytes for record in run.records)) for run in group.runs]
        points = [
            replace(point, x=mean_and_deviation([run[int(point.x) - 1] for run in sent])[0] / 1e6)
            for point in _by_round(group.runs, lambda record: record.accuracy)
        ]
        series.append(Series(group.name, group.style, tuple(point for point in points if point.x > 0)))
    return Curves(
        "accuracy-megabytes",
        "Accuracy against megabytes up",
        "Megabytes that all clients together have sent up to that round.",
        Axis("MB up", log=True),
        Axis("accuracy"),
        tuple(one for one in series if one.points),
    )


def _over_rounds(task: Task, values: dict[str, Value], *, id: str, title: str, caption: str, label: str) -> Curves:
    """One curve per row and entry of `values`, whose keys are appended to the names of the rows."""
    series = []
    for group in task.groups:
        for index, (suffix, value) in enumerate(values.items()):
            if points := _by_round(group.runs, value):
                style = replace(group.style, dashes=index) if len(values) > 1 else group.style
                series.append(Series(group.name + suffix, style, tuple(points)))
    sizes = [point.y for one in series for point in one.points]
    log = len(sizes) > 1 and min(sizes) > 0 and max(sizes) > WIDE * min(sizes)
    lengths = [one.points[-1].x for one in series] or [1.0]
    rounds = Axis("round", log=max(lengths) > LONGER * min(lengths))
    return Curves(id, title, caption, rounds, Axis(label, log=log), tuple(series))


def _by_round(runs: Sequence[Run], value: Value) -> list[Point]:
    """Means over the runs, of the rounds for which all of them have a value."""
    points = []
    for records in zip(*(run.records for run in runs), strict=False):
        values = [found for record in records if (found := value(record)) is not None]
        if len(values) == len(runs):
            points.append(Point(float(records[0].round), *mean_and_deviation(values)))
    return points
