"""Updates of any size: chunks of at most `CHUNK` parameters, each a message of its own, at one price per bit.

Only one chunk is in memory at a time. Each is read twice, or three times if matrices may have a low-rank part. First,
the bits that each chunk takes are estimated as a function of the price of a bit (`PriceCurve`). One price, at which all
chunks together take the available bits, gives each chunk its rate. With these rates, the low-rank parts are planned.
Without its low-rank part, a chunk has a different curve; the new curves determine the final price and rates. Then the
chunks are coded one by one. Bits thus go where they remove the most error, as within a chunk.

A chunk holds whole arrays, at most 4096, or consecutive rows of one array that is larger than a chunk. An update that
fits into one chunk is a single message of the dense scheme. Otherwise each message is preceded by its length (u32),
and the seed of chunk `n` is an 8-byte BLAKE2b hash of the 20 bytes of the key and of `n` (u32), so that no two chunks
share randomness.
"""

import io
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from klms.codec import Decoded, SharedKey
from klms.compressors.base import Compressor, Side, Vector
from klms.compressors.layout import Layout
from klms.compressors.trellis.low_rank import LowRankPlan
from klms.compressors.trellis.message import Trellis, most_bytes
from klms.compressors.trellis.outliers import PriceCurve, common_price
from klms.compressors.trellis.payload import section
from klms.compressors.trellis.rates import MAX_RATE, MIN_RATE
from klms.errors import CorruptMessage, InvalidArgument
from klms.numerics.jit import Float32

CHUNK = 1 << 25
"""Maximum number of parameters of a chunk, a constant of the format."""
_LENGTH = struct.Struct("<I")
_MOST_ARRAYS = 4096  # of a chunk, if there are several chunks: the statistics of an array take 24 kB
_LOWER_RATE = 0.9  # relative to the rate at which a message did not fit into its bytes
_STEPS = 100  # of progress, for each chunk
_MEASURED, _PLANNED = 4, 20  # steps after which a chunk has been measured, and its products have been planned


class Segment(NamedTuple):
    """Consecutive entries of an array."""

    array: int
    """Number of the array in the layout."""
    start: int
    stop: int


class Chunk(NamedTuple):
    """Segments that are coded together, and their shapes as a layout."""

    segments: tuple[Segment, ...]
    layout: Layout


Load = Callable[[Segment], Float32]
Store = Callable[[Segment, Float32], None]


def cut(layout: Layout, most: int | None = None) -> list[Chunk]:
    """Return the chunks of a layout, of at most `most` parameters each; an empty layout has none.

    >>> [chunk.layout.shapes for chunk in cut(Layout(("a", "b", "c"), ((2, 3), (7, 2), (9,))), most=8)]
    [((2, 3),), ((4, 2),), ((3, 2),), ((8,),), ((1,),)]
    """
    most = CHUNK if most is None else most
    if 0 < layout.d <= most:
        return [Chunk(tuple(Segment(n, 0, size) for n, size in enumerate(layout.sizes)), layout)]
    chunks: list[list[tuple[Segment, tuple[int, ...]]]] = []
    room = 0
    for number, (shape, size) in enumerate(zip(layout.shapes, layout.sizes, strict=True)):
        for segment, part in _segments(number, shape, size, most):
            count = segment.stop - segment.start
            if count > room or len(chunks[-1]) == _MOST_ARRAYS:
                chunks.append([])
                room = most
            chunks[-1].append((segment, part))
            room -= count
    return [_chunk(layout, parts) for parts in chunks]


