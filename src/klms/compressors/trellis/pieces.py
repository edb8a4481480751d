"""Pieces of an update, each rotated by itself. They follow the arrays of the layout, so that rates suit each array.

A region is one array with pieces of its own; the last region consists of all arrays that are too small for that. A
region is cut into pieces whose sizes are powers of two, and the remainder at its end becomes one padded piece. A
gathered vector holds the regions one after the other, with their padding.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from klms.codec import SharedKey
from klms.compressors.layout import Layout
from klms.compressors.rotation import SMALLEST, piece_holding, powers_of_two, rotate
from klms.numerics.jit import Float32, Float64, Int64, kernel
from klms.numerics.parallel import over

_BITS_OF_A_PIECE = 256  # minimum, on average: a scale estimated from fewer bits is unreliable, and costs 24 bits itself
_BITS_OF_A_LARGE_PIECE = 4096
LEAST_LARGEST = 1 << 16
"""Minimum size of the largest pieces. Pieces of this size still fit into a cache; smaller ones would only cost time."""


class Regions(NamedTuple):
    """Boundaries of the regions in a gathered vector, and each region's number of entries without padding."""

    bounds: Int64
    sizes: Int64


@dataclass(frozen=True)
class Pieces:
    """Pieces of `smallest` to `largest` entries, both powers of two; the last piece of a region may be smaller.

    >>> pieces = Pieces(Layout(("a", "b", "c"), ((40, 30), (20,), (5, 5, 60))), smallest=256, largest=1024)
    >>> [(part.start, part.stop) for part, _ in pieces.moves()]  # the small array `b` is last
    [(0, 1200), (1220, 2720), (1200, 1220)]
    >>> pieces.sizes.tolist()  # 1200 = 1024 + 176, 1500 and 20 = 1024 + 256 + 240
    [1024, 256, 1024, 256, 256]
    """

    layout: Layout
    smallest: int
    largest: int
    threads: int | None = None

    @classmethod
    def for_rate(cls, layout: Layout, rate: float, threads: int | None = None) -> "Pieces":
        largest = max(LEAST_LARGEST, piece_holding(_BITS_OF_A_LARGE_PIECE / rate))
        return cls(layout, piece_holding(_BITS_OF_A_PIECE / rate), largest, threads)

    @cached_property
    def _parts(self) -> list[list[slice]]:
        """The arrays of each region."""
        parts = [part for part in self.layout.parts if part.stop > part.start]
        large = [[part] for part in parts if part.stop - part.start >= self.smallest // 2]
        small = [part for part in parts if part.stop - part.start < self.smallest // 2]
        if large and sum(part.stop - part.start for part in small) < self.smallest // 2:
            large[-1] += small
            return large
        return [*large, small] if small else large

    @cached_property
    def _region_sizes(self) -> list[int]:
        return [sum(part.stop - part.start for part in parts) for parts in self._parts]

    @cached_property
    def _cuts(self) -> list[list[int]]:
        """The sizes of the pieces of each region."""
        return [powers_of_two(size, self.smallest, self.largest, rest=SMALLEST) for size in self._region_sizes]

    @cached_property
    def sizes(self) -> Int64:
        """The sizes of all pieces."""
        return np.array([size for cut in self._cuts for size in cut], dtype=np.int64)

    @cached_property
    def bounds(self) -> Int64:
        """Boundaries of the pieces in a gathered vector."""
        return np.cumsum([0, *self.sizes], dtype=np.int64)

    @property
    def padded(self) -> int:
        """Entries of a gathered vector."""
        return int(self.bounds[-1])

    @cached_property
    def regions(self) -> Regions:
        bounds = np.cumsum([0, *map(sum, self._cuts)], dtype=np.int64)
        return Regions(bounds, np.array(self._region_sizes, dtype=np.int64))

    def moves(self) -> Iterator[tuple[slice, slice]]:
        """Yield two slices for each array that is not empty: its place in the vector, and in the gathered vector."""
        for start, parts in zip(self.regions.bounds.tolist(), self._parts, strict=False):
            for part in parts:
                end = start + part.stop - part.start
                yield part, slice(start, end)
                start = end

    def gather(self, vector: Float32) -> Float32:
        """Return a copy of `vector` in the order of the pieces, padded with zeros."""
        out = np.zeros(self.padded, dtype=np.float32)
        for part, place in self.moves():
            out[place] = vector[part]
        return out

    def scatter(self, gathered: Float32) -> Float32:
        """Invert `gather`; no copy is made if nothing was moved."""
        if all(part == place for part, place in self.moves()):
            return gathered[: self.layout.d]
        out = np.empty(self.layout.d, dtype=np.float32)
        for part, place in self.moves():
            out[part] = gathered[place]
        return out

    def rotate(self, gathered: Float32, key: SharedKey, *, backward: bool = False) -> None:
        """Rotate every piece in place."""
        over(self.bounds, self.threads, rotate, gathered, key.words(), backward)

    def squares(self, gathered: Float32) -> Float64:
        """Return the squared norm of every piece."""
        out = np.empty(self.sizes.size)
        over(self.bounds, self.threads, _square, gathered, out)
        return out


@kernel
def _square(first: int, end: int, bounds: Int64, x: Float32, out: Float64) -> None:
    for n in range(first, end):
        piece = x[bounds[n] : bounds[n + 1]]
        out[n] = product(piece, piece)


@kernel
def product(a: Float32, b: Float32) -> float:
    """Return the inner product of two vectors, summed in order, so that it is the same on every machine."""
    total = 0.0
    for i in range(a.size):
        total += np.float64(a[i]) * np.float64(b[i])
    return total
