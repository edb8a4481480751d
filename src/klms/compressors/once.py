"""A value that is computed once per round, although every message of the round needs it."""

from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")
Source = npt.NDArray[np.generic]


class Once(Generic[T]):
    """Remembers the last value made, for as long as it is asked for with the very same array."""

    def __init__(self) -> None:
        self._held: tuple[Source, T] | None = None

    def __call__(self, source: Source, make: Callable[[Source], T]) -> T:
        """Return `make(source)`, computed anew only when `source` is another object than last time."""
        held = self._held  # read and written whole, so that no other thread sees a value with another's source
        if held is None or held[0] is not source:
            self._held = held = source, make(source)
        return held[1]
