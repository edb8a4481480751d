"""How klms compiles its kernels, and short names for the arrays that they take.

Kernels release the GIL and are cached on disk (see `kernel_cache.py`). They run in parallel on Python threads (see
`parallel.py`), not on Numba's own threads: Numba's default threading layer must not be entered from two Python threads
at once, as would happen in a server.

Kernels also run as plain Python (`NUMBA_DISABLE_JIT=1`) with the same results. They therefore use only operations that
mean the same in both: integers that never overflow, and float64 arithmetic without contraction. Conversions are written
as `np.float64(x)`, because Numba's `float` leaves a float32 unchanged. Related arguments are passed as a `NamedTuple`,
so that mypy notices if two are swapped.
"""

import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from numba.core import event

from klms.numerics.kernel_cache import enable_caching

P = ParamSpec("P")
R = TypeVar("R")

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int16 = npt.NDArray[np.int16]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt8 = npt.NDArray[np.uint8]
UInt16 = npt.NDArray[np.uint16]
UInt32 = npt.NDArray[np.uint32]
UInt64 = npt.NDArray[np.uint64]


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` on first use, and cache the result on disk if a cache folder is writable."""
    # Without checks for division by zero, loops with divisions vectorise; nobody calls kernels from C.
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
    compiled = numba.njit(**options)(function)
    enable_caching(compiled)
    return cast(Callable[P, R], compiled)


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` into every kernel that calls it: for innermost steps, where a function call is too slow."""
    return cast(Callable[P, R], numba.njit(inline="always")(function))


class _Announcement(event.Listener):
    """Tells a user at a terminal, once, why the first call takes long; Numba sends no event for cached kernels."""

    def __init__(self) -> None:
        self.made = False

    def on_start(self, event: Any) -> None:
        ours = event.data["dispatcher"].py_func.__module__.startswith("klms.")
        if ours and not self.made and sys.stderr.isatty():
            self.made = True
            print("klms: compiling kernels, which takes less than ten seconds, once per machine", file=sys.stderr)

    def on_end(self, event: Any) -> None:
        pass


announcement = _Announcement()
event.register("numba:compile", announcement)  # type: ignore[no-untyped-call]
