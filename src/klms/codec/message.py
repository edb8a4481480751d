"""The byte format of messages; `docs/format.md` describes every byte.

    0  magic "KL"     4  family    8  d (u32)     16  agreement tag (8 bytes)   28  side scalars (f32 or f16 each)
    2  version        5  bits, memory  12  M (u32)     24  mean block KL (f32)           block sizes, if carried
    3  flags          6  scalars (u16)                                              indices, CRC32 (u32)

The reader trusts nothing: the memory that it allocates is bounded by the length of its input.
"""

import hashlib
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from klms.codec.block_sizes import pack_sizes, unpack_sizes
from klms.codec.blocks import Blocks, largest_piece
from klms.codec.candidates import MAX_BITS
from klms.codec.distributions import FAMILIES, Distribution
from klms.errors import CorruptMessage, InvalidArgument, UnsupportedMessage
from klms.numerics.bit_packing import pack_bits, unpack_bits
from klms.numerics.jit import UInt16
from klms.numerics.philox import SharedKey

MAGIC = b"KL"
VERSION = 2
"""Version of messages with memory. Messages without memory have version 1; their byte 5 is the number of index bits."""
MAX_SCALARS = (1 << 16) - 1

_CARRIES_BLOCKS = 1
_SHORT_SCALARS = 2  # scalars are float16, which the writer uses if nothing is lost
_HEADER = struct.Struct("<2sBBBBHII8sf")
_CRC = struct.Struct("<I")


@dataclass(frozen=True)
class MessageInfo:
    """Header of a message, readable without `p` or the key."""

    version: int
    family: str
    bits: int  # bits per index, one index per block
    memory: int  # bits of earlier indices that a block's candidates depend on
    d: int
    blocks: int  # number of blocks
    carries_blocks: bool
    mean_kl: float  # mean KL per block, in bits
    scalars: tuple[float, ...]
    tag: bytes
    total_bytes: int
    scalar_bytes: int
    block_size_bytes: int
    index_bytes: int

    @property
    def bits_per_parameter(self) -> float:
        """Size of the whole message, including header and checksum, in bits per coordinate."""
        return 8 * self.total_bytes / self.d


def agreement_tag(p: Distribution, blocks: Blocks, key: SharedKey) -> bytes:
    """Hash what both sides must agree on. Tags of different `p`, blocks or keys are equal with probability 2^-64."""
    sizes = blocks.sizes.astype("<u4").tobytes()
    return hashlib.sha256(b"klms agreement 1" + p.digest + SharedKey.checked(key).to_bytes() + sizes).digest()[:8]


@dataclass(frozen=True)
class Chosen:
    """The encoder's selection, before it is written as bytes."""

    indices: UInt16  # index of the selected candidate of each block
    mean_kl: float  # mean KL per block, in bits


def write(
    chosen: Chosen,
    p: Distribution,
    blocks: Blocks,
    key: SharedKey,
    bits: int,
    memory: int,
    scalars: Sequence[float],
    send_blocks: bool,
) -> bytes:
    """Write a message."""
    if len(scalars) > MAX_SCALARS:
        raise InvalidArgument(f"there are {len(scalars)} scalars; a message holds at most {MAX_SCALARS}")
    with np.errstate(over="ignore"):
        sides = np.asarray(scalars, dtype="<f4")
        short = sides.astype("<f2")
    if sides.ndim != 1 or not np.isfinite(sides).all():
        raise InvalidArgument("scalars must be a list of finite float32 numbers")
    lossless = bool(sides.size and (short == sides).all())
    header = _HEADER.pack(
        MAGIC,
        VERSION if memory else 1,
        _CARRIES_BLOCKS * send_blocks | _SHORT_SCALARS * lossless,
        p.number,
        memory << 4 | bits - 1 if memory else bits,
        len(sides),
        blocks.d,
        len(blocks),
        agreement_tag(p, blocks, key),
        min(chosen.mean_kl, float(np.finfo(np.float32).max)),
    )
    sizes = b""
    if send_blocks:
        sizes = bytes([blocks.group]) + pack_sizes(blocks.pieces.sizes) if memory else pack_sizes(blocks.sizes)
    body = header + (short if lossless else sides).tobytes() + sizes + pack_bits(chosen.indices, bits).tobytes()
    return body + _CRC.pack(zlib.crc32(body))


