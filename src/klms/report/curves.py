"""The figures with a curve or a point for each row of the table."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate

from klms.report.collect import Record, Run, number
from klms.report.figures import Axis, Curves, Figure, Point, Series
from klms.report.groups import Group, Style, Task
from klms.report.paper import reported
from klms.report.table import bits_per_parameter, last, mean_and_deviation

Value = Callable[[Record], float | None]
WIDE, LONGER = 30.0, 4.0
"""Values that span more than this are drawn on a log axis; so are rounds, where some runs have so many more."""


def make(task: Task) -> list[Figure]:
    """Those that there is data for."""
    figures = [
        _accuracy_and_bits(task),
        _over_rounds(
            task,
            ["accuracy"],
            id="accuracy-rounds",
            title="Accuracy by round",
            caption="Test accuracy, mean over seeds; the band is one deviation.",
            label="accuracy",
        ),
        _accuracy_and_megabytes(task),
        _over_rounds(
            task,
            ["bits_per_parameter"],
            id="bits-rounds",
            title="Bits per parameter by round",
            caption="Bits of the messages that were sent, mean over clients and seeds.",
            label="bits/parameter",
        ),
        _over_rounds(
            task,
            ["kl_bits_per_parameter", "index_bits_per_parameter"],
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
        accuracies = [value for run in group.runs if (value := last(run, "accuracy")) is not None]
        bits = mean_and_deviation([bits_per_parameter(run) for run in group.runs])[0]
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
        "Accuracy against bits per parameter",
        "At the end of training, with one deviation over seeds."
        + (" Crosses: the paper, with its own model and rounds." if any(s.paper for s in series) else ""),
        Axis("bits/parameter", log=True),
        Axis("accuracy"),
        tuple(series),
        joined=False,
    )


def _accuracy_and_megabytes(task: Task) -> Curves:
    series = []
    for group in task.groups:
        sent = [list(accumulate(number(record["uplink_bytes"]) or 0.0 for record in run.records)) for run in group.runs]
        points = [
            replace(point, x=mean_and_deviation([run[int(point.x) - 1] for run in sent])[0] / 1e6)
            for point in _by_round(group.runs, _reader("accuracy"))
        ]
        series.append(Series(group.name, group.style, tuple(point for point in points if point.x > 0)))
    return Curves(
        "accuracy-megabytes",
        "Accuracy against megabytes sent",
        "Sent by all clients together up to that round.",
        Axis("megabytes sent", log=True),
        Axis("accuracy"),
        tuple(one for one in series if one.points),
    )


def _over_rounds(task: Task, names: list[str], *, id: str, title: str, caption: str, label: str) -> Curves:
    series = []
    for group in task.groups:
        for index, name in enumerate(names):
            points = _by_round(group.runs, _reader(name))
            if points:
                style = replace(group.style, variant=index) if len(names) > 1 else group.style
                series.append(Series(_name(group, name, names), style, tuple(points)))
    sizes = [point.y for one in series for point in one.points]
    log = len(sizes) > 1 and min(sizes) > 0 and max(sizes) > WIDE * min(sizes)
    lengths = [one.points[-1].x for one in series] or [1.0]
    rounds = Axis("round", log=max(lengths) > LONGER * min(lengths))
    return Curves(id, title, caption, rounds, Axis(label, log=log), tuple(series))


def _name(group: Group, name: str, names: list[str]) -> str:
    return group.name if len(names) == 1 else f"{group.name}: {'KL' if name.startswith('kl') else 'index bits'}"


def _reader(name: str) -> Value:
    return lambda record: number(record.get(name))


def _by_round(runs: Sequence[Run], value: Value) -> list[Point]:
    """Means over the runs, in rounds that all of them have."""
    points = []
    for records in zip(*(run.records for run in runs), strict=False):
        values = [found for record in records if (found := value(record)) is not None]
        if len(values) == len(runs):
            points.append(Point(float(str(records[0]["round"])), *mean_and_deviation(values)))
    return points
