"""Arrays that count for more than others of the same size: they are scaled up before they are coded.

A compressor gives its bits to what is large. Where the size of an array does not say how much it matters, a power of
two for each array does: the error of what is scaled up by 2 is a fourth of what it would be beside the others. Powers
of two change no digit of a float32, so that scaling itself loses nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from klms.codec import Decoded, SharedKey
from klms.compressors.base import Compressor, Side, Vector, check_decoded, check_update
from klms.compressors.layout import Layout
from klms.errors import CorruptMessage

MOST = 20
"""Largest exponent, of either sign: more would say that an array does not matter at all."""


def written(exponents: Mapping[str, int], layout: Layout) -> bytes:
    """Return one exponent (i8) for each array of a layout, 0 for the largest: only differences matter."""
    if not layout.names:
        return b""
    largest = layout.names[int(np.argmax(layout.sizes))]
    found = [exponents.get(name, 0) - exponents.get(largest, 0) for name in layout.names]
    return np.clip(found, -MOST, MOST).astype(np.int8).tobytes()


def read(data: bytes, layout: Layout) -> dict[str, int]:
    """Undo `written`; raise an error unless each array has an exponent that is within bounds."""
    found = np.frombuffer(data, dtype=np.int8).tolist()
    if len(found) != len(layout.names) or any(abs(exponent) > MOST for exponent in found):
        raise CorruptMessage(f"{len(layout.names)} arrays need as many exponents from -{MOST} to {MOST}, got {found}")
    return dict(zip(layout.names, found, strict=True))


@dataclass(frozen=True)
class Scaled(Compressor):
    """A compressor of a vector with this layout whose arrays are multiplied by `2 ** exponents[name]` first.

    It needs no side information, and its estimate is as unbiased as that of `inner`.
    """

    layout: Layout
    inner: Compressor
    exponents: Mapping[str, int]

    def encode(self, update: Vector, side: Side, *, key: SharedKey, rng: np.random.Generator) -> bytes:
        scaled = check_update(update, self.layout.d).copy()
        self._scale(scaled, 1)
        return self.inner.encode(scaled, side, key=key, rng=rng)

    def decode(self, message: bytes, side: Side, *, key: SharedKey) -> Decoded:
        decoded = self.inner.decode(message, side, key=key)
        vector = decoded.vector.astype(np.float32, copy=False)
        self._scale(vector, -1)
        return check_decoded(replace(decoded, vector=vector))

    def _scale(self, vector: Vector, sign: int) -> None:
        for name, part in self.layout.split(vector):
            np.ldexp(part, sign * self.exponents.get(name, 0), out=part)
