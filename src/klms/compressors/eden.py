"""EDEN (Vargaftik et al., 2022): rotate, then quantise with the best levels for normal coordinates, at any bit budget.

The scale `|v|^2 / <Rv, Q>` of each piece makes the estimate unbiased over rotations, whatever the levels are. With a
budget of `b` bits per coordinate, the fraction `b - floor(b)` of the rotated coordinates gets `floor(b) + 1` bits each,
and all other coordinates get `floor(b)` bits each; below one bit, these others are not sent at all. The shared key
determines which coordinates belong to the fraction.

The message: the budget and the scales (f32 each), then the indices, those with more bits first.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
from pydantic import Field

from klms.codec import Decoded, SharedKey
from klms.compressors.base import Compressor, Side, Vector
from klms.compressors.envelope import read_scales, unwrap, wrap, write_scales
from klms.compressors.layout import Layout
from klms.compressors.rotation import Rotation, piece_holding
from klms.compressors.scheme import Scheme, Settings
from klms.errors import CorruptMessage, SideInformationMismatch
from klms.numerics.bit_packing import pack_bits, unpack_bits
from klms.numerics.jit import Float32, Float64, Int64, UInt16, kernel
from klms.numerics.parallel import over
from klms.numerics.philox import SUBSET_STREAM, drawn_words
from klms.numerics.quantiles import LEVELS, normal_quantiles

MAX_RATE = 8.0
_NUMBER = 11
_LLOYD_STEPS = 600
_SENT_OF_A_PIECE = 16  # minimum number of coordinates sent of a piece: a scale estimated from fewer is unreliable


class EdenSettings(Settings):
    """Settings of EDEN."""

    rate: float = Field(1.0, gt=0, le=MAX_RATE, description="EDEN: bits per parameter; may be a fraction.")


@cache
def normal_levels(bits: int) -> Float32:
    """Return the `2^bits` levels of the best quantiser of a standard normal variable (Lloyd, 1957; Max, 1960).

    >>> normal_levels(2).round(4).tolist() == np.array([-1.5104, -0.4528, 0.4528, 1.5104], dtype=np.float32).tolist()
    True
    """
    count = 1 << bits
    # Start from Panter and Dite's levels for many bits; Lloyd's iteration then improves them: each level becomes the
    # mean of its cell. Only the positive half is computed, which keeps the levels symmetric.
    middles = (2 * np.arange(count // 2, count) + 1) * (LEVELS // 2 // count)
    levels = math.sqrt(3.0) * normal_quantiles()[middles].astype(np.float64)
    for _ in range(_LLOYD_STEPS):
        edges = np.concatenate([[0.0], (levels[1:] + levels[:-1]) / 2, [np.inf]])
        mass = np.diff([math.erf(edge / math.sqrt(2)) / 2 for edge in edges])
        levels = -np.diff(np.exp(-(edges**2) / 2)) / math.sqrt(2 * math.pi) / mass
    return np.concatenate([-levels[::-1], levels]).astype(np.float32)


class Subset(NamedTuple):
    """The coordinates of every piece that are coded with the same number of bits."""

    strides: Int64  # rows `a, c`: the `i`-th coordinate to be visited is `a i + c` modulo the piece's size; `a` is odd
    starts: Int64  # first place of the subset in that order, for each piece
    counts: Int64
    ends: Int64  # where the indices of each piece end in the message
    levels: Float32


@dataclass(frozen=True)
class Eden(Compressor):
    """`rate` bits per parameter: above 0, at most 8, fractions included."""

    layout: Layout
    rate: float = 1.0
    threads: int | None = None

    @cached_property
    def rotation(self) -> Rotation:
        return Rotation(self.d, self.threads, piece_holding(_SENT_OF_A_PIECE / min(self.rate, 1)))

    def _encode(self, update: Vector, side: Side, key: SharedKey, rng: np.random.Generator) -> bytes:
        rotated = self.rotation.apply(update, key)
        norms = np.sqrt(self.rotation.sums(rotated * rotated))
        factors = np.divide(np.sqrt(self.rotation.sizes), norms, out=np.zeros_like(norms), where=norms > 0)
        products = np.zeros(norms.size)
        packed = b""
        for bits, subset in self._subsets(key):
            indices = np.empty(int(subset.ends[-1]), dtype=np.uint16)
            over(self.rotation.bounds, self.threads, _quantise, rotated, factors, subset, indices, products)
            packed += pack_bits(indices, bits).tobytes()
        scales = np.divide(norms * norms, products, out=np.zeros_like(norms), where=products > 0)
        head = write_scales(np.array([self.rate])) + write_scales(scales)
        return wrap(_NUMBER, self.d, head + packed, key)

    def _decode(self, message: bytes, side: Side, key: SharedKey) -> Decoded:
        payload = unwrap(message, _NUMBER, self.d, key)
        numbers, rest = read_scales(payload, 1 + self.rotation.sizes.size)
        if numbers[0] != np.float32(self.rate):
            raise SideInformationMismatch(
                f"the message has {numbers[0]:g} bits per parameter; {self.rate:g} were agreed"
            )
        subsets = list(self._subsets(key))
        lengths = [(int(subset.ends[-1]) * bits + 7) // 8 for bits, subset in subsets]
        if len(rest) != sum(lengths):
            raise CorruptMessage(f"{len(rest)} bytes of indices, but {sum(lengths)} are needed")
        rotated = np.zeros(self.rotation.padded, dtype=np.float32)
        sections = np.split(np.frombuffer(rest, dtype=np.uint8), np.cumsum(lengths)[:-1])
        for (bits, subset), section in zip(subsets, sections, strict=True):
            used = int(subset.ends[-1]) * bits % 8
            if used and section[-1] >> used:
                raise CorruptMessage("the bits after the last index are not zero")
            indices = unpack_bits(section, int(subset.ends[-1]), bits)
            over(self.rotation.bounds, self.threads, _restore, indices, numbers[1:], subset, rotated)
        return Decoded(self.rotation.undo(rotated, key))

    def _subsets(self, key: SharedKey) -> Iterator[tuple[int, Subset]]:
        """Yield each number of bits with the coordinates that get this number.

        Coordinates that get no bits are left out.
        """
        low = math.floor(self.rate)
        sizes = self.rotation.sizes
        strides = self._strides(key)
        more = np.ceil((self.rate - low) * sizes).astype(np.int64)
        first = np.zeros(sizes.size, dtype=np.int64)
        for bits, counts in ((low + 1, more), (low, sizes - more)):
            if bits and counts.any():
                yield bits, Subset(strides, first, counts, np.cumsum(counts), normal_levels(bits))
                first = first + counts

    def _strides(self, key: SharedKey) -> Int64:
        if self.rate == math.floor(self.rate):
            return np.tile(np.array([1, 0]), (self.rotation.sizes.size, 1))
        drawn = drawn_words(key, SUBSET_STREAM, 4 * self.rotation.sizes.size).astype(np.int64)
        strides = (drawn[::2] | drawn[1::2] << 16).reshape(-1, 2)
        strides[:, 0] |= 1
        return strides


@kernel
def _quantise(
    first: int,
    end: int,
    bounds: Int64,
    rotated: Float32,
    factors: Float64,
    subset: Subset,
    indices: UInt16,
    products: Float64,
) -> None:
    """Find the nearest level of every coordinate, and add up the inner product of each piece with its levels."""
    levels = subset.levels
    half = levels.size // 2
    thresholds = (levels[1:] + levels[:-1]) / np.float32(2)
    for n in range(first, end):
        piece = rotated[bounds[n] : bounds[n + 1]]
        mask = piece.size - 1
        out = indices[subset.ends[n] - subset.counts[n] : subset.ends[n]]
        factor = np.float32(factors[n])
        product = 0.0
        for i in range(subset.counts[n]):
            value = piece[(subset.strides[n, 0] * (subset.starts[n] + i) + subset.strides[n, 1]) & mask]
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
    first: int, end: int, bounds: Int64, indices: UInt16, scales: Float32, subset: Subset, rotated: Float32
) -> None:
    for n in range(first, end):
        piece = rotated[bounds[n] : bounds[n + 1]]
        mask = piece.size - 1
        source = indices[subset.ends[n] - subset.counts[n] : subset.ends[n]]
        for i in range(subset.counts[n]):
            place = (subset.strides[n, 0] * (subset.starts[n] + i) + subset.strides[n, 1]) & mask
            piece[place] = subset.levels[source[i]] * scales[n]


SCHEME = Scheme(
    name="eden",
    title="Levels for normal coordinates after a random rotation, any rate",
    reference="Vargaftik et al., ICML 2022",
    settings=EdenSettings,
    make=lambda layout, settings, threads: Eden(layout, settings.rate, threads),
    operating_points=tuple({"rate": rate} for rate in (0.02, 0.05, 0.1, 0.25, 0.5, 1, 1.5, 2, 3, 4)),
    wire_number=_NUMBER,
)
