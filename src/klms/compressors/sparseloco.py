"""SparseLoCo (Sarfi et al., 2025): the largest entries of every chunk at two bits each, with error feedback.

Tensors are cut into chunks of 4096 entries. In every chunk, the entries of largest magnitude are sent: their places,
their signs and, instead of each magnitude, one of two numbers. These are the mean of the magnitudes below the average
magnitude, and the mean of those above it. What is not sent is added to the next update, as a biased scheme requires.
Server and clients share nothing, and no client needs another client's messages; this suits a few workers that are
always available.

The message: the largest magnitude (f32); for each chunk both magnitudes as fractions of it (f16 each); for each entry a
symbol (none, or plus or minus the smaller or the larger magnitude), range-coded with the frequencies of each tensor.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from pydantic import Field

from klms.codec import Decoded, SharedKey
from klms.compressors.base import Compressor, Side, Vector
from klms.compressors.envelope import read_magnitudes, unwrap, wrap, write_magnitudes
from klms.compressors.layout import Layout
from klms.compressors.scheme import Scheme, Settings
from klms.compressors.symbols import read_symbols, write_symbols
from klms.numerics.jit import Float32, Int64

_NUMBER = 16
_CHUNK = 4096
_SYMBOLS = 5  # none, and then plus and minus for the smaller and for the larger magnitude


class SparseLoCoSettings(Settings):
    """Settings of SparseLoCo."""

    top: int = Field(64, ge=1, le=_CHUNK, description="SparseLoCo: entries sent out of every 4096.")


@dataclass(frozen=True)
class SparseLoCo(Compressor):
    """The `top` largest entries of every chunk of 4096, or the same share of a smaller chunk."""

    layout: Layout
    top: int = 64

    @cached_property
    def bounds(self) -> Int64:
        """Boundaries of the chunks."""
        return self.layout.buckets(_CHUNK)

    def _encode(self, update: Vector, side: Side, key: SharedKey, rng: np.random.Generator) -> bytes:
        symbols = np.zeros(update.size, dtype=np.uint8)
        magnitudes = np.zeros((self.bounds.size - 1, 2), dtype=np.float32)
        for chunk, (start, end) in enumerate(zip(self.bounds[:-1], self.bounds[1:], strict=True)):
            magnitudes[chunk] = self._encode_chunk(update[start:end], symbols[start:end])
        return wrap(_NUMBER, self.d, write_magnitudes(magnitudes) + write_symbols(self.layout, symbols, _SYMBOLS), key)

    def _encode_chunk(self, chunk: Vector, symbols: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> Float32:
        """Write the symbols of a chunk, and return its two magnitudes."""
        count = math.ceil(self.top * chunk.size / _CHUNK)
        sizes = np.abs(chunk)
        places = np.argpartition(sizes, chunk.size - count)[chunk.size - count :]
        places = places[sizes[places] > 0]
        if not places.size:
            return np.zeros(2, dtype=np.float32)
        chosen = sizes[places]
        is_larger = chosen > chosen.mean(dtype=np.float64)
        smaller = chosen[~is_larger].mean(dtype=np.float64)
        larger = chosen[is_larger].mean(dtype=np.float64) if is_larger.any() else smaller
        symbols[places] = 1 + 2 * is_larger + (chunk[places] < 0)
        return np.array([smaller, larger], dtype=np.float32)

    def _decode(self, message: bytes, side: Side, key: SharedKey) -> Decoded:
        payload = unwrap(message, _NUMBER, self.d, key)
        magnitudes, rest = read_magnitudes(payload, 2 * (self.bounds.size - 1))
        symbols = read_symbols(self.layout, rest, _SYMBOLS)
        vector = np.zeros(self.d, dtype=np.float32)
        for chunk, (start, end) in enumerate(zip(self.bounds[:-1], self.bounds[1:], strict=True)):
            smaller, larger = magnitudes[2 * chunk : 2 * chunk + 2]
            levels = np.array([0, smaller, -smaller, larger, -larger], dtype=np.float32)
            vector[start:end] = levels[symbols[start:end]]
        return Decoded(vector)


SCHEME = Scheme(
    name="sparseloco",
    title="The largest entries of every chunk at two bits, with error feedback",
    reference="Sarfi et al., 2025",
    family="topk",
    settings=SparseLoCoSettings,
    make=lambda layout, settings, threads: SparseLoCo(layout, settings.top),
    unbiased=lambda settings: False,
    needs_error_feedback=True,
    operating_points=({"top": 8}, {"top": 64}, {"top": 256}),
    wire_number=_NUMBER,
)
