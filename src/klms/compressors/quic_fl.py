"""QUIC-FL (Ben Basat et al., 2024): rotate, send the few coordinates outside `[-T, T]` exactly, round the others.

Each piece is rotated and scaled to a mean square of 1. A coordinate `z` with `|z| <= T` is rounded at random to a level
of a codebook; the shared key selects the codebook from several. Hence every coordinate is unbiased by itself, whatever
the vector, and a server may add up the messages of all clients before it rotates back.

All codebooks together are one increasing sequence of 64 levels `c`; codebook `h` of `H` holds every `H`-th level from
`c[h]` on. Among the roundings whose mean over codebooks is `z`, the one with the smallest error takes, in every
codebook, the level nearest to one common number `m`. As `m` grows, the levels that are taken move up, one codebook at a
time. Let `g[j]` be the mean over codebooks after `j` moves. Move `j` takes the level of codebook `j mod H` from `c[j]`
to `c[j + H]`, and the mean from `g[j]` to `g[j + 1]`. If `z` lies between these two means, the level of that codebook
moves up with the probability that makes the mean equal to `z`. The levels in this file, found by L-BFGS, minimise the
squared error for normal coordinates with `T = 3.097`, a bound that one normal coordinate in 512 exceeds in magnitude.
The more bits are sent per coordinate, the fewer are left for shared randomness: `H = 64 / 2^bits`.

The message: the bits per index (u8), the number of exact coordinates (u32), the norm of each piece (f32), the
magnitudes of the exact coordinates (f32), the indices of all others, and the positions and signs of the exact
coordinates (Elias codes).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from pydantic import Field

from klms.codec import Decoded, SharedKey
from klms.compressors import elias
from klms.compressors.base import Compressor, Side, Vector
from klms.compressors.envelope import read_numbers, read_scales, unwrap, wrap, write_scales
from klms.compressors.layout import Layout
from klms.compressors.rotation import Rotation
from klms.compressors.scheme import Scheme, Settings
from klms.errors import CorruptMessage, SideInformationMismatch
from klms.numerics.bit_packing import pack_bits, unpack_bits
from klms.numerics.jit import Float32, Float64, Int64, UInt16, kernel
from klms.numerics.parallel import over
from klms.numerics.philox import U_STREAM, drawn_words

_NUMBER = 13
_EXACT = 0xFFFF  # in place of the index of an exact coordinate
_LEVELS = 64
_POSITIVE_LEVELS = {
    1: "0.079 0.201 0.303 0.394 0.482 0.569 0.654 0.740 0.826 0.913 1.003 1.097 1.195 1.298 1.408 1.524 "
    "1.650 1.787 1.937 2.104 2.291 2.505 2.752 3.044 3.398 3.839 4.410 5.188 6.329 8.211 12.032 24.950",
    2: "0.043 0.123 0.203 0.280 0.357 0.434 0.512 0.590 0.670 0.751 0.835 0.923 1.015 1.112 1.220 1.350 "
    "1.481 1.568 1.659 1.758 1.865 1.984 2.116 2.266 2.441 2.650 2.908 3.240 3.700 4.406 5.727 9.789",
    3: "0.036 0.105 0.176 0.247 0.318 0.390 0.462 0.536 0.610 0.685 0.762 0.840 0.920 1.001 1.085 1.172 "
    "1.264 1.359 1.455 1.554 1.657 1.767 1.890 2.041 2.213 2.340 2.486 2.661 2.893 3.203 3.739 5.242",
    4: "0.033 0.100 0.167 0.235 0.302 0.370 0.439 0.508 0.578 0.649 0.721 0.794 0.869 0.946 1.024 1.105 "
    "1.188 1.273 1.363 1.456 1.554 1.655 1.762 1.879 2.007 2.137 2.282 2.459 2.676 2.844 3.128 3.741",
}


class QuicFLSettings(Settings):
    """Settings of QUIC-FL."""

    quic_bits: int = Field(2, ge=1, le=4, description="QUIC-FL: bits per rotated coordinate.")


class Codebooks(NamedTuple):
    """All codebooks, and the mean of the levels that are taken, before and after each move in one codebook."""

    number: int
    levels: Float32
    means: Float32  # padded with infinity to the number of levels
    largest: np.float32

    @classmethod
    def of(cls, bits: int) -> "Codebooks":
        positive = np.array(_POSITIVE_LEVELS[bits].split(), dtype=np.float64)
        levels, count = np.concatenate([-positive[::-1], positive]), _LEVELS >> bits
        means = levels[:count].mean() + np.cumsum([0, *(levels[count:] - levels[:-count])]) / count
        padded = np.append(means, np.full(_LEVELS - means.size, np.inf))
        return cls(count, levels.astype(np.float32), padded.astype(np.float32), np.float32(means[-1]))


@dataclass(frozen=True)
class QuicFL(Compressor):
    """`bits` bits per rotated coordinate, plus about 0.09 bits per coordinate for the few that are sent exactly."""

    layout: Layout
    bits: int = 2
    threads: int | None = None

    @cached_property
    def rotation(self) -> Rotation:
        return Rotation(self.d, self.threads)

    @cached_property
    def codebooks(self) -> Codebooks:
        return Codebooks.of(self.bits)

    def _encode(self, update: Vector, side: Side, key: SharedKey, rng: np.random.Generator) -> bytes:
        rotated = self.rotation.apply(update, key)
        norms = np.sqrt(self.rotation.sums(rotated * rotated)).astype(np.float32)
        factors = np.divide(np.sqrt(self.rotation.sizes), norms, out=np.zeros(norms.size), where=norms > 0)
        random, indices = rng.random(rotated.size, dtype=np.float32), np.empty(rotated.size, dtype=np.uint16)
        books = self._books(key)
        over(self.rotation.bounds, self.threads, _round, rotated, factors, self.codebooks, books, random, indices)
        places = np.flatnonzero(indices == _EXACT)
        minus, none = rotated[places] < 0, np.zeros(places.size, dtype=np.int64)
        positions = elias.write(np.diff(places, prepend=-1) - 1, minus, none, False).tobytes()
        head = np.uint32(places.size).tobytes() + write_scales(norms) + write_scales(np.abs(rotated[places]))
        packed = pack_bits(np.delete(indices, places), self.bits).tobytes()
        return wrap(_NUMBER, self.d, bytes([self.bits]) + head + packed + positions, key)

    def _decode(self, message: bytes, side: Side, key: SharedKey) -> Decoded:
        payload = unwrap(message, _NUMBER, self.d, key)
        if payload[:1] != bytes([self.bits]):
            raise SideInformationMismatch(f"the message does not have the agreed {self.bits} bits per coordinate")
        count = int.from_bytes(payload[1:5], "little")
        if count > self.rotation.padded:
            raise CorruptMessage(f"{count} of {self.rotation.padded} coordinates cannot be exact")
        norms, rest = read_scales(payload[5:], self.rotation.sizes.size)
        magnitudes, rest = read_scales(rest, count)
        others = self.rotation.padded - count
        packed, rest = read_numbers(rest, np.dtype(np.uint8), (others * self.bits + 7) // 8, "bytes of indices")
        places, signs = elias.read(np.frombuffer(rest, dtype=np.uint8), count, self.rotation.padded, 1)
        indices = np.insert(unpack_bits(packed, others, self.bits), places - np.arange(count), 0)
        values = self.codebooks.levels[indices * np.uint16(self.codebooks.number) + self._books(key)]
        values *= np.repeat((norms / np.sqrt(self.rotation.sizes)).astype(np.float32), self.rotation.sizes)
        values[places] = signs * magnitudes
        return Decoded(self.rotation.undo(values, key))

    def _books(self, key: SharedKey) -> UInt16:
        """Return the number of each coordinate's codebook."""
        return drawn_words(key, U_STREAM, self.rotation.padded) % np.uint16(self.codebooks.number)


