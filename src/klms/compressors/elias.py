"""Elias' universal codes of positive integers (1975), packed into bytes, high bit first.

Gamma writes a number's length in unary and then the number; delta writes the length in gamma. QSGD uses them for the
runs of zeros and for the levels.
"""

import numpy as np
import numpy.typing as npt

from klms.errors import CorruptMessage
from klms.numerics.jit import Int64, UInt8, inlined, kernel


@inlined
def _length(value: int) -> int:
    bits = 0
    while value > 0:
        bits += 1
        value >>= 1
    return bits


@kernel
def _put(out: UInt8, position: int, value: int, bits: int) -> int:
    for shift in range(bits - 1, -1, -1):
        if (value >> shift) & 1:
            out[position >> 3] |= 128 >> (position & 7)
        position += 1
    return position


@kernel
def write(runs: Int64, minus: npt.NDArray[np.bool_], levels: Int64, with_levels: bool) -> UInt8:
    """Write the non-zero entries.

    Each is written as the number of zeros before it plus 1 (delta), its sign and, if `with_levels`, its level (gamma).
    """
    out = np.zeros(16 * runs.size + 8, dtype=np.uint8)
    position = 0
    for n in range(runs.size):
        run = runs[n] + 1
        length = _length(run)
        position = _put(out, position, length, 2 * _length(length) - 1)
        position = _put(out, position, run - (1 << (length - 1)), length - 1)
        position = _put(out, position, 1 if minus[n] else 0, 1)
        if with_levels:
            position = _put(out, position, levels[n], 2 * _length(levels[n]) - 1)
    return out[: (position + 7) // 8]


@kernel
def _get(data: UInt8, position: int, bits: int) -> int:
    """Return the `bits` bits from `position` on as a number; -1 past the end."""
    if position + bits > 8 * data.size:
        return -1
    value = 0
    for _ in range(bits):
        value = (value << 1) | ((int(data[position >> 3]) >> (7 - (position & 7))) & 1)
        position += 1
    return value


@kernel
def _get_gamma(data: UInt8, position: int) -> tuple[int, int]:
    """Return the number in a gamma code and the position after it; the number is -1 if the code is invalid."""
    zeros = 0
    while zeros < 41 and _get(data, position + zeros, 1) == 0:
        zeros += 1
    if zeros > 40:
        return -1, position
    value = _get(data, position + zeros, zeros + 1)
    return value, position + 2 * zeros + 1


@kernel
def _read(data: UInt8, count: int, d: int, max_level: int, places: Int64, values: Int64) -> bool:
    position = 0
    place = -1
    for n in range(count):
        length, position = _get_gamma(data, position)
        if not 1 <= length <= 40:
            return False
        low = _get(data, position, length - 1)
        position += length - 1
        sign = _get(data, position, 1)
        position += 1
        level = 1
        if max_level > 1:
            level, position = _get_gamma(data, position)
        if low < 0 or sign < 0 or not 1 <= level <= max_level:
            return False
        place += (1 << (length - 1)) + low
        if place >= d:
            return False
        places[n] = place
        values[n] = -level if sign else level
    return 8 * data.size - position < 8 and _get(data, position, 8 * data.size - position) == 0


def read(data: UInt8, count: int, d: int, max_level: int) -> tuple[Int64, Int64]:
    """Return the positions of the `count` non-zero entries and their signed levels; `data` is untrusted."""
    if count > min(d, 4 * data.size):  # the shortest entry takes two bits
        raise CorruptMessage(f"{count} entries cannot be in {data.size} bytes")
    places = np.empty(count, dtype=np.int64)
    values = np.empty(count, dtype=np.int64)
    if not _read(data, count, d, max_level, places, values):
        raise CorruptMessage("the Elias codes do not decode")
    return places, values
