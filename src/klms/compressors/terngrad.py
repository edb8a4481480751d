"""TernGrad (Wen et al., 2017): `s sign(v) Bern(|v| / s)` with `s = max |v|` of the layer, range-coded.

Entries beyond `clip` root mean squares of their layer are clipped first: without that, one outlier silences all others
of a layer. (Its authors take the standard deviation, which is the same for updates without a mean, and 0 for a layer of
one entry.) The message: `s` of every layer (f32 each), the symbols.
"""

from dataclasses import dataclass

import numpy as np

from klms.codec import SharedKey
from klms.compressors.base import Side, Stateless, Vector, checked
from klms.compressors.envelope import unwrap, wrap
from klms.compressors.layout import Layout
from klms.compressors.sections import read_scales, write_scales
from klms.compressors.symbols import read_symbols, write_symbols


@dataclass(frozen=True)
class TernGrad(Stateless):
    """`clip` 0 clips nothing."""

    layout: Layout
    clip: float = 2.5

    def encode(self, vector: Vector, side: Side, *, key: SharedKey, rng: np.random.Generator) -> bytes:
        vector = checked(vector, self.layout.d)
        scales = np.zeros(len(self.layout.parts), dtype=np.float32)
        symbols = np.empty(vector.size, dtype=np.uint8)
        for n, part in enumerate(self.layout.parts):
            piece = vector[part]
            if self.clip:
                most = self.clip * np.sqrt(np.mean(np.square(piece, dtype=np.float64))).astype(np.float32)
                piece = np.clip(piece, -most, most)
            scales[n] = np.abs(piece).max()
            sent = rng.random(piece.size, dtype=np.float32) * scales[n] < np.abs(piece)
            symbols[part] = np.where(sent, np.where(piece < 0, 2, 1), 0)
        return wrap("terngrad", self.layout.d, write_scales(scales) + write_symbols(self.layout, symbols, 3))

    def decode(self, message: bytes, side: Side, *, key: SharedKey) -> Vector:
        scales, section = read_scales(unwrap(message, "terngrad", self.layout.d), len(self.layout.parts))
        symbols = read_symbols(self.layout, section, 3)
        values = np.array([0, 1, -1], dtype=np.float32)[symbols]
        return values * np.repeat(scales, self.layout.sizes)
