"""Numbers with unknown statistics as bytes: binary arithmetic coding with adaptive probabilities, as in lpaq (Mahoney).

A number `n` is coded in two parts. The first is its class, the integer part of `log2(n + 1)`; its probabilities depend
on the class of the previous number in the same context, so that clusters cost less. The second part holds the lower
bits: the highest of them is coded adaptively as well, and the others cost one bit each. Encoder and decoder keep an
interval of 32-bit integers, which each bit narrows in proportion to its probability; leading bytes that no longer
change are written or read.

A record is one or more numbers, each in a context of its own, and a sign, which follows the first number. Reading takes
at most four steps for every record, three for every further number, and two for every bit that was written, whatever
the bytes are.
"""

import math
from typing import NamedTuple

import numpy as np

from klms.numerics.jit import Int64, UInt8, kernel

CLASSES = 26
"""Numbers are below `2^(CLASSES - 1) - 1`."""
_SLOWEST = 60  # an update moves a probability by at least one part in this many
_ONE = 1 << 16
_LEAST = 64  # smallest probability of a 1 and of a 0, out of `_ONE`: keeps both parts of the interval non-empty
_32_BITS = 0xFFFFFFFF


class Coder(NamedTuple):
    """The state of a coder; a coder either writes or reads.

    Models are ordered by context, previous class, class, and place in the class.
    """

    data: UInt8
    interval: Int64  # its first and last number, the place in `data`, and, if the coder reads, the number read
    chances: Int64  # probability of a 1, out of `_ONE`, for each model
    seen: Int64  # how often each model was used, up to `_SLOWEST`
    before: Int64  # class of the last number of each context


def new_writer(room: int, contexts: int) -> Coder:
    """Return a coder that writes up to `room` bytes."""
    return _new_coder(np.zeros(room, dtype=np.uint8), contexts)


def new_reader(data: UInt8, contexts: int) -> Coder:
    """Return a coder that reads untrusted data; missing bytes are read as zeros."""
    coder = _new_coder(data, contexts)
    coder.interval[2] = 4
    coder.interval[3] = int.from_bytes(data[:4].tobytes().ljust(4, b"\0"), "big")
    return coder


