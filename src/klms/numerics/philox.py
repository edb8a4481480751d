"""Shared randomness: 16-bit words from Philox4x32-10 (Salmon et al., 2011), addressed by `(seed, round, client)`.

Philox is a function of a 128-bit counter and a 64-bit key, so any word of any message can be computed on its own, by
any thread and in any order. The seed is the key; the counter holds values that must never repeat under one seed:

    counter = (index, round, client mod 2^32, client div 2^32)

Each call yields eight words, lowest first: word `n` of a stream is half `n mod 2` of output `(n mod 8) div 2` of the
call with index `stream + n div 8`. These are all the streams, with the largest number of calls that each can make for
`d < 2^32` coordinates; no two overlap in the 32 bits of the index.

| stream | starts at | calls | words |
| --- | --- | --- | --- |
| `U_STREAM` | 0 | 2^29 | codec, QUIC-FL: one per coordinate |
| `WINDOW_STREAM` | 2^30 | 2^29 | codec: one per block |
| `G_STREAM` | 2^31 | < 2^18 | codec: 16 per row of the table of generators |
| `ROTATION_STREAMS` | 3 * 2^30 and 2^28 further | < 2^26 each | compressors: one sign bit per padded coordinate |
| `SUBSET_STREAM` | 3 * 2^30 + 2 * 2^28 | < 2^28 | compressors: which coordinates of a piece are coded |
| `DITHER_STREAM` | 3 * 2^30 + 3 * 2^28 | < 2^28 | compressors: one dither per outlier |
"""

import sys
from dataclasses import dataclass
from typing import Self

import numpy as np

from klms.errors import InvalidArgument
from klms.numerics.checks import integer
from klms.numerics.jit import UInt16, UInt64, inlined, kernel

if sys.byteorder != "little":
    raise ImportError("klms needs a little-endian machine: it views 64-bit integers as 16-bit words")


U_STREAM = 0
WINDOW_STREAM = 1 << 30
G_STREAM = 1 << 31
ROTATION_STREAMS = (3 << 30, (3 << 30) + (1 << 28))
SUBSET_STREAM = (3 << 30) + (2 << 28)
DITHER_STREAM = (3 << 30) + (3 << 28)

_MULTIPLIER_0 = np.uint64(0xD2511F53)
_MULTIPLIER_1 = np.uint64(0xCD9E8D57)
_WEYL_0 = np.uint64(0x9E3779B9)
_WEYL_1 = np.uint64(0xBB67AE85)
_LOW_32 = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


@dataclass(frozen=True)
class SharedKey:
    """Address of the shared randomness of one message, known to both sides. No two messages may share a key.

    >>> SharedKey(seed=7, round=3, client=12)
    SharedKey(seed=7, round=3, client=12)
    """

    seed: int
    round: int
    client: int

    def __post_init__(self) -> None:
        for name, bits in (("seed", 64), ("round", 32), ("client", 64)):
            object.__setattr__(self, name, integer(name, getattr(self, name), 0, (1 << bits) - 1))

    @classmethod
    def checked(cls, key: object) -> Self:
        """Return the caller's key; raise `InvalidArgument` if it is not a `SharedKey`."""
        if not isinstance(key, cls):
            raise InvalidArgument(
                f"key must be a klms.SharedKey(seed=..., round=..., client=...), three integers that sender and "
                f"receiver know and that no two messages share; got {key!r:.80}"
            )
        return key

    def words(self) -> UInt64:
        """Return the constant part of the counter and the Philox key, in the order of the arguments of `philox4x32`."""
        low = 0xFFFFFFFF
        halves = (self.round, self.client & low, self.client >> 32, self.seed & low, self.seed >> 32)
        return np.array(halves, dtype=np.uint64)

    def to_bytes(self) -> bytes:
        """Return the 20 little-endian bytes that enter the agreement tag."""
        return self.seed.to_bytes(8, "little") + self.round.to_bytes(4, "little") + self.client.to_bytes(8, "little")


@inlined
def philox4x32(
    c0: np.uint64, c1: np.uint64, c2: np.uint64, c3: np.uint64, k0: np.uint64, k1: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    """Apply ten rounds of Philox to 32-bit numbers. They are passed as uint64 so that a product keeps its high half."""
    for _ in range(10):
        product_0 = c0 * _MULTIPLIER_0
        product_1 = c2 * _MULTIPLIER_1
        c0 = (product_1 >> _32) ^ c1 ^ k0
        c1 = product_1 & _LOW_32
        c2 = (product_0 >> _32) ^ c3 ^ k1
        c3 = product_0 & _LOW_32
        k0 = (k0 + _WEYL_0) & _LOW_32
        k1 = (k1 + _WEYL_1) & _LOW_32
    return c0, c1, c2, c3


@kernel
def words(buffer: UInt64, first: int, n: int, stream: int, key: UInt64) -> UInt16:
    """Return words `first` to `first + n - 1` of a stream as a view of `buffer`, of size `buffer_size(n)`."""
    skipped = first & 7
    for call in range((skipped + n + 7) >> 3):
        index = np.uint64(stream + (first >> 3) + call)
        a, b, c, d = philox4x32(index, key[0], key[1], key[2], key[3], key[4])
        buffer[2 * call] = a | (b << _32)
        buffer[2 * call + 1] = c | (d << _32)
    return buffer.view(np.uint16)[skipped : skipped + n]


def drawn_words(key: SharedKey, stream: int, n: int, first: int = 0) -> UInt16:
    """Return words `first` to `first + n - 1` of a stream."""
    return words(np.empty(buffer_size(n), dtype=np.uint64), first, n, stream, key.words())


@kernel
def buffer_size(n: int) -> int:
    """Return the size of the buffer that `words` needs for `n` words, whichever word is the first."""
    return 2 * ((n + 7 >> 3) + 1)
