"""Multithreaded work on items and on ranges of a vector. Kernels release the GIL, so Python threads suffice."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np

from klms.numerics.jit import Int64

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")

Progress = Callable[[int, int], None]
"""Called in the waiting thread with the number of finished steps and their total number; an exception ends the work."""

_MIN_COORDINATES_PER_THREAD = 20_000  # with fewer, starting a thread costs more than it saves


def cores() -> int:
    """Return the number of cores that this process may use; in a container or a batch job, that may not be all."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def each(work: Callable[[T], R], items: list[T], threads: int | None, progress: Progress | None = None) -> list[R]:
    """Apply `work` to all items, on at most `threads` threads; by default, one per core."""
    if len(items) == 1 or threads == 1:
        return _gathered(map(work, items), len(items), progress)
    with ThreadPoolExecutor(threads or cores()) as pool:
        return _gathered(pool.map(work, items), len(items), progress)


def _gathered(results: Iterator[R], total: int, progress: Progress | None) -> list[R]:
    gathered = []
    for result in results:
        gathered.append(result)
        if progress is not None:
            progress(len(gathered), total)
    return gathered


def over(
    bounds: Int64,
    threads: int | None,
    work: Callable[Concatenate[int, int, Int64, P], None],
    *arguments: P.args,
    **keywords: P.kwargs,
) -> None:
    """Run `work(first, end, bounds, *arguments)` on ranges of pieces with about equally many coordinates each.

    Piece `m` extends from `bounds[m]` to `bounds[m + 1]`. At most `threads` threads are used; by default, one per core.
    """
    pieces, d = bounds.size - 1, int(bounds[-1])
    count = max(1, min(threads or cores(), pieces, d // _MIN_COORDINATES_PER_THREAD))
    cuts = np.searchsorted(bounds, np.linspace(0, d, count + 1)[1:-1])
    ranges = list(pairwise([0, *cuts.tolist(), pieces]))
    each(lambda ends: work(*ends, bounds, *arguments, **keywords), ranges, count)
