"""Formats with 32, 16 or 8 bits per entry: hardly any loss, and no settings.

`float32` does not compress; it is the baseline of all comparisons (FedAvg), and its message is the update itself. The
other two round at random, without bias.

`float16` multiplies every array by a power of two, so that its largest entry is near the largest float16 number, and
small updates keep their precision. The message: the inverse of the factor for every array (f32), the entries (f16).

`int8` gives every `CHUNK` entries of an array a step, 1/127 of the largest magnitude among them. The message: the steps
(f32), the entries in steps (i8, from -127 to 127).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from klms.codec import Decoded, SharedKey
from klms.compressors.base import Compressor, Side, Vector, largest_entry
from klms.compressors.envelope import read_scales, unwrap, wrap, write_scales
from klms.compressors.layout import Layout
from klms.compressors.scheme import Scheme, Settings
from klms.errors import CorruptMessage
from klms.numerics.jit import Int64

_FLOAT32, _FLOAT16, _INT8 = 1, 14, 15
CHUNK = 1024
_MOST_STEPS = 127
_LARGEST_EXPONENT, _SMALLEST_EXPONENT = 15, -24  # of the largest power of two in float16, and of its smallest step
_MANTISSA = 10  # bits of float16
_NEGLIGIBLE = 1e-30  # if no entry is larger, all count as zero: the scale would underflow


@dataclass(frozen=True)
class Float32(Compressor):
    """The update itself."""

    layout: Layout

    def _encode(self, update: Vector, side: Side, key: SharedKey, rng: np.random.Generator) -> bytes:
        return wrap(_FLOAT32, self.d, update.astype("<f4", copy=False).tobytes(), key)

    def _decode(self, message: bytes, side: Side, key: SharedKey) -> Decoded:
        payload = unwrap(message, _FLOAT32, self.d, key)
        if len(payload) != 4 * self.d:
            raise CorruptMessage(f"{len(payload)} bytes cannot hold {self.d} float32 numbers")
        return Decoded(np.frombuffer(payload, dtype="<f4").astype(np.float32))


@dataclass(frozen=True)
class Float16(Compressor):
    """Half precision."""

    layout: Layout

    def _encode(self, update: Vector, side: Side, key: SharedKey, rng: np.random.Generator) -> bytes:
        scales = np.zeros(len(self.layout.parts), dtype=np.float32)
        halves = np.zeros(update.size, dtype="<f2")
        for n, part in enumerate(self.layout.parts):
            largest = largest_entry(update[part])
            if largest >= _NEGLIGIBLE:
                scales[n] = np.ldexp(1.0, int(np.frexp(largest)[1]) - _LARGEST_EXPONENT)
                halves[part] = _rounded_to_half(update[part] / scales[n], rng)
        return wrap(_FLOAT16, update.size, write_scales(scales) + halves.tobytes(), key)

    def _decode(self, message: bytes, side: Side, key: SharedKey) -> Decoded:
        scales, rest = read_scales(unwrap(message, _FLOAT16, self.d, key), len(self.layout.parts))
        if len(rest) != 2 * self.d:
            raise CorruptMessage(f"{len(rest)} bytes cannot hold {self.d} float16 numbers")
        vector = np.frombuffer(rest, dtype="<f2").astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):  # entries that are not finite are refused later
            for scale, part in zip(scales, self.layout.parts, strict=True):
                vector[part] *= scale
        return Decoded(vector)


def _rounded_to_half(values: Vector, rng: np.random.Generator) -> Vector:
    """Round each number at random to one of the two nearest float16 numbers, without bias."""
    exponents = np.maximum(np.frexp(values)[1] - 1 - _MANTISSA, _SMALLEST_EXPONENT)
    steps = np.floor(np.ldexp(values, -exponents) + rng.random(values.size, dtype=np.float32))
    rounded: Vector = np.ldexp(steps, exponents)
    return rounded


@dataclass(frozen=True)
class Int8(Compressor):
    """Bytes, with a step for each chunk of an array."""

    layout: Layout

    @cached_property
    def bounds(self) -> Int64:
        return self.layout.buckets(CHUNK)

    def _encode(self, update: Vector, side: Side, key: SharedKey, rng: np.random.Generator) -> bytes:
        largest = np.maximum.reduceat(np.abs(update), self.bounds[:-1]) if update.size else np.zeros(0, np.float32)
        scales = np.where(largest >= _NEGLIGIBLE, largest / np.float32(_MOST_STEPS), 0).astype(np.float32)
        widths = np.repeat(scales, np.diff(self.bounds))
        exact = np.divide(update, widths, out=np.zeros_like(update), where=widths > 0)
        steps = np.floor(exact + rng.random(update.size, dtype=np.float32))
        steps = np.clip(steps, -_MOST_STEPS, _MOST_STEPS, out=steps).astype(np.int8)
        return wrap(_INT8, update.size, write_scales(scales) + steps.tobytes(), key)

    def _decode(self, message: bytes, side: Side, key: SharedKey) -> Decoded:
        scales, rest = read_scales(unwrap(message, _INT8, self.d, key), self.bounds.size - 1)
        steps = np.frombuffer(rest, dtype=np.int8)
        if steps.size != self.d or steps.min(initial=0) < -_MOST_STEPS:
            raise CorruptMessage(f"{steps.size} bytes are not {self.d} numbers from -127 to 127")
        with np.errstate(over="ignore"):  # entries that are not finite are refused later
            vector = steps.astype(np.float32) * np.repeat(scales, np.diff(self.bounds))
        return Decoded(vector)


FLOAT32 = Scheme(
    name="float32",
    title="Federated averaging, float32 differences",
    reference="McMahan et al., AISTATS 2017",
    settings=Settings,
    make=lambda layout, settings, threads: Float32(layout),
    operating_points=(),
    wire_number=_FLOAT32,
)

FLOAT16 = Scheme(
    name="float16",
    title="Half precision, rounded at random",
    reference="IEEE 754 binary16",
    family="float32",
    settings=Settings,
    make=lambda layout, settings, threads: Float16(layout),
    wire_number=_FLOAT16,
)

INT8 = Scheme(
    name="int8",
    title="Bytes with a step for every 1024 entries, rounded at random",
    reference="as in Dettmers, ICLR 2016",
    family="float32",
    settings=Settings,
    make=lambda layout, settings, threads: Int8(layout),
    wire_number=_INT8,
)
