"""EDEN (Vargaftik et al., 2022): rotate, quantise with the best levels for a normal law, at any bit budget.

The scale `|v|^2 / <Rv, Q>` of each piece makes the estimate unbiased over rotations whatever the levels are. A budget
of `b` bits gives `floor(b) + 1` bits to the fraction `b - floor(b)` of the rotated coordinates and `floor(b)` to the
rest; below one bit the rest is not sent at all. Which ones is drawn from the shared key.

The message: the budget and the scales (f32 each), then the indices, those of more bits first.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from klms.codec import CorruptMessage, SharedKey, SideInformationMismatch
from klms.codec._jit import kernel
from klms.codec.message import pack_bits, unpack_bits
from klms.codec.parallel import over
from klms.codec.philox import G_STREAM, buffer_size, words
from klms.compressors.base import Side, Stateless, Vector, checked
from klms.compressors.envelope import unwrap, wrap
from klms.compressors.normal_levels import normal_levels
from klms.compressors.rotation import Rotation, piece_holding
from klms.compressors.sections import read_scales, write_scales

MAX_RATE = 8.0
_SENT_OF_A_PIECE = 16  # coordinates at least: a scale that rests on fewer may be anything

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Eden(Stateless):
    """`rate` bits a parameter: 0 to 8, fractions too."""

    d: int
    rate: float = 1.0
    threads: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.rate <= MAX_RATE:
            raise ValueError(f"rate must be above 0 and at most {MAX_RATE:g} bits a parameter, got {self.rate}")

    @cached_property
    def rotation(self) -> Rotation:
        """Of the vector."""
        return Rotation(self.d, self.threads, piece_holding(_SENT_OF_A_PIECE / min(self.rate, 1)))

    @cached_property
    def shares(self) -> tuple[tuple[int, Int64], ...]:
        """Bits, and how many coordinates of each piece have them; those of no bits are left out."""
        low = math.floor(self.rate)
        sizes = self.rotation.sizes
        more = np.ceil((self.rate - low) * sizes).astype(np.int64)
        return tuple((bits, count) for bits, count in ((low + 1, more), (low, sizes - more)) if bits and count.any())

    def encode(self, vector: Vector, side: Side, *, key: SharedKey, rng: np.random.Generator) -> bytes:
        vector = checked(vector, self.d)
        rotated = self.rotation.apply(vector, key)
        norms = np.sqrt(self.rotation.sums(rotated * rotated))
        factors = np.divide(np.sqrt(self.rotation.sizes), norms, out=np.zeros_like(norms), where=norms > 0)
        strides = self._strides(key)
        products = np.zeros(norms.size)
        packed = b""
        for bits, starts, counts, ends in self._parts():
            levels = normal_levels(bits)
            indices = np.empty(int(ends[-1]), dtype=np.uint16)
            arguments = (rotated, factors, strides, starts, counts, ends, levels, indices, products)
            over(self.rotation.bounds, self.threads, _quantise, *arguments)
            packed += pack_bits(indices, bits).tobytes()
        scales = np.divide(norms * norms, products, out=np.zeros_like(norms), where=products > 0)
        head = write_scales(np.array([self.rate])) + write_scales(scales)
        return wrap("eden", self.d, head + packed)

    def decode(self, message: bytes, side: Side, *, key: SharedKey) -> Vector:
        payload = unwrap(message, "eden", self.d)
        numbers, rest = read_scales(payload, 1 + self.rotation.sizes.size)
        if numbers[0] != np.float32(self.rate):
            raise SideInformationMismatch(f"the message has {numbers[0]:g} bits a parameter, {self.rate:g} were agreed")
        scales = numbers[1:]
        parts = list(self._parts())
        lengths = [(int(ends[-1]) * bits + 7) // 8 for bits, _, _, ends in parts]
        if len(rest) != sum(lengths):
            raise CorruptMessage(f"{len(rest)} bytes of indices, {sum(lengths)} are needed")
        rotated = np.zeros(self.rotation.padded, dtype=np.float32)
        strides = self._strides(key)
        place = 0
        for (bits, starts, counts, ends), length in zip(parts, lengths, strict=True):
            section = np.frombuffer(rest, dtype=np.uint8)[place : place + length]
            place += length
            used = int(ends[-1]) * bits % 8
            if used and section[-1] >> used:
                raise CorruptMessage("the bits after the last index are not zero")
            indices = unpack_bits(section, int(ends[-1]), bits)
            arguments = (indices, scales, strides, starts, counts, ends, normal_levels(bits), rotated)
            over(self.rotation.bounds, self.threads, _restore, *arguments)
        return self.rotation.undo(rotated, key)

    def _parts(self) -> Iterator[tuple[int, Int64, Int64, Int64]]:
        """For each width: bits, first place and count in every piece's order, and where the indices end."""
        first = np.zeros(self.rotation.sizes.size, dtype=np.int64)
        for bits, counts in self.shares:
            yield bits, first, counts, np.cumsum(counts)
            first = first + counts

    def _strides(self, key: SharedKey) -> Int64:
        """The order of each piece's coordinates: the `i`-th is `a i + c`, modulo the piece's size, with odd `a`."""
        if self.rate == math.floor(self.rate):
            return np.tile(np.array([1, 0]), (self.rotation.sizes.size, 1))
        count = 4 * self.rotation.sizes.size
        drawn = words(np.empty(buffer_size(count), dtype=np.uint64), 0, count, G_STREAM, key.words()).astype(np.int64)
        strides = (drawn[::2] | drawn[1::2] << 16).reshape(-1, 2)
        strides[:, 0] |= 1
        return strides


@kernel
def _quantise(
    first: int,
    end: int,
    bounds: Int64,
    rotated: Float32,
    factors: npt.NDArray[np.float64],
    strides: Int64,
    starts: Int64,
    counts: Int64,
    ends: Int64,
    levels: Float32,
    indices: npt.NDArray[np.uint16],
    products: npt.NDArray[np.float64],
) -> None:
    """The nearest level of every coordinate, and the inner product of the piece with what it is replaced by."""
    half = levels.size // 2
    thresholds = (levels[1:] + levels[:-1]) / np.float32(2)
    for n in range(first, end):
        piece = rotated[bounds[n] : bounds[n + 1]]
        mask = piece.size - 1
        out = indices[ends[n] - counts[n] : ends[n]]
        factor = np.float32(factors[n])
        product = 0.0
        for i in range(counts[n]):
            value = piece[(strides[n, 0] * (starts[n] + i) + strides[n, 1]) & mask]
            z = value * factor
            index = 0
            step = half
            while step > 0:
                if z >= thresholds[index + step - 1]:
                    index += step
                step >>= 1
            out[i] = index
            product += np.float64(value) * np.float64(levels[index])
        products[n] += product


@kernel
def _restore(
    first: int,
    end: int,
    bounds: Int64,
    indices: npt.NDArray[np.uint16],
    scales: Float32,
    strides: Int64,
    starts: Int64,
    counts: Int64,
    ends: Int64,
    levels: Float32,
    rotated: Float32,
) -> None:
    for n in range(first, end):
        piece = rotated[bounds[n] : bounds[n + 1]]
        mask = piece.size - 1
        source = indices[ends[n] - counts[n] : ends[n]]
        for i in range(counts[n]):
            piece[(strides[n, 0] * (starts[n] + i) + strides[n, 1]) & mask] = levels[source[i]] * scales[n]
