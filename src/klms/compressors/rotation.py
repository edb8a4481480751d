"""A random rotation that is cheap to apply and to undo: random signs, a Walsh-Hadamard transform, and both again.

After the rotation, the coordinates of any vector look like draws from one normal distribution, for which DRIVE and EDEN
are designed. The vector is cut into pieces, and each piece is rotated by itself. The sizes of pieces are powers of two,
as large as possible up to 2^20, so that little padding is needed (fewer than `smallest` entries at the very end). (If a
short vector has outliers, a single transform leaves a bias of a few percent in its largest entries; after two
transforms, 4,000 draws show no bias.)
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from klms.codec import SharedKey
from klms.numerics.jit import Float32, Float64, Int64, UInt64, kernel
from klms.numerics.parallel import over
from klms.numerics.philox import ROTATION_STREAMS, buffer_size, words
from klms.numerics.walsh_hadamard import walsh_hadamard

_FIRST_SIGNS, _SECOND_SIGNS = ROTATION_STREAMS

LARGEST = 1 << 20
SMALLEST = 1 << 8


def piece_holding(coordinates: float) -> int:
    """Return the smallest piece size that holds this many coordinates."""
    return min(LARGEST, max(SMALLEST, 1 << math.ceil(math.log2(coordinates))))


def powers_of_two(size: int, smallest: int, largest: int, rest: int) -> list[int]:
    """Return descending sizes of pieces for `size` entries; a last, padded piece has at least `rest` entries."""
    sizes, piece = [], largest
    while size >= smallest:
        while piece > size:
            piece //= 2
        sizes.append(piece)
        size -= piece
    return [*sizes, max(rest, 1 << (size - 1).bit_length())] if size else sizes


@dataclass(frozen=True)
class Rotation:
    """Rotates vectors of `d` entries into vectors of `padded` entries, the same for all who hold the key.

    >>> rotation = Rotation(1000)
    >>> np.diff(rotation.bounds).tolist()  # 512 + 256 + 232 and 24 of padding
    [512, 256, 256]
    >>> x = np.arange(1000, dtype=np.float32)
    >>> y = rotation.apply(x, SharedKey(1, 2, 3))
    >>> bool(np.isclose(y @ y, x @ x)), bool(np.allclose(rotation.undo(y, SharedKey(1, 2, 3)), x, atol=1e-3))
    (True, True)
    """

    d: int
    threads: int | None = None
    smallest: int = SMALLEST
    """Size of the shortest piece, a power of two: a scheme must send enough of each piece to estimate its scale."""

    @cached_property
    def bounds(self) -> Int64:
        """Boundaries of the pieces; the last may reach beyond `d`."""
        return np.cumsum([0, *powers_of_two(self.d, self.smallest, LARGEST, rest=self.smallest)], dtype=np.int64)

    @property
    def padded(self) -> int:
        return int(self.bounds[-1])

    @property
    def sizes(self) -> Int64:
        return np.diff(self.bounds)

    def apply(self, vector: Float32, key: SharedKey) -> Float32:
        out = np.zeros(self.padded, dtype=np.float32)
        out[: self.d] = vector
        over(self.bounds, self.threads, rotate, out, key.words(), False)
        return out

    def undo(self, rotated: Float32, key: SharedKey) -> Float32:
        """Return the vector whose rotation is `rotated`; `rotated` is overwritten."""
        over(self.bounds, self.threads, rotate, rotated, key.words(), True)
        return rotated[: self.d]

    def sums(self, values: npt.NDArray[np.floating]) -> Float64:
        """Return the sum of the values in each piece."""
        return np.add.reduceat(values, self.bounds[:-1], dtype=np.float64)


@kernel
def rotate(first: int, end: int, bounds: Int64, x: Float32, key: UInt64, backward: bool) -> None:
    """Rotate the pieces `first <= n < end` in place, or undo their rotation if `backward`."""
    for n in range(first, end):
        piece = x[bounds[n] : bounds[n + 1]]
        if not backward:
            _flip(piece, bounds[n], _FIRST_SIGNS, key)
        walsh_hadamard(piece)
        _flip(piece, bounds[n], _SECOND_SIGNS, key)
        walsh_hadamard(piece)
        if backward:
            _flip(piece, bounds[n], _FIRST_SIGNS, key)
        piece *= np.float32(1 / piece.size)


@kernel
def _flip(piece: Float32, place: int, stream: int, key: UInt64) -> None:
    """Flip the sign of coordinate `i` of the padded vector if bit `i mod 16` of shared word `i div 16` is set."""
    count = (piece.size + 15) // 16
    # Pieces begin at multiples of 256, so none shares a word with another.
    drawn = words(np.empty(buffer_size(count), dtype=np.uint64), place // 16, count, stream, key)
    for w in range(count):
        bits = int(drawn[w])
        part = piece[16 * w : 16 * w + 16]
        for k in range(part.size):
            if (bits >> k) & 1:
                part[k] = -part[k]