@kernel
def _round(
    first: int,
    end: int,
    bounds: Int64,
    rotated: Float32,
    factors: Float64,
    codebooks: Codebooks,
    books: UInt16,
    random: Float32,
    indices: UInt16,
) -> None:
    """Set the index of every coordinate in its codebook."""
    count, means = codebooks.number, codebooks.means
    last = _LEVELS - count - 1
    for n in range(first, end):
        factor = np.float32(factors[n])
        for i in range(bounds[n], bounds[n + 1]):
            z = rotated[i] * factor
            if not abs(z) <= codebooks.largest:
                indices[i] = _EXACT
                continue
            j = 0
            step = _LEVELS // 2
            while step > 0:
                if z >= means[j + step]:
                    j += step
                step >>= 1
            j = min(j, last)
            index = (j + count - 1 - books[i]) // count  # number of times that this codebook has moved up
            moves = books[i] == j % count and random[i] * (means[j + 1] - means[j]) < z - means[j]
            indices[i] = index + moves


SCHEME = Scheme(
    name="quic-fl",
    title="Random rounding to optimised levels after a random rotation, large coordinates exactly",
    reference="Ben Basat et al., ICML 2024",
    family="eden",
    settings=QuicFLSettings,
    make=lambda layout, settings, threads: QuicFL(layout, settings.quic_bits, threads),
    operating_points=tuple({"quic_bits": bits} for bits in (1, 2, 3, 4)),
    wire_number=_NUMBER,
)
