"""Run a method, into a folder, from the beginning or from where it stopped."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from klms.engine import local
from klms.engine.federation import Federation
from klms.engine.rounds import RoundResult
from klms.experiments.run_folder import CONFIG, RunFolder
from klms.experiments.settings import SettingsError
from klms.methods.base import State
from klms.methods.config import RunConfig

Progress = Callable[[RunConfig, Mapping[str, object]], None]
Engine = Callable[[Federation, RunConfig, State], Iterator[RoundResult]]
"""What runs the rounds."""


@dataclass(frozen=True)
class Summary:
    """A run in numbers, over all its rounds."""

    method: str
    rounds: int
    metrics: dict[str, float]
    """Of the last evaluation."""
    bits_per_parameter: float
    uplink_bytes: int
    encode_share: float
    """Part of the clients' and server's working time that encoding and decoding took."""
    seconds: float


def start(
    config: RunConfig, path: Path, *, workers: int = 1, threads: int | None = None, progress: Progress | None = None
) -> Summary:
    """A new run in `path`. `threads` of the codec in this process: all cores by default."""
    RunFolder.check_free(path)
    federation = _federation(config, threads)  # before there is a folder: what fails here leaves none behind
    return _go_on(RunFolder.create(path, config), config, federation, _local(workers), progress)


def start_or_resume(
    config: RunConfig, path: Path, *, workers: int = 1, threads: int | None = None, progress: Progress | None = None
) -> Summary:
    """Whatever `path` needs. A run that is there keeps its own settings."""
    if (path / CONFIG).exists():
        return resume(path, workers=workers, threads=threads, progress=progress)
    return start(config, path, workers=workers, threads=threads, progress=progress)


def resume(path: Path, *, workers: int = 1, threads: int | None = None, progress: Progress | None = None) -> Summary:
    """The run in `path`, from its last checkpoint; byte for byte as if it had never stopped."""
    folder = RunFolder(path)
    config = folder.config()
    return _go_on(folder, config, _federation(config, threads), _local(workers), progress)


def _federation(config: RunConfig, threads: int | None) -> Federation:
    return Federation.create(config, threads or os.cpu_count() or 1)


def serve(config: RunConfig, path: Path, engine: Engine, *, progress: Progress | None = None) -> Summary:
    """Start a run whose clients another engine runs, or go on with it. They go by `config`: the folder must agree."""
    federation = _federation(config, None)
    if (path / CONFIG).exists() and (there := RunFolder(path).config()) != config:
        odd = [name for name, value in config if value != getattr(there, name)]
        raise SettingsError(f"{path} holds a run with another {', '.join(odd)}: say the same, or another folder")
    folder = RunFolder(path) if (path / CONFIG).exists() else RunFolder.create(path, config)
    return _go_on(folder, config, federation, engine, progress)


def _local(workers: int) -> Engine:
    return lambda federation, config, state: local.run(federation, config, state, workers)


def _go_on(
    folder: RunFolder, config: RunConfig, federation: Federation, engine: Engine, progress: Progress | None
) -> Summary:
    with folder.locked():
        folder.describe(federation.description())
        state = folder.state() or federation.method.init()
        folder.rewind(state.round)
        try:
            for result in engine(federation, config, state):
                folder.append(result.record, result.state)
                if progress is not None:
                    progress(config, result.record)
        finally:
            folder.write_table()
    return summarise(folder)


def summarise(folder: RunFolder) -> Summary:
    """The ledger, added up."""
    records = list(folder.records())
    evaluated = [record for record in records if "accuracy" in record][-1]
    aggregated = [record for record in records if "passed_over" not in record]
    names = ("accuracy", "accuracy_averaged", "accuracy_of_sample", "nll", "ece", "epsilon")
    seconds: dict[str, float] = {}
    for record in records:
        for phase, value in record["seconds"].items():  # type: ignore[attr-defined]
            seconds[phase] = seconds.get(phase, 0.0) + value
    working = sum(seconds[phase] for phase in ("train", "encode", "decode", "aggregate"))
    return Summary(
        method=folder.config().method,
        rounds=len(records),
        metrics={name: float(str(evaluated[name])) for name in names if name in evaluated},
        bits_per_parameter=sum(float(str(r["bits_per_parameter"])) for r in aggregated) / max(1, len(aggregated)),
        uplink_bytes=sum(int(str(r["uplink_bytes"])) for r in records),
        encode_share=(seconds["encode"] + seconds["decode"]) / working,
        seconds=seconds["total"],
    )
