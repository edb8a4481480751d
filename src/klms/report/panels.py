"""Figures that show one row or one seed at a time: KL by layer, block sizes, time by phase, the data of the clients."""

import statistics

from klms.engine.ledger import WORK_PHASES, seconds_by_phase
from klms.report.collect import Run, text
from klms.report.figures import Axis, BarPanel, Bars, Figure, Heat, HeatPanel, StepPanel, Steps
from klms.report.groups import Group, Task

PHASES = (*WORK_PHASES, "evaluate")
MOST_COLUMNS, MOST_STEPS = 100, 2000
"""More rounds or blocks than these are averaged: neither a page nor an eye could tell them apart."""


def make(task: Task) -> list[Figure]:
    """The figures that the runs have data for."""
    figures: list[Figure] = []
    if heat := [panel for panel in map(_layers, task.groups) if panel is not None]:
        caption = "KL in bits per parameter of each layer, mean over clients and seeds."
        figures.append(Heat("kl-layers", "KL by layer and round", caption, Axis("round"), "KL", tuple(heat)))
    if steps := [panel for panel in map(_blocks, task.groups) if panel is not None]:
        caption = "Size of each block along the parameter vector, in the last checkpoint of the first seed."
        axes = Axis("parameter"), Axis("parameters per block")
        figures.append(Steps("block-sizes", "Block sizes along the vector", caption, *axes, tuple(steps)))
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
    names = tuple(text(layer.name) for layer in group.runs[0].description.layers)
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


def _kl_by_layer(run: Run) -> list[tuple[float, ...]]:
    """KL of the layers in each round, up to the first round that does not have it."""
    rows: list[tuple[float, ...]] = []
    for record in run.records:
        if not record.kl_by_layer or (rows and len(record.kl_by_layer) != len(rows[0])):
            break
        rows.append(record.kl_by_layer)
    return rows


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
    marks, position = [], 0
    for layer in run.description.layers:
        marks.append((position, text(layer.name)))
        position += layer.size
    known = tuple(marks) if position == run.bounds[-1] else ()
    return StepPanel(group.name, group.style, (*starts, run.bounds[-1]), heights, known)


def _phases(task: Task) -> Bars | None:
    names, values = [], []
    for group in task.groups:
        spent = [(seconds_by_phase(run.records), len(run.records)) for run in group.runs]
        row = tuple(statistics.fmean(run.get(phase, 0.0) / rounds for run, rounds in spent) for phase in PHASES)
        if any(row):
            names.append(group.name)
            values.append(row)
    if not names:
        return None
    return Bars(
        "phases",
        "Time by phase",
        "Seconds per round, averaged over all rounds. Training and encoding are summed over the clients of a round.",
        Axis("seconds per round"),
        "method",
        PHASES,
        (BarPanel("", tuple(names), tuple(values)),),
        horizontal=True,
    )


def _split(task: Task) -> Bars | None:
    """One panel per seed, which determines the data of the clients; any run with the seed can describe them."""
    splits = {run.seed: run.description.split for group in task.groups for run in group.runs if run.description.split}
    if not splits:
        return None
    classes = len(next(iter(splits.values()))[0])
    panels = tuple(
        BarPanel(
            f"seed {seed}",
            tuple(str(client) for client in range(len(split))),
            tuple(tuple(float(examples) for examples in client) for client in split),
        )
        for seed, split in sorted(splits.items(), key=lambda item: (len(item[0]), item[0]))
        if len(split[0]) == classes
    )
    parts = tuple(f"class {index}" for index in range(classes)) if classes > 1 else ("examples",)
    caption = "Training examples of each client" + (", by class." if classes > 1 else ".")
    return Bars("split", "Data of the clients", caption, Axis("examples"), "client", parts, panels, horizontal=False)
