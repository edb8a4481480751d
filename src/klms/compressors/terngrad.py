"""TernGrad (Wen et al., 2017): `s sign(v) Bern(|v| / s)` with `s = max |v|` of the layer, range-coded.

Entries beyond `clip` root mean squares of their layer are clipped first: otherwise, one outlier silences all other
entries of its layer. (The authors use the standard deviation instead. For updates of mean zero, both are the same, but
the standard deviation of a layer of one entry is 0.) The message: `s` of every layer (f32 each), the symbols.
"""

from dataclasses import dataclass

import numpy as np
from pydantic import Field

from klms.codec import Decoded, SharedKey
from klms.compressors.base import Compressor, Side, Vector
from klms.compressors.envelope import read_scales, unwrap, wrap, write_scales
from klms.compressors.layout import Layout
from klms.compressors.scheme import Scheme, Settings
from klms.compressors.symbols import read_symbols, write_symbols

_NUMBER = 5


class TernGradSettings(Settings):
    """Settings of TernGrad."""

    tern_clip: float = Field(
        2.5, ge=0, description="TernGrad: clip at this many root mean squares of the layer; 0 for no clipping."
    )


@dataclass(frozen=True)
class TernGrad(Compressor):
    """Ternary entries; a `clip` of 0 clips nothing."""

    layout: Layout
    clip: float = 2.5

    def _encode(self, update: Vector, side: Side, key: SharedKey, rng: np.random.Generator) -> bytes:
        scales = np.zeros(len(self.layout.parts), dtype=np.float32)
        symbols = np.empty(update.size, dtype=np.uint8)
        for n, part in enumerate(self.layout.parts):
            piece = update[part]
            if not piece.size:
                continue
            if self.clip:
                most = self.clip * np.sqrt(np.mean(np.square(piece, dtype=np.float64))).astype(np.float32)
                piece = np.clip(piece, -most, most)
            scales[n] = np.abs(piece).max()
            sent = rng.random(piece.size, dtype=np.float32) * scales[n] < np.abs(piece)
            symbols[part] = np.where(sent, np.where(piece < 0, 2, 1), 0)
        return wrap(_NUMBER, self.d, write_scales(scales) + write_symbols(self.layout, symbols, 3), key)

    def _decode(self, message: bytes, side: Side, key: SharedKey) -> Decoded:
        scales, section = read_scales(unwrap(message, _NUMBER, self.d, key), len(self.layout.parts))
        symbols = read_symbols(self.layout, section, 3)
        values = np.array([0, 1, -1], dtype=np.float32)[symbols]
        return Decoded(values * np.repeat(scales, self.layout.sizes))


SCHEME = Scheme(
    name="terngrad",
    title="Ternary entries scaled by the layer's largest, range-coded",
    reference="Wen et al., NeurIPS 2017",
    settings=TernGradSettings,
    make=lambda layout, settings, threads: TernGrad(layout, settings.tern_clip),
    unbiased=lambda settings: settings.tern_clip == 0,
    operating_points=({"tern_clip": 0}, {"tern_clip": 2.5}),
    wire_number=_NUMBER,
)
