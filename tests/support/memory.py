"""How much memory something takes."""

import ctypes
from collections.abc import Callable

from klms.benchmarks.codec import peak_extra_bytes

_MMAP_THRESHOLD, _SMALLEST, _LARGEST = -3, 1 << 20, 1 << 25


def extra_bytes(work: Callable[[], object]) -> int:
    """Return the peak of memory, the least of three since other threads add to it; 0 where it cannot be measured.

    Large arrays get pages of their own for as long. In a process that has freed many, they would come from a heap with
    holes, whose size depends on everything that ran before.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda name, value: None)
    mallopt(_MMAP_THRESHOLD, _SMALLEST)
    try:
        return min(peak_extra_bytes(work) or 0 for _ in range(3))
    finally:
        mallopt(_MMAP_THRESHOLD, _LARGEST)
