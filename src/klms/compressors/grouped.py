"""Arrays in groups, each with its own compressor: one message per group, in the order of the groups.

Each message is preceded by its length (u32). The key of group `n` is the key of the update with `n 2^32` added to the
number of the client, so that no two groups share randomness.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from klms.codec import Decoded, SharedKey
from klms.compressors.base import Compressor, Side, Vector
from klms.compressors.layout import Layout
from klms.errors import CorruptMessage

_LENGTH = struct.Struct("<I")
OVERHEAD = _LENGTH.size
"""Bytes of a group in addition to its message."""


@dataclass(frozen=True)
class Grouped(Compressor):
    """Groups that together hold all arrays of a layout, each with a compressor that uses no side information."""

    layout: Layout
    groups: tuple[tuple[tuple[str, ...], Compressor], ...]

    def _encode(self, update: Vector, side: Side, key: SharedKey, rng: np.random.Generator) -> bytes:
        parts = []
        for places, compressor, own in self._groups(key):
            message = compressor._encode(np.concatenate([update[place] for place in places]), {}, own, rng)
            parts += [_LENGTH.pack(len(message)), message]
        return b"".join(parts)

    def _decode(self, message: bytes, side: Side, key: SharedKey) -> Decoded:
        vector = np.zeros(self.d, dtype=np.float32)
        at = 0
        for places, compressor, own in self._groups(key):
            start = at + _LENGTH.size
            at = start + (_LENGTH.unpack_from(message, at)[0] if start <= len(message) else 0)
            if not start <= at <= len(message):
                raise CorruptMessage("the message ends in the middle of a group")
            decoded = compressor._decode(message[start:at], {}, own).vector
            done = 0
            for place in places:
                size = place.stop - place.start
                vector[place] = decoded[done : done + size]
                done += size
        if at != len(message):
            raise CorruptMessage(f"the message has {len(message) - at} bytes after its groups")
        return Decoded(vector)

    def _groups(self, key: SharedKey) -> Iterator[tuple[list[slice], Compressor, SharedKey]]:
        """Yield the places of each group's arrays, its compressor, and its key."""
        by_name = dict(zip(self.layout.names, self.layout.parts, strict=True))
        for n, (names, compressor) in enumerate(self.groups):
            yield [by_name[name] for name in names], compressor, replace(key, client=key.client + (n << 32))
