"""The figures of a task: curves with one line or point per row, and panels that show one row or seed at a time."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, takewhile

from klms.engine.ledger import WORK_PHASES, seconds_by_phase, total_bytes, uplink_bytes
from klms.report.collect import Run, text
from klms.report.figures import (
    Axis,
    Bars,
    Curves,
    Figure,
    Heat,
    Measure,
    Panel,
    Point,
    Points,
    Series,
    StepPanel,
    Steps,
)
from klms.report.groups import Group, Task
from klms.report.table import accuracy, mean_and_deviation, reported
from klms.report.tracks import AXES, Track, columns

WIDE = 30.0
"""An axis is logarithmic if its largest value is so many times the smallest."""
PHASES = (*WORK_PHASES, "evaluate")
MOST_COLUMNS, MOST_STEPS = 100, 2000
"""More rounds or blocks than these are averaged: neither a page nor an eye could tell them apart."""

_CURVES = (  # where an axis is logarithmic here, it is so only for numbers that are far apart
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
        (Measure("kl", "KL"), Measure("index", "index bits")),
    ),
)
_COSTS = Axis("bits/parameter up", log=True), Axis("MB up", log=True), Axis("MB total", log=True)


def make(task: Task) -> list[Figure]:
    """The figures that the runs have data for."""
    tracks = [
        Track(run.name, group.name, run.seed, columns(run))
        for group in task.groups
        for run in (*group.runs, *group.unfinished)
    ]
    figures: list[Figure] = [figure for figure in (_points(task), *_curves(tracks)) if figure]
    if heat := [panel for panel in map(_layers, task.groups) if panel is not None]:
        caption = "KL in bits per parameter of each layer, mean over clients and seeds."
        figures.append(Heat("kl-layers", "KL by layer and round", caption, Axis("round"), "KL", tuple(heat)))
    if steps := [panel for panel in map(_blocks, task.groups) if panel is not None]:
        caption = "Size of each block along the parameter vector, in the last checkpoint of the first seed."
        axes = Axis("parameter"), Axis("parameters per block")
        figures.append(Steps("block-sizes", "Block sizes along the vector", caption, *axes, tuple(steps)))
    return [*figures, *(bars for bars in (_phases(task), _client_bytes(task), _split(task)) if bars)]


def axes(task: Task) -> list[dict[str, object]]:
    """The axes that curves can be drawn against, in the order in which they are offered."""
    runs = [columns(run) for group in task.groups for run in group.runs]
    sizes = ("up", "down", "total")  # methods differ in them by orders of magnitude
    return [
        {"column": name, "label": label, "log": name in sizes}
        for name, label in AXES.items()
        if any(name in found for found in runs)
    ]


def _points(task: Task) -> Points | None:
    """What each row reached, against what it sent."""
    series = []
    for group in task.groups:
        accuracies = [value for run in group.runs if (value := accuracy(run)) is not None]
        bits = statistics.fmean(run.bits for run in group.runs)
        if accuracies and bits > 0:
            sent = [
                statistics.fmean(size(run.records) for run in group.runs) / 1e6 for size in (uplink_bytes, total_bytes)
            ]
            point = Point((bits, *sent), *mean_and_deviation(accuracies))
            series.append(Series(group.name, group.style, (point,)))
    if not series:
        return None
    caption = "At the last evaluation, with one standard deviation over seeds."
    paper = reported(task.config)
    for group in task.groups:
        if from_paper := paper.point(group):
            level, rate = from_paper
            series.append(Series(group.name, group.style, (Point((rate, None, None), level),), paper=True))
    if any(one.paper for one in series):
        caption += " Crosses are the paper's points at the nearest bitrate, with its own model and rounds."
    return Points("accuracy-cost", "Accuracy against cost", caption, _COSTS, Axis("accuracy"), tuple(series))


def _curves(tracks: Sequence[Track]) -> Iterator[Curves]:
    for curves in _CURVES:
        names = [measure.column for measure in curves.measures]
        having = tuple(track for track in tracks if any(name in track.columns for name in names))
        numbers = [n for track in having for name in names for n in track.columns.get(name, ()) if n is not None]
        if numbers:
            log = curves.y.log and 0 < WIDE * min(numbers) < max(numbers)
            yield replace(curves, y=replace(curves.y, log=log), tracks=having)


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


def _client_bytes(task: Task) -> Bars | None:
    """One panel per row, of the runs that recorded the size of every message."""
    panels = []
    for group in task.groups:
        runs = [sizes for run in group.runs if (sizes := _bytes_by_client(run))]
        if runs and len(runs) == len(group.runs):
            clients = sorted(set().union(*runs))
            means = tuple((statistics.fmean(sizes.get(client, 0) for sizes in runs) / 1e6,) for client in clients)
            panels.append(Panel(group.name, tuple(map(str, clients)), ("MB up",), means))
    if not panels:
        return None
    caption = "Megabytes that each client sent in all rounds, mean over seeds."
    return Bars("client-bytes", "Bytes of the clients", caption, Axis("MB up"), "client", tuple(panels), False)


def _bytes_by_client(run: Run) -> dict[int, int]:
    """Bytes that each client sent; empty if a round does not say."""
    found: dict[int, int] = {}
    for record in run.records:
        if record.message_bytes is None or len(record.message_bytes) != len(record.clients):
            return {}
        for client, size in zip(record.clients, record.message_bytes, strict=True):
            found[client] = found.get(client, 0) + size
    return found


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
