"""Execute a run, from the beginning or from its last checkpoint, with any engine."""

from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from klms.engine import ledger, local, stopping
from klms.engine.federation import Federation
from klms.engine.ledger import LedgerRecord, Shown
from klms.engine.rounds import Results
from klms.errors import RunFolderError
from klms.methods.state import State
from klms.methods.table import RunConfig
from klms.numerics.parallel import cores
from klms.runs.run_folder import RunFolder

OnRound = Callable[[RunConfig, LedgerRecord], None]
"""Called after every round."""
Engine = Callable[[Federation, RunConfig, State], Results]
"""Executes the rounds that follow a state."""


@dataclass(frozen=True)
class Summary:
    """A run in numbers, over all its rounds; the metrics are those of the last evaluation."""

    method: str
    rounds: int
    metrics: dict[str, float]
    bits_per_parameter: float
    """Bits per parameter of the uplink, averaged over rounds."""
    uplink_bytes: int
    """Bytes that all clients sent."""
    downlink_bytes: int
    """Bytes that were sent to all clients."""
    total_bytes: int
    times_smaller_up: float | None
    """How many times smaller the uplink is than float32."""
    times_smaller_total: float | None
    """How many times smaller both directions together are than they would be in float32."""
    coding_share: float | None
    seconds: float

    @classmethod
    def of(cls, method: str, records: Sequence[LedgerRecord]) -> Self:
        evaluated = ledger.last_evaluated(records)
        return cls(
            method=method,
            rounds=len(records),
            metrics=evaluated.shown(Shown.IN_SUMMARY) if evaluated else {},
            bits_per_parameter=ledger.bits_per_parameter(records),
            uplink_bytes=ledger.uplink_bytes(records),
            downlink_bytes=ledger.downlink_bytes(records),
            total_bytes=ledger.total_bytes(records),
            times_smaller_up=ledger.times_smaller_up(records),
            times_smaller_total=ledger.times_smaller_total(records),
            coding_share=ledger.coding_share(records),
            seconds=ledger.seconds_by_phase(records).get("total", 0.0),
        )


def local_engine(workers: int) -> Engine:
    """Return the engine that trains clients in this process, or in `workers` processes."""
    return lambda federation, config, state: local.run(federation, config, state, workers)


def summarise(folder: RunFolder) -> Summary:
    """Summarise the run in a folder."""
    return Summary.of(folder.config().method, list(folder.records()))


def start_or_resume(
    config: RunConfig,
    path: Path | str,
    *,
    workers: int = 1,
    threads: int | None = None,
    progress: OnRound | None = None,
) -> Summary:
    """Resume the run in `path` with its own settings, or start one there, on the local engine.

    The bytes of a resumed run are those of a run that never stopped. The codec uses `threads` threads in this
    process, by default one per core.
    """
    if RunFolder(path).exists():
        config = RunFolder(path).config()
    federation = Federation.create(config, threads or cores())
    # The folder is made last, so that a failure leaves none behind.
    return serve(federation, config, path, local_engine(workers), progress=progress)


def serve(
    federation: Federation, config: RunConfig, path: Path | str, engine: Engine, *, progress: OnRound | None = None
) -> Summary:
    """Start or resume a run on an engine of another program. A folder that exists must be of the same run."""
    folder = RunFolder.open_or_create(path, config, federation.description)
    _, records = execute(federation, config, engine, folder=folder, progress=progress)
    return Summary.of(config.method, records)


def execute(
    federation: Federation,
    config: RunConfig,
    engine: Engine,
    *,
    folder: RunFolder | None = None,
    progress: OnRound | None = None,
) -> tuple[State, list[LedgerRecord]]:
    """Execute the remaining rounds, resuming from and writing to the folder; return the final state and all records."""
    with folder.locked() if folder else nullcontext():
        state = federation.method.init()
        records: list[LedgerRecord] = []
        if folder:
            state = folder.resume() or state
            folder.describe(federation.description)
            records = list(folder.records())
        try:
            with closing(engine(federation, config, state)) as results:
                while not stopping.complete(records, config):
                    result = next(results)
                    state = result.state
                    records.append(result.record)
                    if folder:
                        folder.append(result.record, state)
                    if progress:
                        progress(config, result.record)
        except BaseException:
            with suppress(RunFolderError):  # on a full disk, the first error says what happened
                if folder:
                    folder.write_table()
            raise
        if folder:
            folder.write_table()
    return state, records
