"""The figures of a task: curves with one line or point per row, and panels that show one row or seed at a time."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, takewhile

from klms.engine.ledger import WORK_PHASES, LedgerRecord, seconds_by_phase, total_bytes
from klms.report.collect import Run, text
from klms.report.figures import Axis, Bars, Curves, Figure, Heat, Panel, Point, Series, StepPanel, Steps
from klms.report.groups import Group, Task
from klms.report.table import accuracy, mean_and_deviation, reported

Value = Callable[[LedgerRecord], float | None]
WIDE, LONGER = 30.0, 4.0
"""An axis is logarithmic if its largest value, or the length of the longest run, is so many times the smallest."""
PHASES = (*WORK_PHASES, "evaluate")
MOST_COLUMNS, MOST_STEPS = 100, 2000
"""More rounds or blocks than these are averaged: neither a page nor an eye could tell them apart."""


def make(task: Task) -> list[Figure]:
    """The figures that the runs have data for."""
    curves = [
        _accuracy_and_bits(task),
        _over_rounds(
            task,
            {"": lambda record: record.accuracy},
            id="accuracy-rounds",
            title="Accuracy by round",
            caption="Test accuracy, mean over seeds; the band is one standard deviation.",
            label="accuracy",
        ),
        _accuracy_and_megabytes(
            task.groups,
            lambda record: record.uplink_bytes,
            id="accuracy-megabytes",
            caption="Megabytes that all clients together have sent until that round.",
            what="up",
        ),
        _accuracy_and_megabytes(
            [group for group in task.groups if all(total_bytes(run.records) is not None for run in group.runs)],
            lambda record: record.uplink_bytes + record.downlink_bytes,
            id="accuracy-megabytes-total",
            caption="Megabytes that all clients together have sent and been sent until that round.",
            what="up and down",
        ),
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
            {": KL": lambda r: r.kl_bits_per_parameter, ": index bits": lambda r: r.index_bits_per_parameter},
            id="kl-rounds",
            title="KL and the bits spent on it",
            caption="KL of the clients' distributions to the shared one, and the bits of the indices that convey it.",
            label="bits/parameter",
        ),
    ]
    figures: list[Figure] = [figure for figure in curves if any(not series.paper for series in figure.series)]
    if heat := [panel for panel in map(_layers, task.groups) if panel is not None]:
        caption = "KL in bits per parameter of each layer, mean over clients and seeds."
        figures.append(Heat("kl-layers", "KL by layer and round", caption, Axis("round"), "KL", tuple(heat)))
    if steps := [panel for panel in map(_blocks, task.groups) if panel is not None]:
        caption = "Size of each block along the parameter vector, in the last checkpoint of the first seed."
        axes = Axis("parameter"), Axis("parameters per block")
        figures.append(Steps("block-sizes", "Block sizes along the vector", caption, *axes, tuple(steps)))
    return [*figures, *(bars for bars in (_phases(task), _split(task)) if bars)]


def _accuracy_and_bits(task: Task) -> Curves:
    series = []
    for group in task.groups:
        accuracies = [value for run in group.runs if (value := accuracy(run)) is not None]
        bits = statistics.fmean(run.bits for run in group.runs)
        if accuracies and bits > 0:
            mean, deviation = mean_and_deviation(accuracies)
            series.append(Series(group.name, group.style, (Point(bits, mean, deviation),)))
    caption = "At the last evaluation, with one standard deviation over seeds."
    known = dict(reported(task.config).methods)
    for group in task.groups:
        if from_paper := known.pop(group.method, ()):
            points = tuple(Point(x=rate, y=level) for level, rate in from_paper)
            series.append(Series(f"paper: {group.method}", group.style, points, paper=True))
    if any(one.paper for one in series):
        caption += " Crosses are the paper's points, with its own model and rounds."
    axes = Axis("bits/parameter up", log=True), Axis("accuracy")
    title = "Accuracy against bits per parameter up"
    return Curves("accuracy-bits", title, caption, *axes, tuple(series), joined=False)


def _accuracy_and_megabytes(
    groups: Sequence[Group], size: Callable[[LedgerRecord], int], *, id: str, caption: str, what: str
) -> Curves:
    series = []
    for group in groups:
        sent = [list(accumulate(map(size, run.records))) for run in group.runs]
        points = [
            replace(point, x=statistics.fmean(run[int(point.x) - 1] for run in sent) / 1e6)
            for point in _by_round(group.runs, lambda record: record.accuracy)
        ]
        if positive := tuple(point for point in points if point.x > 0):
            series.append(Series(group.name, group.style, positive))
    axes = Axis(f"MB {what}", log=True), Axis("accuracy")
    return Curves(id, f"Accuracy against megabytes {what}", caption, *axes, tuple(series))


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


def _layers(group: Group) -> Panel | None:
    matrices = [rows for run in group.runs if (rows := _kl_by_layer(run))]
    if not matrices or len({len(rows[0]) for rows in matrices}) > 1:
        return None
    count = len(matrices[0][0])
    parts = _parts(min(map(len, matrices)), MOST_COLUMNS)
    names = tuple(text(layer.name) for layer in group.runs[0].description.layers)
    values = tuple(
        tuple(statistics.fmean(rows[number][layer] for rows in matrices for number in range(*part)) for part in parts)
        for layer in range(count)
    )
    columns = tuple(str(start + 1) if end == start + 1 else f"{start + 1} to {end}" for start, end in parts)
    if len(names) != count:
        names = tuple(f"layer {layer + 1}" for layer in range(count))
    return Panel(group.name, names, columns, values)


def _kl_by_layer(run: Run) -> list[tuple[float, ...]]:
    """KL of the layers in each round, up to the first round that does not have it."""
    rows = [record.kl_by_layer or () for record in run.records]
    return list(takewhile(lambda row: row and len(row) == len(rows[0]), rows))


def _parts(length: int, most: int) -> list[tuple[int, int]]:
    """Cut `range(length)` into at most `most` pieces of about the same length."""
    pieces = min(length, most)
    return [(length * piece // pieces, length * (piece + 1) // pieces) for piece in range(pieces)]


def _blocks(group: Group) -> StepPanel | None:
    run = next((run for run in group.runs if run.bounds), None)
    if run is None:
        return None
    parts = _parts(len(run.bounds) - 1, MOST_STEPS)
    starts = tuple(run.bounds[start] for start, _ in parts)
    heights = tuple((run.bounds[end] - run.bounds[start]) / (end - start) for start, end in parts)
    layers, end = run.description.layers, run.bounds[-1]
    *begins, total = accumulate((layer.size for layer in layers), initial=0)
    marks = tuple(zip(begins, (text(layer.name) for layer in layers), strict=True)) if total == end else ()
    return StepPanel(group.name, group.style, (*starts, end), heights, marks)


def _phases(task: Task) -> Bars | None:
    rows = {}
    for group in task.groups:
        spent = [(seconds_by_phase(run.records), len(run.records)) for run in group.runs]
        row = tuple(statistics.fmean(run.get(phase, 0.0) / rounds for run, rounds in spent) for phase in PHASES)
        if any(row):
            rows[group.name] = row
    if not rows:
        return None
    caption = "Seconds per round, averaged over all rounds."
    caption += " Training and encoding are summed over the clients of a round."
    axis, panel = Axis("seconds per round"), Panel("", tuple(rows), PHASES, tuple(rows.values()))
    return Bars("phases", "Time by phase", caption, axis, "method", (panel,), horizontal=True)


def _split(task: Task) -> Bars | None:
    """One panel per seed, which determines the data of the clients; any run with the seed can describe them."""
    splits = {run.seed: run.description.split for group in task.groups for run in group.runs if run.description.split}
    if not splits:
        return None
    classes = len(next(iter(splits.values()))[0])
    parts = tuple(f"class {index}" for index in range(classes)) if classes > 1 else ("examples",)
    panels = tuple(
        Panel(f"seed {seed}", tuple(map(str, range(len(split)))), parts, tuple(tuple(map(float, row)) for row in split))
        for seed, split in sorted(splits.items(), key=lambda item: (len(item[0]), item[0]))
        if len(split[0]) == classes
    )
    caption = "Training examples of each client" + (", by class." if classes > 1 else ".")
    return Bars("split", "Data of the clients", caption, Axis("examples"), "client", panels, horizontal=False)
