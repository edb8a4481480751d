"""Run the grid of an experiment: several runs at a time; complete runs are skipped and interrupted ones are resumed."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from klms.data import check_source
from klms.engine.workers import pool_of
from klms.errors import KLMSError
from klms.experiments.catalogue import Cell
from klms.experiments.watch import OnCellRound, Watch
from klms.numerics.parallel import cores
from klms.runs import execution

INSTRUCTIONS = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
"""Environment variables that say which instructions of the processor torch uses, and their values in experiments."""


def run_cells(
    cells: Sequence[Cell],
    *,
    workers: int,
    report: Callable[[Cell], None],
    progress: OnCellRound = lambda cell, records, seconds_left: None,
) -> None:
    """Run the cells that are not complete: `workers` at a time in other processes, or one at a time in this process.

    `progress` is called after every round and `report` at the end of every run.
    """
    left = [cell for cell in cells if not cell.complete]
    for cell in left:
        check_source(cell.data, folder=cell.config.data_dir)  # a run that cannot begin should fail now, not after hours
    workers = max(1, min(workers, len(left)))
    run = partial(_run_cell, threads=max(1, cores() // workers))

    with _same_digits_everywhere(), Watch(cells, workers, progress) as watch:
        if workers == 1:
            for cell in left:
                run(cell)
                watch.look()
                report(cell)
            return
        # Runs can be resumed, so those under way may be stopped at any moment when another run fails.
        with pool_of(workers) as pool:
            for position, _ in pool.as_completed(run, left):
                watch.look()
                report(left[position])


@contextmanager
def _same_digits_everywhere() -> Iterator[None]:
    """Let torch compute with no more than AVX2, which nearly all x86-64 processors have.

    With other instructions, the last digits of a gradient differ, and after some rounds all digits do. On processors
    with AVX-512, training therefore takes a third longer. If the user has set one of the variables, nothing is changed.
    """
    if not _has_avx2() or os.environ.keys() & INSTRUCTIONS.keys():
        yield
        return
    os.environ.update(INSTRUCTIONS)
    try:
        yield
    finally:
        for name in INSTRUCTIONS:
            del os.environ[name]


def _has_avx2() -> bool:
    """Return whether the processor is known to have AVX2; without it, torch would stop at an illegal instruction."""
    try:
        return "avx2" in Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return False


def _run_cell(cell: Cell, threads: int) -> None:
    try:
        execution.start_or_resume(cell.config, cell.folder.path, threads=threads)
    except KLMSError as error:
        raise KLMSError(f"{cell}: {error}") from error
