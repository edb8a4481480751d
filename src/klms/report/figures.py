"""The figures of a task as plain numbers, from which the scripts in `assets/` draw and the CSV files are written."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, takewhile
from typing import Any

from klms.engine.ledger import WORK_PHASES, seconds_by_phase, total_bytes, uplink_bytes
from klms.report import paper
from klms.report.collect import ReportedRun, text
from klms.report.curves import AXES, CURVES, Curve
from klms.report.rows import Row, Task
from klms.report.table import mean_and_deviation

WIDE = 30.0
"""An axis is logarithmic if its largest value is more than this many times the smallest."""
PHASES = (*WORK_PHASES, "evaluate")
MOST_COLUMNS, MOST_STEPS = 100, 2000
"""Maximum numbers of columns and steps in a figure. If there are more rounds or blocks, neighbouring ones are averaged,
since they could not be told apart."""

Line = tuple[object, ...]
"""A line of a CSV file."""


@dataclass(frozen=True)
class Figure:
    """One figure of the page."""

    kind: str
    """Which script draws it: curves, points, heat, steps or bars."""
    id: str
    title: str
    caption: str
    data: dict[str, Any]
    """The data from which the script draws."""
    lines: list[Line]
    """The same numbers for a CSV file, starting with the header."""

    def drawn(self) -> dict[str, object]:
        """Return the parts of the figure that the page needs."""
        return {"kind": self.kind, "id": self.id, "title": self.title, "caption": self.caption, **self.data}


def make(task: Task) -> list[Figure]:
    """Return the figures that the runs have data for."""
    curves = [_curves(task, curve) for curve in CURVES]
    panels = [_layers(task), _blocks(task), _phases(task), _client_bytes(task), _split(task)]
    return [figure for figure in (_points(task), *curves, *panels) if figure is not None]


def axes(task: Task) -> list[dict[str, object]]:
    """Return the axes that curves can be drawn against, in the order in which they are offered."""
    found = {name for row in task.rows for run in row.runs for name in run.columns}
    sizes = ("up", "down", "total")  # methods differ in them by orders of magnitude
    return [{"column": name, "label": AXES[name], "log": name in sizes} for name in AXES if name in found]


def _axis(label: str, *, log: bool = False) -> dict[str, object]:
    return {"label": label, "log": log}


def _curves(task: Task, curve: Curve) -> Figure | None:
    """Return the curves of every run. The page averages them as the reader chooses, from the columns of the runs."""
    runs = [
        (row, run) for row in task.rows for run in row.all_runs if not curve.measures.keys().isdisjoint(run.columns)
    ]
    numbers = [n for _, run in runs for name in curve.measures for n in run.columns.get(name, ()) if n is not None]
    if not numbers:
        return None
    axes = [name for name in AXES if any(name in run.columns for _, run in runs)]
    lines: list[Line] = [("run", "series", "seed", *(AXES[name] for name in axes), *curve.measures.values())]
    for row, run in runs:
        empty = (None,) * len(run.records)
        for line in zip(*(run.columns.get(name, empty) for name in (*axes, *curve.measures)), strict=True):
            if any(number is not None for number in line[len(axes) :]):
                lines.append((run.name, row.name, run.seed, *line))
    y = _axis(curve.label, log=curve.log and 0 < WIDE * min(numbers) < max(numbers))
    measures = [{"column": name, "label": label} for name, label in curve.measures.items()]
    return Figure("curves", curve.id, curve.title, curve.caption, {"y": y, "measures": measures}, lines)


def _points(task: Task) -> Figure | None:
    """Return each row's accuracy against the bits per parameter and bytes that it sent, and the paper's points."""
    points = []
    for row in task.rows:
        accuracies = [run.evaluated.accuracy for run in row.runs if run.evaluated.accuracy is not None]
        bits = statistics.fmean(run.bits for run in row.runs)
        if accuracies and bits > 0:
            up = statistics.fmean(uplink_bytes(run.records) for run in row.runs) / 1e6
            total = statistics.fmean(total_bytes(run.records) for run in row.runs) / 1e6
            points.append(_point(row, (bits, up, total), *mean_and_deviation(accuracies)))
    if not points:
        return None
    caption = "At the last evaluation, with one standard deviation over seeds."
    reported = paper.results_for(task.config)
    for row in task.rows:
        if from_paper := reported.point(row):
            accuracy, rate = from_paper
            points.append(_point(row, (rate, None, None), accuracy, None, paper=True))
    if points[-1]["paper"]:
        caption += " Crosses are the paper's points at the nearest bitrate, with its own model and rounds."
    costs = ("bits/parameter up", "MB up", "MB total")
    lines: list[Line] = [("series", *costs, "accuracy", "deviation")]
    for point in points:
        name = f"paper: {point['row']}" if point["paper"] else point["row"]
        lines.append((name, *point["x"], point["y"], point["deviation"]))
    data = {"x": [_axis(cost, log=True) for cost in costs], "y": _axis("accuracy"), "points": points}
    return Figure("points", "accuracy-cost", "Accuracy against cost", caption, data, lines)


def _point(
    row: Row, x: tuple[float | None, ...], y: float, deviation: float | None, *, paper: bool = False
) -> dict[str, Any]:
    return {"row": row.name, "style": asdict(row.style), "x": x, "y": y, "deviation": deviation, "paper": paper}


Panel = dict[str, Any]
"""One number per row and column; in bars, a row is a category, and a column is a part of its stack."""


def _panel(name: str, rows: Iterable[str], columns: Sequence[str], values: Iterable[Sequence[float]]) -> Panel:
    return {"name": name, "rows": list(rows), "columns": columns, "values": list(values)}


def _bars(
    id: str, title: str, caption: str, label: str, categories: str, panels: list[Panel], *, horizontal: bool = False
) -> Figure | None:
    """Return stacked bars, shown one panel at a time; all panels have the same parts."""
    if not panels:
        return None
    lines: list[Line] = [("panel", categories, *panels[0]["columns"])]
    for panel in panels:
        for category, values in zip(panel["rows"], panel["values"], strict=True):
            lines.append((panel["name"], category, *values))
    data = {"axis": _axis(label), "categories": categories, "panels": panels, "horizontal": horizontal}
    return Figure("bars", id, title, caption, data, lines)


def _layers(task: Task) -> Figure | None:
    panels = [panel for panel in map(_layer_panel, task.rows) if panel is not None]
    if not panels:
        return None
    lines: list[Line] = [("panel", "row", "round", "KL")]
    for panel in panels:
        for name, values in zip(panel["rows"], panel["values"], strict=True):
            for column, value in zip(panel["columns"], values, strict=True):
                lines.append((panel["name"], name, column, value))
    caption = "KL in bits per parameter of each layer, mean over clients and seeds."
    data = {"x": _axis("round"), "unit": "KL", "panels": panels}
    return Figure("heat", "kl-layers", "KL by layer and round", caption, data, lines)


def _layer_panel(row: Row) -> Panel | None:
    matrices = [rows for run in row.runs if (rows := _kl_by_layer(run))]
    if not matrices or len({len(rows[0]) for rows in matrices}) > 1:
        return None
    count = len(matrices[0][0])
    parts = _parts(min(map(len, matrices)), MOST_COLUMNS)
    names = [text(layer.name) for layer in row.runs[0].description.layers]
    if len(names) != count:
        names = [f"layer {layer + 1}" for layer in range(count)]
    values = [
        [statistics.fmean(rows[number][layer] for rows in matrices for number in range(*part)) for part in parts]
        for layer in range(count)
    ]
    columns = [str(end) if end == start + 1 else f"{start + 1} to {end}" for start, end in parts]
    return _panel(row.name, names, columns, values)


def _kl_by_layer(run: ReportedRun) -> list[tuple[float, ...]]:
    """Return the KL of the layers in each round, up to the first round in which it was not recorded."""
    rows = [record.kl_by_layer or () for record in run.records]
    return list(takewhile(lambda row: row and len(row) == len(rows[0]), rows))


def _parts(length: int, most: int) -> list[tuple[int, int]]:
    """Cut `range(length)` into at most `most` pieces of about the same length."""
    pieces = min(length, most)
    return [(length * piece // pieces, length * (piece + 1) // pieces) for piece in range(pieces)]


def _blocks(task: Task) -> Figure | None:
    panels = [panel for panel in map(_block_panel, task.rows) if panel is not None]
    if not panels:
        return None
    lines: list[Line] = [("panel", "start", "end", "parameters per block")]
    for panel in panels:
        pieces = zip(panel["starts"], panel["starts"][1:], panel["heights"], strict=False)
        lines += [(panel["name"], *piece) for piece in pieces]
    caption = "Size of each block along the parameter vector, in the last checkpoint of the first seed."
    data = {"x": _axis("parameter"), "y": _axis("parameters per block"), "panels": panels}
    return Figure("steps", "block-sizes", "Block sizes along the vector", caption, data, lines)


def _block_panel(row: Row) -> Panel | None:
    """Return the bounds of the blocks, their sizes, and the places where layers begin."""
    run = next((run for run in row.runs if run.bounds), None)
    if run is None:
        return None
    parts = _parts(len(run.bounds) - 1, MOST_STEPS)
    starts = [run.bounds[start] for start, _ in parts]
    heights = [(run.bounds[end] - run.bounds[start]) / (end - start) for start, end in parts]
    end = run.bounds[-1]
    layers = run.description.layers
    *begins, total = accumulate((layer.size for layer in layers), initial=0)
    marks = list(zip(begins, (text(layer.name) for layer in layers), strict=True)) if total == end else []
    return {
        "name": row.name,
        "style": asdict(row.style),
        "starts": [*starts, end],
        "heights": heights,
        "marks": marks,
    }


def _phases(task: Task) -> Figure | None:
    bars = {}
    for row in task.rows:
        spent = [(seconds_by_phase(run.records), len(run.records)) for run in row.runs]
        bar = [statistics.fmean(run.get(phase, 0.0) / rounds for run, rounds in spent) for phase in PHASES]
        if any(bar):
            bars[row.name] = bar
    caption = "Seconds per round, averaged over all rounds."
    caption += " Training and encoding are summed over the clients of a round."
    panels = [_panel("", bars, PHASES, bars.values())] if bars else []
    return _bars("phases", "Time by phase", caption, "seconds per round", "method", panels, horizontal=True)


def _client_bytes(task: Task) -> Figure | None:
    """Return one panel for each row whose runs all recorded the size of every message."""
    panels = []
    for row in task.rows:
        runs = [sizes for run in row.runs if (sizes := _bytes_by_client(run))]
        if runs and len(runs) == len(row.runs):
            clients = sorted(set().union(*runs))
            means = [[statistics.fmean(sizes.get(client, 0) for sizes in runs) / 1e6] for client in clients]
            panels.append(_panel(row.name, map(str, clients), ["MB up"], means))
    caption = "Megabytes that each client sent in all rounds, mean over seeds."
    return _bars("client-bytes", "Bytes of the clients", caption, "MB up", "client", panels)


def _bytes_by_client(run: ReportedRun) -> dict[int, int]:
    """Return the bytes that each client sent; empty if a round did not record them."""
    found: dict[int, int] = {}
    for record in run.records:
        if record.message_bytes is None or len(record.message_bytes) != len(record.clients):
            return {}
        for client, size in zip(record.clients, record.message_bytes, strict=True):
            found[client] = found.get(client, 0) + size
    return found


def _split(task: Task) -> Figure | None:
    """Return one panel per seed.

    The seed determines the data of the clients, so any run with this seed can describe it.
    """
    splits = {run.seed: run.description.split for row in task.rows for run in row.runs if run.description.split}
    classes = min((len(split[0]) for split in splits.values()), default=0)
    parts = [f"class {index}" for index in range(classes)] if classes > 1 else ["examples"]
    panels = []
    for seed, split in sorted(splits.items(), key=lambda item: (len(item[0]), item[0])):
        if len(split[0]) == classes:
            panels.append(_panel(f"seed {seed}", map(str, range(len(split))), parts, split))
    caption = "Training examples of each client" + (", by class." if classes > 1 else ".")
    return _bars("split", "Data of the clients", caption, "examples", "client", panels)
