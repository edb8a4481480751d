"""The figures that show one row, or one seed, at a time: KL by layer, block sizes, phases, the split of the data."""

import statistics

from klms.report.collect import Run, number
from klms.report.figures import (
    Axis,
    BarPanel,
    Bars,
    Figure,
    Heat,
    HeatPanel,
    StepPanel,
    Steps,
)
from klms.report.groups import Group, Task
from klms.report.table import PHASES, seconds

MOST_COLUMNS, MOST_STEPS = 100, 2000
"""What a page can draw and an eye can see; what is more is averaged."""


def make(task: Task) -> list[Figure]:
    """Those that there is data for."""
    figures: list[Figure] = []
    if heat := [panel for panel in map(_layers, task.groups) if panel is not None]:
        caption = "KL in bits per parameter of each layer, mean over clients and seeds."
        figures.append(Heat("kl-layers", "KL by layer and round", caption, Axis("round"), "KL", tuple(heat)))
    if steps := [panel for panel in map(_blocks, task.groups) if panel is not None]:
        caption = "Parameters of each block along the parameter vector, after the last round of the first seed."
        axes = Axis("parameter"), Axis("parameters of the block")
        figures.append(Steps("block-sizes", "Block sizes over the vector", caption, *axes, tuple(steps)))
    if bars := _phases(task):
        figures.append(bars)
    if split := _split(task):
        figures.append(split)
    return figures


def _layers(group: Group) -> HeatPanel | None:
    matrices = [rows for run in group.runs if (rows := _kl_by_layer(run))]
    if not matrices or len({len(rows[0]) for rows in matrices}) > 1:
        return None
    rounds = min(len(rows) for rows in matrices)
    count = len(matrices[0][0])
    parts = _parts(rounds, MOST_COLUMNS)
    names = tuple(layer.name for layer in group.runs[0].layers)
    values = tuple(
        tuple(
            statistics.fmean(rows[number][layer] for rows in matrices for number in range(start, end))
            for start, end in parts
        )
        for layer in range(count)
    )
    columns = tuple(str(start + 1) if end == start + 1 else f"{start + 1} to {end}" for start, end in parts)
    if len(names) != count:
        names = tuple(f"layer {layer + 1}" for layer in range(count))
    return HeatPanel(group.name, names, columns, values)


def _kl_by_layer(run: Run) -> list[list[float]]:
    """A list of layers for each round, up to the first round that has none."""
    rows: list[list[float]] = []
    for record in run.records:
        found = record.get("kl_by_layer")
        if not isinstance(found, list) or not found:
            break
        values = [value for item in found if (value := number(item)) is not None]
        if len(values) != len(found) or (rows and len(values) != len(rows[0])):
            break
        rows.append(values)
    return rows


def _parts(length: int, most: int) -> list[tuple[int, int]]:
    """`range(length)` cut into at most `most` pieces of about the same length."""
    pieces = min(length, most)
    return [(length * piece // pieces, length * (piece + 1) // pieces) for piece in range(pieces)]


def _blocks(group: Group) -> StepPanel | None:
    run = next((run for run in group.runs if run.bounds), None)
    if run is None:
        return None
    parts = _parts(len(run.bounds) - 1, MOST_STEPS)
    starts = tuple(run.bounds[start] for start, _ in parts)
    heights = tuple((run.bounds[end] - run.bounds[start]) / (end - start) for start, end in parts)
    marks, position = [], 0
    for layer in run.layers:
        marks.append((position, layer.name))
        position += layer.size
    known = tuple(marks) if position == run.bounds[-1] else ()
    return StepPanel(group.name, group.style, (*starts, run.bounds[-1]), heights, known)


def _phases(task: Task) -> Bars | None:
    names, values = [], []
    for group in task.groups:
        spent = [(seconds(run), len(run.records)) for run in group.runs]
        row = tuple(statistics.fmean(run.get(phase, 0.0) / rounds for run, rounds in spent) for phase in PHASES)
        if any(row):
            names.append(group.name)
            values.append(row)
    if not names:
        return None
    return Bars(
        "phases",
        "Time by phase",
        "Seconds of a round. Training and encoding are added up over its clients; evaluation is spread over all.",
        Axis("seconds a round"),
        "method",
        PHASES,
        (BarPanel("", tuple(names), tuple(values)),),
        lying=True,
    )


def _split(task: Task) -> Bars | None:
    """The data follow from the task and the seed: a panel a seed, from any run that says it."""
    seeds: dict[str, Run] = {}
    for group in task.groups:
        for run in group.runs:
            if run.split and run.seed not in seeds:
                seeds[run.seed] = run
    if not seeds:
        return None
    classes = len(next(iter(seeds.values())).split[0])
    panels = tuple(
        BarPanel(
            f"seed {seed}",
            tuple(str(client) for client in range(len(run.split))),
            tuple(tuple(float(examples) for examples in client) for client in run.split),
        )
        for seed, run in sorted(seeds.items())
        if len(run.split[0]) == classes
    )
    parts = tuple(f"class {index}" for index in range(classes)) if classes > 1 else ("examples",)
    caption = "Training examples of each client" + (", by class." if classes > 1 else ".")
    return Bars("split", "The data of the clients", caption, Axis("examples"), "client", parts, panels, lying=False)
