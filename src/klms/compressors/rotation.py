"""A random rotation that is cheap to apply and to undo: random signs, a Walsh-Hadamard transform, and both again.

After it, the coordinates of any vector look like draws of one normal distribution, which is what DRIVE and EDEN are
made for. The vector is cut into pieces whose sizes are powers of two, as large as possible up to 2^20, so that little
is padded (fewer than `smallest` entries at the very end), and each piece is rotated by itself. (With outliers, a single
transform leaves a bias of some percent in the largest entries of short vectors; two leave none that 4,000 draws show.)
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

_FIRST_SIGNS, _SECOND_SIGNS = ROTATION_STREAMS

LARGEST = 1 << 20
SMALLEST = 1 << 8
_IN_CACHE = 1 << 12


def piece_holding(coordinates: float) -> int:
    """Return the smallest piece size that holds this many coordinates."""
    return min(LARGEST, max(SMALLEST, 1 << math.ceil(math.log2(coordinates))))


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
    """Size of the shortest piece, a power of two: what a scheme sends of a piece must suffice to estimate its scale."""

    @cached_property
    def bounds(self) -> Int64:
        """Boundaries of the pieces; the last may reach beyond `d`."""
        sizes, left, size = [], self.d, LARGEST
        while left > 0:
            while size > self.smallest and size > left:
                size //= 2
            sizes.append(size)
            left -= size
        return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

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
        """Return the vector whose rotation `rotated` is; `rotated` is overwritten."""
        over(self.bounds, self.threads, rotate, rotated, key.words(), True)
        return rotated[: self.d]

    def sums(self, values: npt.NDArray[np.floating]) -> Float64:
        """Return the sum over each piece of a rotated vector."""
        return np.add.reduceat(values, self.bounds[:-1], dtype=np.float64)

    def scaled(self, rotated: Float32, factors: Float32) -> Float32:
        """Return a rotated vector with each piece multiplied by its factor."""
        return rotated * np.repeat(factors, self.sizes)


@kernel
def rotate(first: int, end: int, bounds: Int64, x: Float32, key: UInt64, backward: bool) -> None:
    """Rotate some pieces in place, or undo it."""
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


@kernel
def walsh_hadamard(x: Float32) -> None:
    """Transform in place, unscaled: parts that fit the innermost cache first, then the levels that join them."""
    part = min(_IN_CACHE, x.size)
    for start in range(0, x.size, part):
        inner = x[start : start + part]
        join_parts(inner, _eights(inner))
    join_parts(x, part)


@kernel
def _eights(x: Float32) -> int:
    """Do the first three levels without loops, which would be too short to pay; return the length of a part."""
    if x.size < 8:
        return 1
    for g in range(0, x.size, 8):
        a0, a1, a2, a3 = x[g] + x[g + 1], x[g] - x[g + 1], x[g + 2] + x[g + 3], x[g + 2] - x[g + 3]
        a4, a5, a6, a7 = x[g + 4] + x[g + 5], x[g + 4] - x[g + 5], x[g + 6] + x[g + 7], x[g + 6] - x[g + 7]
        b0, b1, b2, b3 = a0 + a2, a1 + a3, a0 - a2, a1 - a3
        b4, b5, b6, b7 = a4 + a6, a5 + a7, a4 - a6, a5 - a7
        x[g], x[g + 1], x[g + 2], x[g + 3] = b0 + b4, b1 + b5, b2 + b6, b3 + b7
        x[g + 4], x[g + 5], x[g + 6], x[g + 7] = b0 - b4, b1 - b5, b2 - b6, b3 - b7
    return 8


@kernel
def join_parts(x: Float32, half: int) -> None:
    """Do the levels above parts of size `half`, two at a time: half the memory traffic."""
    while 2 * half < x.size:
        for g in range(0, x.size, 4 * half):
            p, q = x[g : g + half], x[g + half : g + 2 * half]
            r, s = x[g + 2 * half : g + 3 * half], x[g + 3 * half : g + 4 * half]
            for k in range(half):
                a, b = p[k] + q[k], p[k] - q[k]
                c, d = r[k] + s[k], r[k] - s[k]
                p[k], q[k], r[k], s[k] = a + c, b + d, a - c, b - d
        half *= 4
    if half < x.size:
        for k in range(half):
            a, b = x[k], x[half + k]
            x[k], x[half + k] = a + b, a - b