def _new_coder(data: UInt8, contexts: int) -> Coder:
    models = contexts * CLASSES * CLASSES * 2
    interval = np.array([0, _32_BITS, 0, 0], dtype=np.int64)
    return Coder(data, interval, np.full(models, _ONE // 2), np.zeros(models, np.int64), np.zeros(contexts, np.int64))


@kernel
def _raised(chance: int, seen: int) -> int:
    """Return the chance of a 1, updated after a 1. Unsigned division takes half the time of signed division."""
    return min(chance + int(np.uint32(2 * (_ONE - chance)) // np.uint32(2 * seen + 3)), _ONE - _LEAST)


@kernel
def _lowered(chance: int, seen: int) -> int:
    """Return the chance of a 1, updated after a 0."""
    return max(chance - int(np.uint32(2 * chance + 2 * seen + 2) // np.uint32(2 * seen + 3)), _LEAST)


@kernel
def write_records(coder: Coder, contexts: UInt8, signed_zeros: bool, numbers: Int64, minus: UInt8) -> None:
    """Write a record for each row of `numbers`.

    An entry of `contexts` is the context of the first number of a row; further numbers have the contexts after it.
    Zeros have a sign only if `signed_zeros`.
    """
    for i in range(numbers.shape[0]):
        for j in range(numbers.shape[1]):
            kind = _write_number(coder, int(contexts[i]) + j, numbers[i, j] + 1)
            if j == 0 and (signed_zeros or kind > 0):
                _write_bit(coder, int(minus[i]), _ONE // 2)


@kernel
def _write_number(coder: Coder, context: int, value: int) -> int:
    """Write the number `value - 1`, and return its class."""
    first = 2 * CLASSES * (CLASSES * context + coder.before[context])
    kind = 0
    while value >> (kind + 1):
        kind += 1
    for at in range(min(kind + 1, CLASSES - 1)):
        _write_adaptively(coder, int(kind > at), first + 2 * at)
    if kind > 0:
        _write_adaptively(coder, (value >> (kind - 1)) & 1, first + 2 * kind + 1)
    for k in range(kind - 2, -1, -1):
        _write_bit(coder, (value >> k) & 1, _ONE // 2)
    coder.before[context] = kind
    return kind


@kernel
def _write_adaptively(coder: Coder, bit: int, model: int) -> None:
    chance, seen = coder.chances[model], coder.seen[model]
    _write_bit(coder, bit, chance)
    coder.chances[model] = _raised(chance, seen) if bit else _lowered(chance, seen)
    coder.seen[model] = min(seen + 1, _SLOWEST)


@kernel
def _write_bit(coder: Coder, bit: int, chance: int) -> None:
    """Write a bit whose chance of being 1 is `chance / _ONE`."""
    low, high = coder.interval[0], coder.interval[1]
    middle = low + ((high - low) >> 16) * chance
    if bit:
        high = middle
    else:
        low = middle + 1
    while (low ^ high) >> 24 == 0:
        if coder.interval[2] < coder.data.size:  # else `finish` reports too little room
            coder.data[coder.interval[2]] = high >> 24
        coder.interval[2] += 1
        low = low << 8 & _32_BITS
        high = (high << 8 & _32_BITS) | 255
    coder.interval[0], coder.interval[1] = low, high


def finish(coder: Coder) -> int:
    """Write the byte that identifies the last interval; return the total number of bytes, even if not all had room."""
    low, place = int(coder.interval[0]), int(coder.interval[2])
    if place < coder.data.size:
        coder.data[place] = (low >> 24) + int(low & 0xFFFFFF > 0)
    return place + 1


@kernel
def read_records(coder: Coder, contexts: UInt8, signed_zeros: bool, numbers: Int64, minus: UInt8) -> bool:
    """Read the records of `write_records`; return False as soon as the data end. Without a sign, `minus` is 0.

    One function with the interval in local variables takes half the time of several functions that share the arrays.
    """
    data, chances, seen_before, before = coder.data, coder.chances, coder.seen, coder.before
    low, high, place, number = coder.interval[0], coder.interval[1], coder.interval[2], coder.interval[3]
    for i in range(numbers.shape[0]):
        minus[i] = 0
        for j in range(numbers.shape[1]):
            context = int(contexts[i]) + j
            model = 2 * CLASSES * (CLASSES * context + before[context])
            kind = 0
            value = 1
            in_class = True
            while True:
                chance, seen = chances[model], seen_before[model]
                seen_before[model] = min(seen + 1, _SLOWEST)
                middle = low + ((high - low) >> 16) * chance
                if number <= middle:
                    high = middle
                    chances[model] = _raised(chance, seen)
                    bit = True
                else:
                    low = middle + 1
                    chances[model] = _lowered(chance, seen)
                    bit = False
                while (low ^ high) >> 24 == 0:
                    number = (number << 8 | _byte(data, place)) & _32_BITS
                    place += 1
                    low = low << 8 & _32_BITS
                    high = (high << 8 & _32_BITS) | 255
                if not in_class:
                    value = 3 if bit else 2
                    break
                if bit:
                    kind += 1
                    model += 2
                    if kind < CLASSES - 1:
                        continue
                elif kind == 0:
                    break
                in_class = False
                model += 1
            before[context] = kind
            signed = j == 0 and (signed_zeros or kind > 0)
            for _ in range(max(kind - 1, 0) + int(signed)):
                middle = low + ((high - low) >> 16 << 15)
                below = (number - middle - 1) >> 63  # all ones, or 0: a branch would be mispredicted half of the time
                high += (middle - high) & below
                low += (middle + 1 - low) & ~below
                while (low ^ high) >> 24 == 0:
                    number = (number << 8 | _byte(data, place)) & _32_BITS
                    place += 1
                    low = low << 8 & _32_BITS
                    high = (high << 8 & _32_BITS) | 255
                value = value << 1 | (below & 1)
            if signed:
                minus[i] = value & 1
                value >>= 1
            numbers[i, j] = value - 1
            if place > data.size + 4:
                return False
    coder.interval[0], coder.interval[1], coder.interval[2], coder.interval[3] = low, high, place, number
    return True


@kernel
def _byte(data: UInt8, place: int) -> int:
    return int(data[place]) if place < data.size else 0


@kernel
def geometric_bits(mean: float) -> float:
    """Return the entropy of a geometric variable with this mean, an estimate of the bits that a number takes."""
    mean = max(mean, 1e-3)
    return (mean + 1) * math.log2(mean + 1) - mean * math.log2(mean)
