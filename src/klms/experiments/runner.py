"""Runs an experiment's grid: several runs at once, finished ones not again, broken ones from where they were."""

import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from klms.codec import KLMSError
from klms.engine import local
from klms.experiments import run as running
from klms.experiments.catalogue import Cell, Experiment
from klms.experiments.run_folder import CONFIG, VERSIONS, RunFolder
from klms.experiments.settings import SettingsError
from klms.methods.config import RunConfig

Report = Callable[[Cell], None]


@dataclass(frozen=True)
class Standing:
    """How far a cell is."""

    cell: Cell
    rounds: int

    @property
    def done(self) -> bool:
        """Whether its last round is behind it."""
        return self.rounds >= self.cell.config.rounds


def standing(cells: Sequence[Cell], runs: Path) -> list[Standing]:
    """Where every cell stands."""
    return [Standing(cell, RunFolder(cell.folder(runs)).rounds()) for cell in cells]


def run(cells: Sequence[Cell], runs: Path, *, workers: int, report: Report) -> None:
    """Run what is not finished, `workers` runs at a time, each in a process of its own."""
    for cell in cells:
        check(cell, runs)
    left = [place.cell for place in standing(cells, runs) if not place.done]
    threads = max(1, (os.cpu_count() or 1) // workers)
    if workers == 1:
        for cell in left:
            _run_cell(cell, runs, threads)
            report(cell)
        return
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, spawn, initializer=_start)
    try:
        futures = {pool.submit(_run_cell, cell, runs, threads): cell for cell in left}
        for future in as_completed(futures):
            future.result()
            report(futures[future])
    except BaseException:
        # Runs go on from their checkpoints, so that they may be ended in the middle; waiting could take an hour.
        for process in list((getattr(pool, "_processes", None) or {}).values()):
            process.terminate()
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def check(cell: Cell, runs: Path) -> None:
    """A folder that holds a run of other settings is not this cell's."""
    folder = RunFolder(cell.folder(runs))
    if (folder.path / CONFIG).exists() and _comparable(folder.config()) != _comparable(cell.config):
        raise SettingsError(f"{folder.path} holds a run of other settings: move it away, or choose another --runs")


def collect(experiment: Experiment, cells: Sequence[Cell], runs: Path) -> dict[str, object]:
    """The finished runs as one document: configuration, versions, every seed's numbers. No times: it is the same
    whatever machine it was made on, and however often it was interrupted.
    """
    rows: dict[str, dict[str, dict[str, object]]] = {}
    versions: object = {}
    for place in standing(cells, runs):
        if place.done:
            cell, folder = place.cell, RunFolder(place.cell.folder(runs))
            versions = json.loads((folder.path / VERSIONS).read_text())
            entry = rows.setdefault(cell.data, {}).setdefault(
                cell.row, {"config": _comparable(cell.config, ("seed",)), "seeds": {}}
            )
            summary = running.summarise(folder)
            seeds = entry["seeds"]
            assert isinstance(seeds, dict)
            seeds[str(cell.seed)] = {
                **{name: round(value, 6) for name, value in summary.metrics.items()},
                "bits_per_parameter": round(summary.bits_per_parameter, 6),
                "uplink_bytes": summary.uplink_bytes,
            }
            if experiment.series and cell.seed == 0:
                entry["series"] = {name: list(_series(folder, name)) for name in experiment.series}
                entry["layers"] = [layer["name"] for layer in folder.description()["layers"]]
    return {"experiment": experiment.name, "versions": versions, "data": rows}


def write_beside(experiment: Experiment, cells: Sequence[Cell], runs: Path) -> Path:
    """The results file of a part of an experiment, or of another profile: beside its runs."""
    path = runs / "results.json"
    path.write_text(json.dumps(collect(experiment, cells, runs), indent=1) + "\n")
    return path


def _series(folder: RunFolder, name: str) -> Iterator[object]:
    for record in folder.records():
        yield record.get(name)


def _comparable(config: RunConfig, without: Sequence[str] = ()) -> dict[str, object]:
    return config.model_dump(mode="json", exclude={"data_dir", *without})


def _start() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    local.end_with_parent()


def _run_cell(cell: Cell, runs: Path, threads: int) -> None:
    try:
        running.start_or_resume(cell.config, cell.folder(runs), threads=threads)
    except (ValueError, KLMSError) as error:
        raise SettingsError(f"{cell.row}, {cell.data}, seed {cell.seed}: {error}") from error
