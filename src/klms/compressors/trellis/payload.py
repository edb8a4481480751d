"""The payload of a message: a head, and the contents of the three stages.

The head holds log2 of the smallest and of the largest size of pieces, the memories of both trellises (signs in the high
half), and flags (u8 each). The content of `paths.py` is split: its first byte, the fine part of all rates, is in the
low four bits of the flags; its second part, the table of the pieces, follows the head. Then come, if flagged, the
content of the low-rank part and the content of the outliers, each as a section preceded by its length (u32). The rest
of the content of `paths.py` is last.
"""

import math
import struct
from typing import NamedTuple

import numpy as np

from klms.compressors.layout import Layout
from klms.compressors.rotation import LARGEST, SMALLEST
from klms.compressors.trellis.level_paths import MEMORIES
from klms.compressors.trellis.pieces import LEAST_LARGEST, Pieces
from klms.compressors.trellis.sign_paths import MAX_MEMORY
from klms.errors import CorruptMessage

_HEAD = struct.Struct("<BBBB")
HEAD_BYTES = _HEAD.size
ENTRY = np.dtype([("rate", "u1"), ("scale", "<u2")])
"""An entry of the table of pieces: the coarse part of the piece's rate, and the piece's scale."""
_LENGTH = 4  # bytes of the length of a section
_HAS_OUTLIERS, _HAS_LOW_RANK, _FINE = 1 << 7, 1 << 6, 0x0F


class Memories(NamedTuple):
    """Memory of both trellises: the numbers of bits of earlier indices on which their candidates depend."""

    signs: int
    levels: int


class Payload(NamedTuple):
    """The parts of a payload; a stage that sends nothing has an empty content."""

    pieces: Pieces
    memories: Memories
    low_rank: bytes
    outliers: bytes
    paths: bytes

    def to_bytes(self) -> bytes:
        flags = self.paths[0]
        if self.low_rank:
            flags |= _HAS_LOW_RANK
        if self.outliers:
            flags |= _HAS_OUTLIERS
        smallest, largest = self.pieces.smallest.bit_length() - 1, self.pieces.largest.bit_length() - 1
        head = _HEAD.pack(smallest, largest, self.memories.signs << 4 | self.memories.levels, flags)
        end = 1 + ENTRY.itemsize * self.pieces.sizes.size
        return b"".join([head, self.paths[1:end], section(self.low_rank), section(self.outliers), self.paths[end:]])

    @classmethod
    def read(cls, payload: bytes, layout: Layout, threads: int | None) -> "Payload":
        """Return the parts of an untrusted payload."""
        if len(payload) < HEAD_BYTES:
            raise CorruptMessage("the header is cut off")
        smallest, largest, both, flags = _HEAD.unpack_from(payload)
        if not SMALLEST <= 1 << smallest <= 1 << largest <= LARGEST or 1 << largest < LEAST_LARGEST:
            raise CorruptMessage(f"pieces cannot have 2^{smallest} to 2^{largest} entries")
        memories = Memories(both >> 4, both & 15)
        unknown = flags & ~(_HAS_OUTLIERS | _HAS_LOW_RANK | _FINE)
        if memories.signs > MAX_MEMORY or memories.levels not in MEMORIES or unknown:
            raise CorruptMessage("the trellis is not one of this format")
        pieces = Pieces(layout, 1 << smallest, 1 << largest, threads)
        end = HEAD_BYTES + ENTRY.itemsize * pieces.sizes.size
        if len(payload) < end:
            raise CorruptMessage(f"{len(payload)} bytes cannot hold the table of {pieces.sizes.size} pieces")
        rest = payload[end:]
        low_rank = outliers = b""
        if flags & _HAS_LOW_RANK:
            low_rank, rest = _read_section(rest, "products")
        if flags & _HAS_OUTLIERS:
            outliers, rest = _read_section(rest, "outliers")
        paths = bytes([flags & _FINE]) + payload[HEAD_BYTES:end] + rest
        return cls(pieces, memories, low_rank, outliers, paths)


def section(content: bytes) -> bytes:
    """Return the content of a stage as a section of the payload: its length and its bytes."""
    return len(content).to_bytes(_LENGTH, "little") + content if content else b""


def _read_section(payload: bytes, name: str) -> tuple[bytes, bytes]:
    """Return the content of a section, and the bytes after it."""
    end = _LENGTH + int.from_bytes(payload[:_LENGTH], "little")
    if not _LENGTH < end <= len(payload):
        raise CorruptMessage(f"the section of {name} is empty or cut off")
    return payload[_LENGTH:end], payload[end:]


def log_number(scale: float) -> int:
    """Return the 16-bit number nearest to a positive scale, on a logarithmic scale with 512 numbers per octave."""
    return min(max(round(512 * math.log2(scale)) + (1 << 15), 1), (1 << 16) - 1)


def log_scale(number: int) -> float:
    """Undo `log_number`."""
    return float(2.0 ** ((number - (1 << 15)) / 512))