def _segments(number: int, shape: tuple[int, ...], size: int, most: int) -> Iterator[tuple[Segment, tuple[int, ...]]]:
    """Yield the segments of an array with their shapes: as many whole rows as fit, or parts of a row if none fits."""
    if 0 < size <= most:
        yield Segment(number, 0, size), shape
    elif size > most:
        row = size // shape[0]
        if row > most:
            row, shape = 1, (size,)
        at_once = most // row * row
        for start in range(0, size, at_once):
            stop = min(start + at_once, size)
            yield Segment(number, start, stop), ((stop - start) // row, *shape[1:])


def _chunk(layout: Layout, parts: list[tuple[Segment, tuple[int, ...]]]) -> Chunk:
    names = tuple(layout.names[segment.array] for segment, _ in parts)
    return Chunk(tuple(segment for segment, _ in parts), Layout(names, tuple(shape for _, shape in parts)))


class ChunkedTrellis(Compressor):
    """The dense scheme for updates of any size. An update may be read, and written, in parts."""

    def __init__(self, settings: Trellis) -> None:
        self.settings = settings
        """Settings of all chunks; the rate is that of the whole update."""
        self.layout = settings.layout
        self.rate = settings.rate
        self.chunks = cut(self.layout)

    def _encode(self, update: Vector, side: Side, key: SharedKey, rng: np.random.Generator) -> bytes:
        if len(self.chunks) <= 1:
            return self.settings._encode(update, side, key, rng)
        starts = [part.start for part in self.layout.parts]
        return b"".join(self.encode_parts(lambda one: update[_place(starts, one)], key, rng))

    def _decode(self, message: bytes, side: Side, key: SharedKey) -> Decoded:
        if len(self.chunks) <= 1:
            return self.settings._decode(message, side, key)
        if self.settings.agreed and len(message) > self._most_bytes():
            raise CorruptMessage(f"{len(message)} bytes are too many for {self.d} parameters at {self.rate:g} bits")
        vector = np.empty(self.d, dtype=np.float32)
        starts = [part.start for part in self.layout.parts]
        stream = io.BytesIO(message)

        def read(count: int) -> bytes:
            if count > len(message) - stream.tell():
                raise CorruptMessage("the message ends in the middle of a chunk")
            return stream.read(count)

        def store(segment: Segment, floats: Float32) -> None:
            vector[_place(starts, segment)] = floats

        self.decode_parts(read, len(message), key, store)
        if stream.tell() < len(message):
            raise CorruptMessage("the message has bytes after its chunks")
        return Decoded(vector)

    def encode_parts(
        self, load: Load, key: SharedKey, rng: np.random.Generator, most: int | None = None
    ) -> Iterator[bytes]:
        """Yield the bytes of an update in parts, at most `most` bytes in total.

        `load` returns the entries of a segment. It is called several times for each segment, and all entries must be
        finite.
        """
        if len(self.chunks) == 1:
            vector = self._vector(self.chunks[0], load)
            yield fitting(self.settings, lambda scheme: scheme.encode(vector, {}, key=key, rng=rng), most)
            return
        plans = [LowRankPlan() for _ in self.chunks]
        curves = [self._curve(n, load) for n in range(len(self.chunks))]
        schemes = self._at_one_price(curves, plans)
        if any(len(shape) > 1 for shape in self.layout.shapes) and self.settings.effort != "fast":
            for n, scheme in enumerate(schemes):
                gathered = scheme.pieces.gather(self._vector(self.chunks[n], load))
                plans[n] = scheme.plan_products(gathered, rng)
                curves[n] = scheme.price_curve(gathered, plans[n])
                self._tell(len(schemes), n, _MEASURED, _PLANNED, 1, 1)
            schemes = self._at_one_price(curves, plans)
        yield from self._encoded(schemes, plans, load, key, rng, most)

    def decode_parts(self, read: Callable[[int], bytes], rest: int, key: SharedKey, store: Store) -> None:
        """Decode an update and store its segments.

        `read(n)` returns the next `n` of the `rest` untrusted bytes, or raises an error.
        """
        single = len(self.chunks) == 1
        for n, chunk in enumerate(self.chunks):
            length = rest if single else _LENGTH.unpack(read(_LENGTH.size))[0]
            scheme = self._scheme(n, self.settings.rate, 0)
            if not single:  # chunks have their own rates; only all chunks together keep to the agreed rate
                scheme = replace(scheme, agreed=False)
            decoded = scheme.decode(read(length), {}, key=key if single else key_of_chunk(key, n))
            vector = np.asarray(decoded.vector, dtype=np.float32)
            start = 0
            for segment in chunk.segments:
                stop = start + segment.stop - segment.start
                store(segment, vector[start:stop])
                start = stop

    def _most_bytes(self) -> int:
        schemes = [self._scheme(n, self.settings.rate, 0) for n in range(len(self.chunks))]
        return sum(_LENGTH.size + most_bytes(scheme.rate, scheme.pieces) for scheme in schemes)

    def _curve(self, n: int, load: Load) -> PriceCurve:
        """Return the bits that a chunk takes without a low-rank part, as a function of the price of a bit."""
        scheme = self._scheme(n, self.settings.rate, 0)
        vector = self._vector(self.chunks[n], load)
        curve = scheme.price_curve(scheme.pieces.gather(vector), LowRankPlan())
        self._tell(len(self.chunks), n, 0, _MEASURED, 1, 1)
        return curve

    def _at_one_price(self, curves: Sequence[PriceCurve], plans: Sequence[LowRankPlan]) -> list[Trellis]:
        """Return the compressor of each chunk, with the rate that follows from one price per bit for all chunks.

        At this price, all chunks together take the available bits.
        """
        plain = [self._scheme(n, self.settings.rate, 0) for n in range(len(self.chunks))]
        products = [8 * len(section(plan.content)) for plan in plans]
        bits = sum(scheme.free_bits for scheme in plain) - sum(products)
        theta = common_price(curves, bits)
        wanted = [curve.bits_at(theta) for curve in curves]
        scale = bits / sum(wanted) if bits > 0 and sum(wanted) > 0 else 1.0
        schemes = []
        for n, scheme in enumerate(plain):
            heads = scheme.rate * scheme.d - scheme.free_bits
            rate = (heads + products[n] + scale * wanted[n]) / scheme.d
            schemes.append(self._scheme(n, min(max(rate, MIN_RATE), MAX_RATE), _PLANNED))
        return schemes

    def _encoded(
        self,
        schemes: list[Trellis],
        plans: list[LowRankPlan],
        load: Load,
        key: SharedKey,
        rng: np.random.Generator,
        most: int | None,
    ) -> Iterator[bytes]:
        """Yield the length and the message of each chunk.

        If the total length is limited, a chunk may not use bytes that later chunks need for their rates.
        """
        later = [_LENGTH.size + math.ceil(scheme.rate * scheme.d / 8) for scheme in schemes]
        written = 0
        for n, scheme in enumerate(schemes):
            room = None if most is None else most - written - sum(later[n + 1 :]) - _LENGTH.size
            own = key_of_chunk(key, n)

            def encode(scheme: Trellis, n: int = n, own: SharedKey = own) -> bytes:
                gathered = scheme.pieces.gather(self._vector(self.chunks[n], load))
                return scheme.encode_rest(gathered, plans[n], own, rng)

            message = fitting(scheme, encode, room)
            written += _LENGTH.size + len(message)
            yield _LENGTH.pack(len(message))
            yield message

    def _vector(self, chunk: Chunk, load: Load) -> Float32:
        if len(chunk.segments) == 1:
            return load(chunk.segments[0])
        vector = np.empty(chunk.layout.d, dtype=np.float32)
        for segment, part in zip(chunk.segments, chunk.layout.parts, strict=True):
            vector[part] = load(segment)
        return vector

    def _scheme(self, n: int, rate: float, first_step: int) -> Trellis:
        """Return the compressor of chunk `n`. It reports its progress as progress of the whole update."""
        count = len(self.chunks)
        if count == 1:
            return self.settings
        progress = self.settings.progress
        if progress is not None:

            def progress(done: int, total: int) -> None:
                self._tell(count, n, first_step, _STEPS, done, total)

        return replace(self.settings, layout=self.chunks[n].layout, rate=rate, progress=progress)

    def _tell(self, chunks: int, n: int, first: int, last: int, done: int, total: int) -> None:
        """Report progress on chunk `n`: the present work takes the steps `first` to `last` of each chunk's steps."""
        if self.settings.progress is not None:
            in_stage = (last - first) * (n * total + done) // total
            self.settings.progress(first * chunks + in_stage, _STEPS * chunks)


def _place(starts: Sequence[int], segment: Segment) -> slice:
    """Return the place of a segment in a vector whose arrays begin at `starts`."""
    return slice(starts[segment.array] + segment.start, starts[segment.array] + segment.stop)


def key_of_chunk(key: SharedKey, n: int) -> SharedKey:
    """Return the key of chunk `n` of an update that is cut into several chunks."""
    seed = blake2b(key.to_bytes() + n.to_bytes(4, "little"), digest_size=8, person=b"klms chunk").digest()
    return replace(key, seed=int.from_bytes(seed, "little"))


def fitting(scheme: Trellis, encode: Callable[[Trellis], bytes], most: int | None) -> bytes:
    """Return a message of at most `most` bytes, at a lower rate if the scheme's own rate leads to more bytes."""
    message = encode(scheme)
    while most is not None and len(message) > most:
        if scheme.rate <= MIN_RATE:
            raise InvalidArgument(
                f"the budget leaves {max(most, 0):,} bytes for the entries of {scheme.d:,} parameters, which need "
                f"{len(message):,}: raise it by {len(message) - max(most, 0):,}"
            )
        scheme = replace(scheme, rate=max(_LOWER_RATE * scheme.rate, MIN_RATE))
        message = encode(scheme)
    return message
