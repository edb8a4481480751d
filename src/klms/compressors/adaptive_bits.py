"""Numbers of unknown statistics as bytes: binary arithmetic coding with probabilities that adapt, as in lpaq (Mahoney).

A number is coded as its class, the bit length of itself plus one, given the class of the number before in the same
context, so that clusters cost less; then its lower bits, of which the highest adapts, too. Encoder and decoder keep an
interval of 32-bit integers, which each bit narrows in proportion to its probability; leading bytes that no longer
change are written or read.
"""

from typing import NamedTuple

import numpy as np

from klms.numerics.jit import Int64, UInt8, kernel

CLASSES = 26
"""Numbers are below `2^(CLASSES - 1) - 1`."""
_SLOWEST = 60  # a probability moves by one part in this many, at the least
_ONE = 1 << 16


class Coder(NamedTuple):
    """A coder of either direction. The models' axes: the context, the class before, the class, and within it."""

    data: UInt8
    interval: Int64  # first and last number, the place in `data`, and, for a decoder, the number read
    chances: Int64  # of a 1, of `_ONE`
    seen: Int64  # how often each model was used, up to `_SLOWEST`
    before: Int64  # class of the last number of each context


def new_coder(data: UInt8, contexts: int) -> Coder:
    """Return a coder that writes to `data`, or, after `start`, reads from it."""
    shape = (contexts, CLASSES, CLASSES, 2)
    chances = np.full(shape, _ONE // 2)
    return Coder(
        data, np.array([0, (1 << 32) - 1, 0, 0]), chances, np.zeros_like(chances), np.zeros(contexts, np.int64)
    )


@kernel
def start(coder: Coder) -> None:
    """Read the first bytes."""
    for _ in range(4):
        _shift_in(coder)


@kernel
def _shift_in(coder: Coder) -> None:
    place = coder.interval[2]
    byte = int(coder.data[place]) if place < coder.data.size else 0
    coder.interval[3] = (coder.interval[3] << 8 | byte) & 0xFFFFFFFF
    coder.interval[2] = place + 1


@kernel
def _code(coder: Coder, writing: bool, bit: int, chance: int) -> int:
    """Write a bit, or read and return one, whose chance of being 1 is `chance / _ONE`."""
    low, high = coder.interval[0], coder.interval[1]
    middle = low + ((high - low) >> 16) * chance
    if not writing:
        bit = int(coder.interval[3] <= middle)
    if bit:
        high = middle
    else:
        low = middle + 1
    while (low ^ high) >> 24 == 0:
        if writing:
            if coder.interval[2] < coder.data.size:  # else `finish` tells that there was too little room
                coder.data[coder.interval[2]] = high >> 24
            coder.interval[2] += 1
        else:
            _shift_in(coder)
        low = low << 8 & 0xFFFFFFFF
        high = (high << 8 & 0xFFFFFFFF) | 255
    coder.interval[0], coder.interval[1] = low, high
    return bit


@kernel
def _adapt(coder: Coder, writing: bool, bit: int, context: int, before: int, kind: int, within: int) -> int:
    chance, seen = coder.chances[context, before, kind, within], coder.seen[context, before, kind, within]
    bit = _code(coder, writing, bit, chance)
    # The limits keep both halves of the interval from vanishing.
    moved = chance + ((_ONE if bit else 0) - chance) * 2 // (2 * seen + 3)
    coder.chances[context, before, kind, within] = min(max(moved, 64), _ONE - 64)
    coder.seen[context, before, kind, within] = min(seen + 1, _SLOWEST)
    return bit


@kernel
def code_number(coder: Coder, writing: bool, number: int, context: int) -> int:
    """Write a number, or read and return one."""
    before = coder.before[context]
    kind = 0
    if writing:
        while (number + 1) >> (kind + 1):
            kind += 1
    at = 0
    while at < CLASSES - 1 and _adapt(coder, writing, int(kind > at), context, before, at, 0):
        at += 1
    coder.before[context] = at
    value = 1
    for k in range(at - 1, -1, -1):
        bit = ((number + 1) >> k) & 1
        if k == at - 1:
            bit = _adapt(coder, writing, bit, context, before, at, 1)
        else:
            bit = _code(coder, writing, bit, _ONE // 2)
        value = value << 1 | bit
    return value - 1


@kernel
def code_bit(coder: Coder, writing: bool, bit: int) -> int:
    """Write an even bit, or read and return one."""
    return _code(coder, writing, bit, _ONE // 2)


@kernel
def finish(coder: Coder) -> int:
    """Write what is needed to tell the last interval; return the number of bytes in all, written or not."""
    place = int(coder.interval[2])
    if place < coder.data.size:
        coder.data[place] = (coder.interval[0] >> 24) + int(coder.interval[0] & 0xFFFFFF > 0)
    return place + 1
