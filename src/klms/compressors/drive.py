"""DRIVE (Vargaftik et al., 2021): rotate, then send the signs and one scale per piece.

The scale `|v|^2 / |Rv|_1` makes the estimate unbiased over rotations. The message: the scales (f32 each), and one bit
per rotated coordinate.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from klms.codec import Decoded, SharedKey
from klms.compressors.base import Compressor, Side, Vector
from klms.compressors.envelope import read_scales, read_signs, unwrap, wrap, write_scales, write_signs
from klms.compressors.layout import Layout
from klms.compressors.rotation import Rotation
from klms.compressors.scheme import Scheme, Settings

_NUMBER = 10


@dataclass(frozen=True)
class Drive(Compressor):
    """One bit per parameter."""

    layout: Layout
    threads: int | None = None

    @cached_property
    def rotation(self) -> Rotation:
        return Rotation(self.d, self.threads)

    def _encode(self, update: Vector, side: Side, key: SharedKey, rng: np.random.Generator) -> bytes:
        rotated = self.rotation.apply(update, key)
        sums = self.rotation.sums(np.abs(rotated))
        squares = self.rotation.sums(rotated * rotated)
        scales = np.divide(squares, sums, out=np.zeros_like(sums), where=sums > 0)
        return wrap(_NUMBER, self.d, write_scales(scales) + write_signs(rotated >= 0), key)

    def _decode(self, message: bytes, side: Side, key: SharedKey) -> Decoded:
        scales, rest = read_scales(unwrap(message, _NUMBER, self.d, key), self.rotation.sizes.size)
        signs = read_signs(rest, self.rotation.padded)
        return Decoded(self.rotation.undo(signs * np.repeat(scales, self.rotation.sizes), key))


SCHEME = Scheme(
    name="drive",
    title="Signs after a random rotation, unbiased scale",
    reference="Vargaftik et al., NeurIPS 2021",
    settings=Settings,
    make=lambda layout, settings, threads: Drive(layout, threads),
    wire_number=_NUMBER,
)
