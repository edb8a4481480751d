"""Follow runs by their ledgers: a ledger gets a line after every round, whichever process trains the run."""

import statistics
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Self

from klms.engine.ledger import LedgerRecord, seconds_per_round
from klms.engine.stopping import rounds_left
from klms.errors import RunFolderError
from klms.experiments.catalogue import Cell
from klms.runs.run_files import METRICS

SECONDS = 1.0
"""Seconds between two looks at the ledgers: a round is shown at most this late, and a look costs one `stat` per run."""

OnCellRound = Callable[[Cell, list[LedgerRecord], float], None]
"""Called for every new round of a cell, with the records of its run up to that round, and with an estimate of the
seconds that all cells together will still take."""


class _Followed:
    """A cell, and its ledger as far as it has been read."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.records: list[LedgerRecord] = []
        self._size = 0

    def read(self) -> int:
        """Read the ledger if its size has changed, and return how many records were known before."""
        known = len(self.records)
        ledger = self.cell.folder.path / METRICS
        size = ledger.stat().st_size if ledger.exists() else 0
        if size != self._size:
            self._size = size
            with suppress(RunFolderError):  # the process that trains there reports it
                self.records, _ = self.cell.folder.read_ledger()
        return known


class Watch:
    """A thread that looks at the ledgers of cells and reports the rounds that were added since its start."""

    def __init__(self, cells: Sequence[Cell], workers: int, progress: OnCellRound) -> None:
        self._followed = [_Followed(cell) for cell in cells]
        self._workers = workers
        self._progress = progress
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_repeatedly, daemon=True)
        for one in self._followed:
            one.read()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()

    def look(self) -> None:
        """Report new rounds."""
        with self._lock:
            known = [one.read() for one in self._followed]
            left = self._seconds_left()
            for one, before in zip(self._followed, known, strict=True):
                for rounds in range(before + 1, len(one.records) + 1):
                    self._progress(one.cell, one.records[:rounds], left)

    def _seconds_left(self) -> float:
        """Estimate the remaining seconds.

        A cell that has not begun is assumed to be as fast as the others on average.
        """
        paces = [seconds_per_round(one.records) for one in self._followed]
        usual = statistics.fmean([pace for pace in paces if pace] or [0.0])
        jobs = [
            rounds_left(one.records, one.cell.config) * (pace or usual)
            for one, pace in zip(self._followed, paces, strict=True)
        ]
        return max(max(jobs, default=0.0), sum(jobs) / self._workers)

    def _look_repeatedly(self) -> None:
        while not self._ended.wait(SECONDS):
            self.look()
