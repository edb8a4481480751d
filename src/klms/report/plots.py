"""The figures of a task: curves with one line or point per row, and panels that show one row or seed at a time."""

import statistics
from itertools import accumulate, takewhile

from klms.engine.ledger import WORK_PHASES, seconds_by_phase, total_bytes, uplink_bytes
from klms.report import paper
from klms.report.collect import ReportedRun, text
from klms.report.curves import AXES, CURVES, Track
from klms.report.figures import Axis, Bars, Figure, Heat, Panel, Point, Points, StepPanel, Steps
from klms.report.rows import Row, Task
from klms.report.table import mean_and_deviation

PHASES = (*WORK_PHASES, "evaluate")
MOST_COLUMNS, MOST_STEPS = 100, 2000
"""More rounds or blocks than these are averaged: neither a page nor an eye could tell them apart."""
_COSTS = Axis("bits/parameter up", log=True), Axis("MB up", log=True), Axis("MB total", log=True)


def make(task: Task) -> list[Figure]:
    """Return the figures that the runs have data for."""
    tracks = [Track(run.name, row.name, run.seed, run.columns) for row in task.rows for run in row.all_runs]
    curves = [curve.of(tracks) for curve in CURVES]
    panels = [_layers(task), _blocks(task), _phases(task), _client_bytes(task), _split(task)]
    return [figure for figure in (_points(task), *curves, *panels) if figure is not None]


def axes(task: Task) -> list[dict[str, object]]:
    """Return the axes that curves can be drawn against, in the order in which they are offered."""
    runs = [run.columns for row in task.rows for run in row.runs]
    sizes = ("up", "down", "total")  # methods differ in them by orders of magnitude
    return [
        {"column": name, "label": label, "log": name in sizes}
        for name, label in AXES.items()
        if any(name in found for found in runs)
    ]


def _points(task: Task) -> Points | None:
    """Return what each row reached, against what it sent."""
    points = []
    for row in task.rows:
        accuracies = [run.evaluated.accuracy for run in row.runs if run.evaluated.accuracy is not None]
        bits = statistics.fmean(run.bits for run in row.runs)
        if accuracies and bits > 0:
            up = statistics.fmean(uplink_bytes(run.records) for run in row.runs) / 1e6
            total = statistics.fmean(total_bytes(run.records) for run in row.runs) / 1e6
            mean, deviation = mean_and_deviation(accuracies)
            points.append(Point(row.name, row.style, (bits, up, total), mean, deviation))
    if not points:
        return None
    caption = "At the last evaluation, with one standard deviation over seeds."
    reported = paper.results_for(task.config)
    for row in task.rows:
        if from_paper := reported.point(row):
            accuracy, rate = from_paper
            points.append(Point(row.name, row.style, (rate, None, None), accuracy, paper=True))
    if points[-1].paper:
        caption += " Crosses are the paper's points at the nearest bitrate, with its own model and rounds."
    return Points("accuracy-cost", "Accuracy against cost", caption, _COSTS, Axis("accuracy"), tuple(points))


def _layers(task: Task) -> Heat | None:
    panels = tuple(panel for panel in map(_layer_panel, task.rows) if panel is not None)
    caption = "KL in bits per parameter of each layer, mean over clients and seeds."
    return Heat("kl-layers", "KL by layer and round", caption, Axis("round"), "KL", panels) if panels else None


def _layer_panel(row: Row) -> Panel | None:
    matrices = [rows for run in row.runs if (rows := _kl_by_layer(run))]
    if not matrices or len({len(rows[0]) for rows in matrices}) > 1:
        return None
    count = len(matrices[0][0])
    parts = _parts(min(map(len, matrices)), MOST_COLUMNS)
    names = tuple(text(layer.name) for layer in row.runs[0].description.layers)
    values = tuple(
        tuple(statistics.fmean(rows[number][layer] for rows in matrices for number in range(*part)) for part in parts)
        for layer in range(count)
    )
    columns = tuple(str(start + 1) if end == start + 1 else f"{start + 1} to {end}" for start, end in parts)
    if len(names) != count:
        names = tuple(f"layer {layer + 1}" for layer in range(count))
    return Panel(row.name, names, columns, values)


