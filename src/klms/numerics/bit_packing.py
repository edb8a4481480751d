"""Integers of a fixed bit width packed into bytes, lowest bits first."""

import numpy as np

from klms.numerics.jit import UInt8, UInt16, kernel


@kernel
def pack_bits(values: UInt16, bits: int) -> UInt8:
    """Pack the values without gaps: bit `j` of value `m` becomes bit `m * bits + j` of the result."""
    out = np.zeros((values.size * bits + 7) // 8, dtype=np.uint8)
    pending = held = position = 0
    for m in range(values.size):
        pending |= int(values[m]) << held
        held += bits
        while held >= 8:
            out[position] = pending & 255
            pending >>= 8
            held -= 8
            position += 1
    if held > 0:
        out[position] = pending
    return out


@kernel
def unpack_bits(packed: UInt8, count: int, bits: int) -> UInt16:
    """Invert `pack_bits` for `count` values."""
    out = np.empty(count, dtype=np.uint16)
    pending = held = position = 0
    for m in range(count):
        while held < bits:
            pending |= int(packed[position]) << held
            held += 8
            position += 1
        out[m] = pending & ((1 << bits) - 1)
        pending >>= bits
        held -= bits
    return out