@dataclass(frozen=True)
class Message:
    """A message whose header and checksum have been checked."""

    data: bytes
    header: MessageInfo

    def blocks(self, max_size: int) -> Blocks:
        """Read the carried block map; it is refused unless `adaptive_blocks` can have cut it with `max_size`.

        The work is bounded by `max_size` and by the header's numbers of blocks and coordinates.
        """
        start = _HEADER.size + self.header.scalar_bytes
        section = self.data[start : start + self.header.block_size_bytes]
        if self.header.version == 1:
            return Blocks.of_sizes(unpack_sizes(section, self.header.blocks, self.header.d, max_size))
        group = section[0] if section else 0
        if group == 0 or self.header.blocks % group:
            raise CorruptMessage(f"{self.header.blocks} blocks cannot be in groups of {group}")
        most = largest_piece(max_size, group) + group - 1  # the last piece may have absorbed a smaller one
        pieces = unpack_sizes(section[1:], self.header.blocks // group, self.header.d, most)
        if pieces.min() < group:
            raise CorruptMessage(f"a piece of {pieces.min()} coordinates cannot hold {group} blocks")
        return Blocks.divided(Blocks.of_sizes(pieces), group)

    def indices(self) -> UInt16:
        end = len(self.data) - _CRC.size
        packed = np.frombuffer(self.data, dtype=np.uint8)[end - self.header.index_bytes : end]
        used = self.header.blocks * self.header.bits % 8
        if used and packed[-1] >> used:
            raise CorruptMessage("the bits after the last index are not zero")
        return unpack_bits(packed, self.header.blocks, self.header.bits)


def inspect(message: bytes) -> MessageInfo:
    """Read the header of a message without `p` or the key; raise `CorruptMessage` or `UnsupportedMessage`."""
    return parse(message).header


def parse(data: bytes | bytearray | memoryview) -> Message:
    """Check the header and the checksum of a message, given as any bytes-like object."""
    message = data if isinstance(data, bytes) else memoryview(data).tobytes()
    if len(message) < _HEADER.size + _CRC.size:
        raise CorruptMessage(f"the message has {len(message)} bytes, which is too short")
    magic, version, flags, family, bits, scalars, d, blocks, tag, mean_kl = _HEADER.unpack_from(message)
    if magic != MAGIC:
        raise CorruptMessage("not a klms message: it does not begin with 'KL'")
    if version not in (1, VERSION):
        raise UnsupportedMessage(f"the message has format version {version}; this release reads 1 to {VERSION}")
    if zlib.crc32(memoryview(message)[: -_CRC.size]) != _CRC.unpack_from(message, len(message) - _CRC.size)[0]:
        raise CorruptMessage("the checksum does not match: the bytes were changed or truncated in transit")
    if flags & ~(_CARRIES_BLOCKS | _SHORT_SCALARS):
        raise UnsupportedMessage(f"flags {flags:#04x} are unknown in format version {version}")
    if family not in FAMILIES:
        raise UnsupportedMessage(f"family {family} is unknown in format version {version}")
    memory = 0
    if version > 1:
        memory, bits = bits >> 4, (bits & 15) + 1
        if memory == 0:
            raise CorruptMessage("the header has no memory; such a message has format version 1")
    if not 1 <= bits <= MAX_BITS - memory:
        raise CorruptMessage(
            f"the header has {bits} bits per index and {memory} bits of memory; 1 to {MAX_BITS} in all are possible"
        )
    if not 1 <= blocks <= d:
        raise CorruptMessage(f"the header has {blocks} blocks for {d} coordinates")
    carries_blocks = bool(flags & _CARRIES_BLOCKS)
    index_bytes = (blocks * bits + 7) // 8
    letter, width = ("e", 2) if flags & _SHORT_SCALARS else ("f", 4)
    block_size_bytes = len(message) - _HEADER.size - width * scalars - index_bytes - _CRC.size
    if block_size_bytes < 0 or (block_size_bytes > 0 and not carries_blocks):
        raise CorruptMessage(f"the length of {len(message)} bytes contradicts the header")
    sides = struct.unpack_from(f"<{scalars}{letter}", message, _HEADER.size)
    if not all(map(math.isfinite, (mean_kl, *sides))) or mean_kl < 0:
        raise CorruptMessage("the mean KL or a side scalar is not finite, or the mean KL is negative")
    lengths = (len(message), width * scalars, block_size_bytes, index_bytes)
    name = FAMILIES[family]
    return Message(
        message, MessageInfo(version, name, bits, memory, d, blocks, carries_blocks, mean_kl, sides, tag, *lengths)
    )
