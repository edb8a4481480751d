"""Top-k: the largest entries by magnitude, and nothing of the others. What most people would try first.

It is biased: use it with error feedback (Stich et al., 2018), where a client adds what it could not send to its next
update. The message: the number of entries (u32), the largest magnitude (f32), the magnitudes as fractions of it (f16
each), then where they are and their signs, range-coded.
"""

import math
from dataclasses import dataclass

import numpy as np

from klms.codec import CorruptMessage, SharedKey
from klms.compressors.base import Side, Stateless, Vector, checked
from klms.compressors.envelope import unwrap, wrap
from klms.compressors.layout import Layout
from klms.compressors.sections import read_scales, write_scales
from klms.compressors.symbols import read_symbols, write_symbols


@dataclass(frozen=True)
class TopK(Stateless):
    """`keep` is the share of entries that is sent."""

    layout: Layout
    keep: float = 0.01

    def encode(self, vector: Vector, side: Side, *, key: SharedKey, rng: np.random.Generator) -> bytes:
        vector = checked(vector, self.layout.d)
        count = max(1, math.ceil(self.keep * vector.size))
        places = np.sort(np.argpartition(np.abs(vector), vector.size - count)[vector.size - count :])
        places = places[vector[places] != 0]
        symbols = np.zeros(vector.size, dtype=np.uint8)
        symbols[places] = np.where(vector[places] < 0, 2, 1)
        magnitudes = np.abs(vector[places])
        largest = magnitudes.max(initial=0.0)
        fractions = (magnitudes / (largest or 1.0)).astype("<f2")
        head = np.uint32(places.size).tobytes() + write_scales(np.array([largest])) + fractions.tobytes()
        return wrap("topk", self.layout.d, head + write_symbols(self.layout, symbols, 3))

    def decode(self, message: bytes, side: Side, *, key: SharedKey) -> Vector:
        payload = unwrap(message, "topk", self.layout.d)
        count = int.from_bytes(payload[:4], "little")
        (largest,), rest = read_scales(payload[4:], 1)
        if len(rest) < 2 * count:
            raise CorruptMessage(f"{len(rest)} bytes do not hold {count} magnitudes")
        fractions = np.frombuffer(rest[: 2 * count], dtype="<f2").astype(np.float32)
        if not ((fractions >= 0) & (fractions <= 1)).all():
            raise CorruptMessage("a magnitude is not a number it can be")
        symbols = read_symbols(self.layout, rest[2 * count :], 3)
        places = np.flatnonzero(symbols)
        if places.size != count:
            raise CorruptMessage(f"{places.size} places for {count} magnitudes")
        vector = np.zeros(self.layout.d, dtype=np.float32)
        vector[places] = np.array([0, 1, -1], dtype=np.float32)[symbols[places]] * fractions * largest
        return vector
