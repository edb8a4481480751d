"""Work over ranges of a vector, one a thread. Kernels release the GIL, so that threads of Python are enough."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import numpy.typing as npt

_FEWEST_PER_THREAD = 20_000  # coordinates; below that a thread costs more than it saves


def over(bounds: npt.NDArray[np.int64], threads: int | None, work: Callable[..., None], *arguments: object) -> None:
    """Run `work(first, end, bounds, *arguments)` over ranges of pieces with about equally many coordinates.

    Piece `m` is `bounds[m]` to `bounds[m + 1]`. `threads` is how many there are at most; all cores by default.
    """
    pieces, d = bounds.size - 1, int(bounds[-1])
    wanted = threads or os.cpu_count() or 1
    count = max(1, min(wanted, pieces, d // _FEWEST_PER_THREAD))
    if count == 1:
        work(0, pieces, bounds, *arguments)
        return
    cuts = np.searchsorted(bounds, np.linspace(0, d, count + 1)[1:-1])
    edges = [0, *cuts.tolist(), pieces]
    with ThreadPoolExecutor(count) as pool:
        for future in [pool.submit(work, a, b, bounds, *arguments) for a, b in pairwise(edges)]:
            future.result()
