"""Run the grid of an experiment: several runs at a time; complete runs are skipped and interrupted ones are resumed."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from klms.engine.workers import pool_of
from klms.errors import KLMSError, RunFolderError
from klms.experiments.catalogue import Cell, Experiment
from klms.methods.table import RunConfig
from klms.runs import execution
from klms.runs.run_folder import RunFolder


@dataclass(frozen=True)
class CellStatus:
    """How many rounds of a cell are complete."""

    cell: Cell
    rounds: int

    @property
    def complete(self) -> bool:
        return self.rounds >= self.cell.config.rounds


def status(cells: Sequence[Cell], runs: Path | str) -> list[CellStatus]:
    """Return the status of every cell whose run is below `runs`."""
    return [CellStatus(cell, RunFolder(cell.folder(runs)).rounds()) for cell in cells]


def run_cells(cells: Sequence[Cell], runs: Path | str, *, workers: int, report: Callable[[Cell], None]) -> None:
    """Run the cells that are not complete, `workers` at a time in processes of their own; `report` each at its end."""
    for cell in cells:
        folder = RunFolder(cell.folder(runs))
        if folder.exists() and comparable(folder.config()) != comparable(cell.config):
            raise RunFolderError(f"{folder.path} holds a run with other settings: move it, or choose another --runs")
    left = [found.cell for found in status(cells, runs) if not found.complete]
    threads = max(1, (os.cpu_count() or 1) // workers)
    if workers == 1:
        for cell in left:
            _run_cell(cell, runs, threads)
            report(cell)
        return
    # Runs can be resumed, so that those which are under way when another one fails may be stopped at any moment.
    with pool_of(workers) as pool:
        for position, _ in pool.as_completed(partial(_run_cell, runs=runs, threads=threads), left):
            report(left[position])


def collect(experiment: Experiment, cells: Sequence[Cell], runs: Path | str) -> dict[str, Any]:
    """Return the complete runs as one document, without times, so that it does not depend on the machine."""
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    versions: dict[str, str] = {}
    for found in status(cells, runs):
        if not found.complete:
            continue
        cell, folder = found.cell, RunFolder(found.cell.folder(runs))
        versions = folder.versions()
        new = {"config": comparable(cell.config, "seed"), "seeds": {}}
        entry = rows.setdefault(cell.data, {}).setdefault(cell.row, new)
        summary = execution.summarise(folder)
        entry["seeds"][str(cell.seed)] = {
            **{name: round(value, 6) for name, value in summary.metrics.items()},
            "bits_per_parameter": round(summary.bits_per_parameter, 6),
            "uplink_bytes": summary.uplink_bytes,
            "downlink_bytes": summary.downlink_bytes,
            "times_smaller_total": summary.times_smaller_total and round(summary.times_smaller_total, 2),
        }
        if experiment.series and cell.seed == 0:
            records = [record.model_dump(mode="json") for record in folder.records()]
            entry["series"] = {name: [record.get(name) for record in records] for name in experiment.series}
            entry["layers"] = [layer.name for layer in folder.description().layers]
    return {"experiment": experiment.name, "versions": versions, "data": rows}


def comparable(config: RunConfig, *without: str) -> dict[str, Any]:
    """Return the settings that decide the result of a run: not where its data set is stored."""
    return config.model_dump(mode="json", exclude={"data_dir", *without})


def _run_cell(cell: Cell, runs: Path | str, threads: int) -> None:
    try:
        execution.start_or_resume(cell.config, cell.folder(runs), threads=threads)
    except KLMSError as error:
        raise KLMSError(f"{cell}: {error}") from error