def _kl_by_layer(run: ReportedRun) -> list[tuple[float, ...]]:
    """Return the KL of the layers in each round, up to the first round that does not have it."""
    rows = [record.kl_by_layer or () for record in run.records]
    return list(takewhile(lambda row: row and len(row) == len(rows[0]), rows))


def _parts(length: int, most: int) -> list[tuple[int, int]]:
    """Cut `range(length)` into at most `most` pieces of about the same length."""
    pieces = min(length, most)
    return [(length * piece // pieces, length * (piece + 1) // pieces) for piece in range(pieces)]


def _blocks(task: Task) -> Steps | None:
    panels = tuple(panel for panel in map(_block_panel, task.rows) if panel is not None)
    caption = "Size of each block along the parameter vector, in the last checkpoint of the first seed."
    axes = Axis("parameter"), Axis("parameters per block")
    return Steps("block-sizes", "Block sizes along the vector", caption, *axes, panels) if panels else None


def _block_panel(row: Row) -> StepPanel | None:
    run = next((run for run in row.runs if run.bounds), None)
    if run is None:
        return None
    parts = _parts(len(run.bounds) - 1, MOST_STEPS)
    starts = tuple(run.bounds[start] for start, _ in parts)
    heights = tuple((run.bounds[end] - run.bounds[start]) / (end - start) for start, end in parts)
    layers, end = run.description.layers, run.bounds[-1]
    *begins, total = accumulate((layer.size for layer in layers), initial=0)
    marks = tuple(zip(begins, (text(layer.name) for layer in layers), strict=True)) if total == end else ()
    return StepPanel(row.name, row.style, (*starts, end), heights, marks)


def _phases(task: Task) -> Bars | None:
    bars = {}
    for row in task.rows:
        spent = [(seconds_by_phase(run.records), len(run.records)) for run in row.runs]
        bar = tuple(statistics.fmean(run.get(phase, 0.0) / rounds for run, rounds in spent) for phase in PHASES)
        if any(bar):
            bars[row.name] = bar
    if not bars:
        return None
    caption = "Seconds per round, averaged over all rounds."
    caption += " Training and encoding are summed over the clients of a round."
    panel = Panel("", tuple(bars), PHASES, tuple(bars.values()))
    return Bars("phases", "Time by phase", caption, Axis("seconds per round"), "method", (panel,), horizontal=True)


def _client_bytes(task: Task) -> Bars | None:
    """Return one panel per row, of the runs that recorded the size of every message."""
    panels = []
    for row in task.rows:
        runs = [sizes for run in row.runs if (sizes := _bytes_by_client(run))]
        if runs and len(runs) == len(row.runs):
            clients = sorted(set().union(*runs))
            means = tuple((statistics.fmean(sizes.get(client, 0) for sizes in runs) / 1e6,) for client in clients)
            panels.append(Panel(row.name, tuple(map(str, clients)), ("MB up",), means))
    if not panels:
        return None
    caption = "Megabytes that each client sent in all rounds, mean over seeds."
    return Bars("client-bytes", "Bytes of the clients", caption, Axis("MB up"), "client", tuple(panels), False)


def _bytes_by_client(run: ReportedRun) -> dict[int, int]:
    """Return the bytes that each client sent; empty if a round does not say."""
    found: dict[int, int] = {}
    for record in run.records:
        if record.message_bytes is None or len(record.message_bytes) != len(record.clients):
            return {}
        for client, size in zip(record.clients, record.message_bytes, strict=True):
            found[client] = found.get(client, 0) + size
    return found


def _split(task: Task) -> Bars | None:
    """Return one panel per seed, which determines the data of the clients; any run with the seed can describe them."""
    splits = {run.seed: run.description.split for row in task.rows for run in row.runs if run.description.split}
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
