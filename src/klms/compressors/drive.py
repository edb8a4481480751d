"""DRIVE (Vargaftik et al., 2021): rotate, send the signs and one scale a piece.

The scale `|v|^2 / |Rv|_1` makes the estimate unbiased over rotations; `|Rv|_1 / n` makes one vector's error least.
The message: the scales (f32 each), a bit for every rotated coordinate.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from klms.codec import SharedKey
from klms.compressors.base import Side, Stateless, Vector, checked
from klms.compressors.envelope import unwrap, wrap
from klms.compressors.rotation import Rotation
from klms.compressors.sections import read_scales, read_signs, write_scales, write_signs


@dataclass(frozen=True)
class Drive(Stateless):
    """One bit a parameter."""

    d: int
    unbiased: bool = True
    threads: int | None = None

    @cached_property
    def rotation(self) -> Rotation:
        """Of the vector."""
        return Rotation(self.d, self.threads)

    def encode(self, vector: Vector, side: Side, *, key: SharedKey, rng: np.random.Generator) -> bytes:
        vector = checked(vector, self.d)
        rotated = self.rotation.apply(vector, key)
        sums = self.rotation.sums(np.abs(rotated))
        if self.unbiased:
            squares = self.rotation.sums(rotated * rotated)
            scales = np.divide(squares, sums, out=np.zeros_like(sums), where=sums > 0)
        else:
            scales = sums / self.rotation.sizes
        return wrap("drive", self.d, write_scales(scales) + write_signs(rotated >= 0))

    def decode(self, message: bytes, side: Side, *, key: SharedKey) -> Vector:
        scales, rest = read_scales(unwrap(message, "drive", self.d), self.rotation.sizes.size)
        signs = read_signs(rest, self.rotation.padded)
        return self.rotation.undo(signs * np.repeat(scales, self.rotation.sizes), key)
