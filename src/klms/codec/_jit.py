"""The one way in which klms compiles a kernel.

Kernels release the GIL and are cached on disk. Parallelism is a thread pool over ranges of blocks (see `codec.py`)
and not Numba's own, whose default layer may not be entered from two Python threads at once, as servers do.

Kernels also run as plain Python (`NUMBA_DISABLE_JIT=1`) with the same results, so they keep to operations that mean
the same in both: float64 arithmetic without contraction (`np.float64(x)`, as Numba's `float` leaves a float32 what it
is), and integers that never overflow.
"""

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import numba

P = ParamSpec("P")
R = TypeVar("R")


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` on first use; keep the result on disk if any place for that can be written to."""
    try:
        compiled = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # "no locator available": neither the package's folder nor the user's cache is writable
        compiled = numba.njit(nogil=True)(function)
    return cast(Callable[P, R], compiled)


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` into each kernel that calls it: for the innermost steps, where a call would show."""
    return cast(Callable[P, R], numba.njit(inline="always")(function))
