"""Outliers as bytes, and back: gaps, signs and magnitudes, coded adaptively (`adaptive_bits.py`).

Magnitudes above the threshold are quantised with a step that all regions share. A subtractive dither from the shared
key makes the decoded magnitudes unbiased. A threshold is the lower edge of a bin, and the bin of a magnitude is the
upper 10 of its 31 bits as a float32: four bins per octave.

The content: the step (u16, on the logarithmic scale of `payload.py`); for each region the number of outliers (u32) and,
if there are any, the bin of the threshold (u16); then, coded, for each outlier its gap, its sign and its magnitude.
The coded bytes have at least one bit per outlier, so that few bytes cannot stand for many outliers.
"""

import struct
from typing import NamedTuple

import numpy as np

from klms.codec import SharedKey
from klms.compressors.trellis.adaptive_bits import Coder, finish, new_reader, new_writer, read_records, write_records
from klms.compressors.trellis.payload import log_number, log_scale
from klms.compressors.trellis.pieces import Regions
from klms.errors import CorruptMessage
from klms.numerics.jit import Float32, Float64, Int64, UInt64, kernel
from klms.numerics.philox import DITHER_STREAM, buffer_size, drawn_words, words

MANTISSA = 21
"""The number of a magnitude's bin is its float32 bit pattern without this many low bits."""
NOTHING = (1 << 31 - MANTISSA) - 1
"""The bin of NaN. A region with this threshold has no outliers."""

_STEP = struct.Struct("<H")
_COUNT = struct.Struct("<I")
_THRESHOLD = struct.Struct("<H")
_AT_ONCE = 512  # outliers that are read before they are added, so that any number needs the same space


class RegionOutliers(NamedTuple):
    """The outliers of a region, and whether its other entries were rounded at random."""

    threshold: int
    rounded: bool
    places: Int64
    values: Float32


class Heads(NamedTuple):
    """The regions of an update in the order of its pieces, with their numbers of outliers and their thresholds."""

    regions: Regions
    counts: Int64  # of outliers
    edges: Float32  # thresholds
    step: np.float32


def edge_of(number: int) -> np.float32:
    """Return the smallest magnitude in a bin."""
    return np.float32(np.array([number << MANTISSA], dtype=np.int32).view(np.float32)[0])


def shared_dither(count: int, key: SharedKey) -> Float32:
    """Return numbers in [0, 1) that are the same on both sides."""
    return drawn_words(key, DITHER_STREAM, count).astype(np.float32) / np.float32(65536)


def write_outliers(regions: list[RegionOutliers], step: float, dither: Float32, room: int = 8) -> tuple[bytes, Float64]:
    """Return the content, and the number of bits of each region in it.

    `room` is the space to reserve per outlier, in bytes.
    """
    number = log_number(step)
    heads, done, used = [_STEP.pack(number)], 0, []
    coder = new_writer(16 + room * dither.size, 2)
    for region in regions:
        before = int(coder.interval[2])
        count = region.places.size
        heads.append(_COUNT.pack(count))
        if count:
            heads.append(_THRESHOLD.pack(region.threshold))
            excess = (np.abs(region.values) - edge_of(region.threshold)) / np.float32(log_scale(number))
            numbers = np.empty((count, 2), dtype=np.int64)
            numbers[0, 0] = region.places[0]
            numbers[1:, 0] = np.diff(region.places) - 1
            numbers[:, 1] = np.floor(excess + dither[done : done + count])
            minus = (region.values < 0).astype(np.uint8)
            write_records(coder, np.zeros(count, dtype=np.uint8), True, numbers, minus)
            done += count
        used.append(8.0 * (int(coder.interval[2]) - before) + 48 * (count > 0))
    length = finish(coder)
    if length > coder.data.size:
        return write_outliers(regions, step, dither, 4 * room)
    coded = coder.data[:length].tobytes().ljust((dither.size + 7) // 8, b"\0")  # seldom needed: each sign takes a bit
    return b"".join(heads) + coded, np.array(used)


def read_outliers(content: bytes, regions: Regions, key: SharedKey, gathered: Float32) -> None:
    """Decode the outliers of these regions from untrusted bytes, and add them to `gathered` (`Pieces.gather`)."""
    place = _STEP.size
    counts, thresholds = [], []
    try:
        (number,) = _STEP.unpack_from(content)
        for _ in range(regions.sizes.size):
            (count,) = _COUNT.unpack_from(content, place)
            place += _COUNT.size
            counts.append(count)
            thresholds.append(_THRESHOLD.unpack_from(content, place)[0] if count else 1)
            place += _THRESHOLD.size if count else 0
    except struct.error as error:
        raise CorruptMessage("the outliers are cut off") from error
    numbers, bins = np.array(counts, dtype=np.int64), np.array(thresholds, dtype=np.int32)
    if (numbers > regions.sizes).any() or not ((bins > 0) & (bins < NOTHING)).all():
        raise CorruptMessage("a region has more outliers than entries, or an impossible threshold")
    if sum(counts) > 8 * (len(content) - place):
        raise CorruptMessage(f"{len(content) - place} bytes cannot hold {sum(counts)} outliers")
    coder = new_reader(np.frombuffer(content, dtype=np.uint8)[place:].copy(), 2)
    heads = Heads(regions, numbers, (bins << MANTISSA).view(np.float32), np.float32(log_scale(number)))
    if not _add(coder, heads, key.words(), gathered):
        raise CorruptMessage("the outliers do not decode")


@kernel
def _add(coder: Coder, heads: Heads, key: UInt64, x: Float32) -> bool:
    """Read all outliers and add them to the vector; return False if they are invalid."""
    contexts, minus = np.zeros(_AT_ONCE, dtype=np.uint8), np.empty(_AT_ONCE, dtype=np.uint8)
    numbers = np.empty((_AT_ONCE, 2), dtype=np.int64)
    buffer = np.empty(buffer_size(_AT_ONCE), dtype=np.uint64)
    unit, half = np.float32(1 / 65536), np.float32(0.5)
    done = 0
    for region in range(heads.counts.size):
        start, edge = heads.regions.bounds[region], heads.edges[region]
        place, end = start - 1, start + heads.regions.sizes[region]
        for first in range(0, heads.counts[region], _AT_ONCE):
            count = min(_AT_ONCE, heads.counts[region] - first)
            if not read_records(coder, contexts, True, numbers[:count], minus):
                return False
            dither = words(buffer, done, count, DITHER_STREAM, key)
            for i in range(count):
                place += numbers[i, 0] + 1
                if place >= end:
                    return False
                value = edge + heads.step * (np.float32(numbers[i, 1]) - np.float32(dither[i]) * unit + half)
                x[place] += -value if minus[i] else value
            done += count
    return True
