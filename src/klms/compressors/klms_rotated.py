"""The codec as a quantiser of any update, unbiased, at any rate: rotate, then take the nearest shared candidate.

After the rotation a piece, scaled to variance 1, looks like draws `z` of N(0, 1). At `R` bits a coordinate the best
that can be done (the test channel of rate-distortion theory) is `y | z ~ N(c z, 1 - c^2)` with `c^2 = 1 - 2^(-2R)` and
`y ~ N(0, 1)`: that is `q`, `p` is N(0, 1), and the codec picks the likeliest of `2^bits` shared candidates for each
block of `bits / R` coordinates. As in EDEN, the scale `|v|^2 / <Rv, y>` of a piece makes the estimate unbiased over
rotations.

The error of EDEN's scalar levels stays away from the limit `1 / (2^(2R) - 1)`, most of all below one bit, where it
drops coordinates; blocks come closer to it the more bits they have. The message: the scales (f32 each), a message of
the codec.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from klms.codec import (
    MAX_BLOCK_SIZE,
    Blocks,
    Codec,
    Gaussian,
    SharedKey,
    SideInformationMismatch,
    inspect,
)
from klms.compressors.base import Side, Stateless, Vector, checked
from klms.compressors.envelope import unwrap, wrap
from klms.compressors.rotation import Rotation, piece_holding
from klms.compressors.sections import read_scales, write_scales

MAX_RATE = 4.0
_BLOCKS_OF_A_PIECE = 16  # at least: a scale that rests on fewer may be anything


@dataclass(frozen=True)
class KLMSRotated(Stateless):
    """`rate` bits a parameter, `bits` a block; more bits a block: less error, and time that doubles with each."""

    d: int
    rate: float = 1.0
    bits: int = 10
    threads: int | None = None

    def __post_init__(self) -> None:
        most = min(MAX_RATE, self.bits)
        if not 0 < self.rate <= most:
            raise ValueError(f"rate must be above 0 and at most {most:g} (4, and the bits of a block), got {self.rate}")

    @cached_property
    def rotation(self) -> Rotation:
        """Of the vector."""
        return Rotation(self.d, self.threads, piece_holding(_BLOCKS_OF_A_PIECE * self.bits / self.rate))

    @cached_property
    def codec(self) -> Codec:
        """Which takes the likeliest candidate: no sampling, so no private randomness."""
        return Codec(bits=self.bits, selection="greedy", threads=self.threads)

    @cached_property
    def p(self) -> Gaussian:
        """N(0, 1)."""
        return Gaussian(np.zeros(self.rotation.padded, dtype=np.float32), 1.0)

    @cached_property
    def blocks(self) -> Blocks:
        """Of `bits / rate` coordinates each, as nearly as whole numbers can."""
        count = max(round(self.rotation.padded * self.rate / self.bits), -(-self.rotation.padded // MAX_BLOCK_SIZE))
        ends = np.linspace(0, self.rotation.padded, min(count, self.rotation.padded) + 1)
        return Blocks(np.round(ends).astype(np.int64))

    def encode(self, vector: Vector, side: Side, *, key: SharedKey, rng: np.random.Generator) -> bytes:
        vector = checked(vector, self.d)
        rotated = self.rotation.apply(vector, key)
        squares = self.rotation.sums(rotated * rotated)
        sizes = self.rotation.sizes
        correlation = math.sqrt(1 - 2 ** (-2 * self.rate))
        factors = np.divide(sizes, squares, out=np.zeros(sizes.size), where=squares > 0) ** 0.5 * correlation
        q = Gaussian(rotated * np.repeat(factors.astype(np.float32), sizes), 2.0**-self.rate)
        inner = self.codec.encode(q, self.p, self.blocks, key=key)
        products = self.rotation.sums(rotated * self._candidate(inner, key))
        scales = np.divide(squares, products, out=np.zeros(sizes.size), where=products > 0)
        return wrap("klms-rotated", self.d, write_scales(scales) + inner)

    def decode(self, message: bytes, side: Side, *, key: SharedKey) -> Vector:
        scales, inner = read_scales(unwrap(message, "klms-rotated", self.d), self.rotation.sizes.size)
        return self.rotation.undo(self._candidate(inner, key) * np.repeat(scales, self.rotation.sizes), key)

    def _candidate(self, inner: bytes, key: SharedKey) -> Vector:
        info = inspect(inner)
        if info.carries_blocks or info.bits != self.bits or info.scalars:
            raise SideInformationMismatch("the message has other bits or blocks than were agreed")
        return np.asarray(self.codec.decode(inner, self.p, key=key, blocks=self.blocks), dtype=np.float32)
