"""Multithreaded work on ranges of a vector. Kernels release the GIL, so Python threads suffice."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Concatenate, ParamSpec

import numpy as np

from klms.numerics.jit import Int64

P = ParamSpec("P")

_MIN_COORDINATES_PER_THREAD = 20_000  # with fewer, starting a thread costs more than it saves


def over(
    bounds: Int64,
    threads: int | None,
    work: Callable[Concatenate[int, int, Int64, P], None],
    *arguments: P.args,
    **keywords: P.kwargs,
) -> None:
    """Run `work(first, end, bounds, *arguments)` on ranges of pieces that hold about equally many coordinates.

    Piece `m` extends from `bounds[m]` to `bounds[m + 1]`. At most `threads` threads are used; by default, one per core.
    """
    pieces, d = bounds.size - 1, int(bounds[-1])
    wanted = threads or os.cpu_count() or 1
    count = max(1, min(wanted, pieces, d // _MIN_COORDINATES_PER_THREAD))
    if count == 1:
        work(0, pieces, bounds, *arguments, **keywords)
        return
    cuts = np.searchsorted(bounds, np.linspace(0, d, count + 1)[1:-1])
    edges = [0, *cuts.tolist(), pieces]
    with ThreadPoolExecutor(count) as pool:
        for future in [pool.submit(work, a, b, bounds, *arguments, **keywords) for a, b in pairwise(edges)]:
            future.result()
