"""Follow runs by their ledgers, which get a line after every round, whichever process trains them."""

import statistics
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from klms.engine.ledger import LedgerRecord, seconds_per_round
from klms.errors import RunFolderError
from klms.experiments.catalogue import Cell
from klms.runs.run_files import METRICS
from klms.runs.run_folder import RunFolder

SECONDS = 1.0
"""Time between two looks: a round is shown at most this late, and a look costs one `stat` per run."""


@dataclass(frozen=True)
class CompletedRound:
    """A round of a cell that is complete."""

    cell: Cell
    records: list[LedgerRecord]
    """Those of all rounds of the run so far; the last is that of this round."""
    seconds_left: float
    """Estimate for all cells together."""


Progress = Callable[[CompletedRound], None]


class _Followed:
    """A cell, and its ledger as far as it is known."""

    def __init__(self, cell: Cell, runs: Path) -> None:
        self.cell = cell
        self.records: list[LedgerRecord] = []
        self._folder = RunFolder(cell.folder(runs))
        self._size = 0

    def read(self) -> list[LedgerRecord]:
        """Read the ledger if its size has changed, and return the records that are new."""
        ledger = self._folder.path / METRICS
        size = ledger.stat().st_size if ledger.exists() else 0
        if size == self._size:
            return []
        self._size = size
        known = len(self.records)
        with suppress(RunFolderError):  # whoever trains there will tell
            self.records, _ = self._folder.read_ledger()
        return self.records[known:]

    @property
    def rounds_left(self) -> int:
        return max(0, self.cell.config.rounds - len(self.records))

    @property
    def seconds_per_round(self) -> float | None:
        return seconds_per_round(self.records)


class Watch:
    """A thread that looks at the ledgers of cells and reports the rounds that were added since its start."""

    def __init__(self, cells: Sequence[Cell], runs: Path, workers: int, progress: Progress | None) -> None:
        self._followed = [_Followed(cell, runs) for cell in cells]
        self._workers = workers
        self._progress = progress
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_repeatedly, daemon=True)
        for one in self._followed:
            one.read()

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> None:
        """Report the rounds that are new."""
        if self._progress is None:
            return
        with self._lock:
            new = [(one, len(one.read())) for one in self._followed]
            left = self.seconds_left()
            for one, count in new:
                done = len(one.records)
                for rounds in range(done - count + 1, done + 1):
                    self._progress(CompletedRound(one.cell, one.records[:rounds], left))

    def seconds_left(self) -> float:
        """Estimate how long all cells take: as fast as they were so far, others as fast as those on the same data."""
        jobs = [one.rounds_left * self._pace(one) for one in self._followed]
        return max(max(jobs, default=0.0), sum(jobs) / self._workers)

    def _pace(self, wanted: _Followed) -> float:
        if wanted.seconds_per_round is not None:
            return wanted.seconds_per_round
        known = {one: one.seconds_per_round for one in self._followed}
        on_same_data = [pace for one, pace in known.items() if pace and one.cell.data == wanted.cell.data]
        on_any_data = [pace for pace in known.values() if pace]
        return statistics.fmean(on_same_data or on_any_data or [0.0])

    def _look_repeatedly(self) -> None:
        while not self._ended.wait(SECONDS):
            self.look()
