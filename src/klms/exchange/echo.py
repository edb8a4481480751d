"""How much of the errors of earlier steps comes back in what the next step has to code.

A step should be `d = w - w_hat`, and is `d - e`. Where a later difference holds `h_k` times the error of `k` steps ago,
noise of `v` times the energy of a step makes errors grow as soon as `v` times the sum of all `h_k^2` exceeds 1. A
strategy that keeps a model of its own has `h_1 = 1`; one with momentum may answer later, and with the other sign;
clients that learn little of a single coordinate in a round hardly answer at all.

`h_k` is the inner product of the difference and that error, over the energy of the error. Errors are kept as sketches:
sums of parts of the coordinates with random signs, whose inner products are those of the vectors but for noise. Of an
error only what is orthogonal to its step counts. A scale that is too small leaves a part of the step in the error, and
the next difference may well be similar to the last.

Noise may also come back in other directions, which no sketch shows: `step_length.py` is about that.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from klms.compressors.base import Vector
from klms.compressors.trellis import product
from klms.numerics.jit import Float32, Float64

SIZE = 4096
LAGS = 8
_STEPS = 256
_PIECE = 64 * SIZE  # entries at a time
_NOISE = 9.0  # variances of a measured share: no more than that may be noise


@dataclass(frozen=True)
class Echo:
    """Sketches of the errors of the last steps, the latest first, one per row."""

    sketches: Float32 = field(default_factory=lambda: np.zeros((0, SIZE), dtype=np.float32))

    @classmethod
    def of(cls, sketches: npt.NDArray[np.generic]) -> "Echo":
        """Return the sketches in an array from outside; raise a `ValueError` if it is another."""
        return cls(sketches.astype(np.float32).reshape(-1, SIZE))

    def share_in(self, difference: Vector) -> float:
        """Return the share of earlier errors that this difference holds, from 0 to 1.

        For errors that are undone bit by bit, `h_k = c (1 - c)^(k - 1)`, it is `c`, which is both the largest of them
        and `2 s / (1 + s)` for the sum `s` of their squares. For others it is the larger of these two.
        """
        own, sketches = sketch(difference), self.sketches.astype(np.float64)
        energies = np.square(sketches).sum(axis=1)
        known = sketches[energies > 0]
        energies = energies[energies > 0]
        shares = (known @ own) / energies
        noise = _NOISE * float(own @ own) / (energies * SIZE)
        squares = np.maximum(np.square(shares) - noise, 0)
        total = float(squares.sum())
        share = min(1.0, max(math.sqrt(np.max(squares, initial=0.0)), 2 * total / (1 + total)))
        return round(share * _STEPS) / _STEPS  # so that no last bit of a sum changes a byte

    def then(self, difference: Vector, step: Vector) -> "Echo":
        """Return the sketches after a step that should have been `difference`."""
        error, energy = difference - step, product(difference, difference)
        if energy > 0:
            error -= np.float32(product(error, difference) / energy) * difference
        latest = sketch(error).astype(np.float32)[None]
        return Echo(np.concatenate([latest, self.sketches[: LAGS - 1]]))


def sketch(vector: Vector) -> Float64:
    """Return sums of `SIZE` parts of a vector, each entry with a sign that depends on its place alone.

    >>> x = np.ones(5000, dtype=np.float32)
    >>> bool(abs(sketch(x) @ sketch(x) / 5000 - 1) < 0.2)
    True
    """
    out, rng = np.zeros(SIZE), np.random.default_rng(0x5E7C)
    for start in range(0, vector.size, _PIECE):
        part = vector[start : start + _PIECE].astype(np.float64)
        plus = np.unpackbits(np.frombuffer(rng.bytes(_PIECE // 8), dtype=np.uint8), count=part.size)
        np.negative(part, out=part, where=plus == 0)
        whole = part.size // SIZE * SIZE
        out += part[:whole].reshape(-1, SIZE).sum(axis=0)
        out[: part.size - whole] += part[whole:]
    return out
