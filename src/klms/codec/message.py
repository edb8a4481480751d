"""The message: bytes, described one by one in `docs/format.md`.

    0  magic "KL"     4  family    8  d (u32)     16  agreement tag (8 bytes)   28  side scalars (f32 or f16 each)
    2  version        5  bits     12  M (u32)     24  mean block KL (f32)           block sizes, if carried
    3  flags          6  scalars (u16)                                              indices, CRC32 (u32)

The reader trusts nothing: whatever it allocates is bounded by the length of the bytes at hand.
"""

import hashlib
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from klms.codec._jit import kernel
from klms.codec.block_sizes import pack_sizes, unpack_sizes
from klms.codec.blocks import Blocks
from klms.codec.candidates import MAX_BITS
from klms.codec.distributions import Distribution
from klms.codec.errors import CorruptMessage, SideInformationMismatch, UnsupportedMessage
from klms.codec.philox import SharedKey

MAGIC = b"KL"
VERSION = 1
FAMILIES = {"bernoulli": 1, "categorical": 2, "gaussian": 3}
MAX_SCALARS = (1 << 16) - 1

_CARRIES_BLOCKS = 1
_SHORT_SCALARS = 2  # as float16, which the writer takes whenever it loses nothing
_HEADER = struct.Struct("<2sBBBBHII8sf")
_CRC = struct.Struct("<I")


@dataclass(frozen=True)
class MessageInfo:
    """What a message says of itself, readable without `p`."""

    version: int
    family: str
    bits: int
    """Bits of an index: each block was coded with `2^bits` candidates."""
    d: int
    blocks: int
    carries_blocks: bool
    mean_kl: float
    """Mean KL of a block, in bits."""
    scalars: tuple[float, ...]
    tag: bytes
    total_bytes: int
    scalar_bytes: int
    block_size_bytes: int
    index_bytes: int

    @property
    def bits_per_parameter(self) -> float:
        """Of the whole message, header and checks included."""
        return 8 * self.total_bytes / self.d


def agreement_tag(p: Distribution, blocks: Blocks, key: SharedKey) -> bytes:
    """Eight bytes that differ, but for one case in 2^64, when two sides hold another `p`, key or block map."""
    state = hashlib.sha256(b"klms agreement 1")
    state.update(p.digest)
    state.update(key.to_bytes())
    state.update(blocks.sizes.astype("<u4").data)
    return state.digest()[:8]


def write(
    p: Distribution,
    blocks: Blocks,
    key: SharedKey,
    *,
    bits: int,
    indices: npt.NDArray[np.uint16],
    mean_kl: float,
    scalars: Sequence[float],
    send_blocks: bool,
) -> bytes:
    """The message."""
    if len(scalars) > MAX_SCALARS:
        raise ValueError(f"scalars has {len(scalars)} numbers; a message holds at most {MAX_SCALARS}")
    with np.errstate(over="ignore"):
        sides = np.asarray(scalars, dtype="<f4")
    if sides.ndim != 1 or not np.isfinite(sides).all():
        raise ValueError("scalars must be a list of finite float32 numbers")
    with np.errstate(over="ignore"):
        short = sides.astype("<f2")
    lossless = bool(sides.size and (short == sides).all())
    header = _HEADER.pack(
        MAGIC,
        VERSION,
        _CARRIES_BLOCKS * send_blocks | _SHORT_SCALARS * lossless,
        FAMILIES[p.family],
        bits,
        len(sides),
        blocks.d,
        len(blocks),
        agreement_tag(p, blocks, key),
        min(mean_kl, float(np.finfo(np.float32).max)),
    )
    sizes = pack_sizes(blocks.sizes) if send_blocks else b""
    body = header + (short if lossless else sides).tobytes() + sizes + pack_bits(indices, bits).tobytes()
    return body + _CRC.pack(zlib.crc32(body))


def as_bytes(message: bytes | bytearray | memoryview) -> bytes:
    """A message in any bytes-like dress, as bytes."""
    return message if isinstance(message, bytes) else bytes(memoryview(message).tobytes())


def inspect(message: bytes) -> MessageInfo:
    """The header of a message, checked; neither `p` nor the key is needed.

    Raises `CorruptMessage` or `UnsupportedMessage`.
    """
    message = as_bytes(message)
    if len(message) < _HEADER.size + _CRC.size:
        raise CorruptMessage(f"{len(message)} bytes are too few for a message")
    magic, version, flags, family, bits, scalars, d, blocks, tag, mean_kl = _HEADER.unpack_from(message)
    if magic != MAGIC:
        raise CorruptMessage("this is not a klms message: it does not begin with 'KL'")
    if version != VERSION:
        raise UnsupportedMessage(f"format version {version}; this release reads version {VERSION}")
    if zlib.crc32(memoryview(message)[: -_CRC.size]) != _CRC.unpack_from(message, len(message) - _CRC.size)[0]:
        raise CorruptMessage("the checksum does not match: the bytes were changed or cut on their way")
    if flags & ~(_CARRIES_BLOCKS | _SHORT_SCALARS):
        raise UnsupportedMessage(f"flags {flags:#04x} are not of format version {VERSION}")
    names = {number: name for name, number in FAMILIES.items()}
    if family not in names:
        raise UnsupportedMessage(f"family {family} is not of format version {VERSION}")
    if not 1 <= bits <= MAX_BITS:
        raise CorruptMessage(f"{bits} bits an index; it must be 1 to {MAX_BITS}")
    if not 1 <= blocks <= d:
        raise CorruptMessage(f"{blocks} blocks over {d} coordinates")
    carries_blocks = bool(flags & _CARRIES_BLOCKS)
    index_bytes = (blocks * bits + 7) // 8
    letter, width = ("e", 2) if flags & _SHORT_SCALARS else ("f", 4)
    block_size_bytes = len(message) - _HEADER.size - width * scalars - index_bytes - _CRC.size
    if block_size_bytes < 0 or (block_size_bytes > 0 and not carries_blocks):
        raise CorruptMessage("the length does not fit the header")
    sides = struct.unpack_from(f"<{scalars}{letter}", message, _HEADER.size)
    if not all(map(math.isfinite, (mean_kl, *sides))) or mean_kl < 0:
        raise CorruptMessage("the mean KL or a side scalar is not a number it can be")
    return MessageInfo(
        version=version,
        family=names[family],
        bits=bits,
        d=d,
        blocks=blocks,
        carries_blocks=carries_blocks,
        mean_kl=mean_kl,
        scalars=sides,
        scalar_bytes=width * scalars,
        tag=tag,
        total_bytes=len(message),
        block_size_bytes=block_size_bytes,
        index_bytes=index_bytes,
    )


def carried_blocks(message: bytes, info: MessageInfo | None = None) -> Blocks:
    """The block map of a message that carries one. The work is bounded by the message's own size in blocks."""
    message = as_bytes(message)
    info = info or inspect(message)
    if not info.carries_blocks:
        raise SideInformationMismatch("the message carries no block map")
    start = _HEADER.size + info.scalar_bytes
    section = message[start : start + info.block_size_bytes]
    return Blocks.of_sizes(unpack_sizes(section, info.blocks, info.d))


def indices(message: bytes, info: MessageInfo) -> npt.NDArray[np.uint16]:
    """The index of every block."""
    end = len(message) - _CRC.size
    packed = np.frombuffer(message, dtype=np.uint8)[end - info.index_bytes : end]
    used = info.blocks * info.bits % 8
    if used and packed[-1] >> used:
        raise CorruptMessage("the bits after the last index are not zero")
    return unpack_bits(packed, info.blocks, info.bits)


@kernel
def pack_bits(values: npt.NDArray[np.uint16], bits: int) -> npt.NDArray[np.uint8]:
    """Bit `j` of value `m` becomes bit `m * bits + j` of the bytes, low bits first."""
    out = np.zeros((values.size * bits + 7) // 8, dtype=np.uint8)
    pending = 0
    held = 0
    place = 0
    for m in range(values.size):
        pending |= int(values[m]) << held
        held += bits
        while held >= 8:
            out[place] = pending & 255
            pending >>= 8
            held -= 8
            place += 1
    if held > 0:
        out[place] = pending
    return out


@kernel
def unpack_bits(packed: npt.NDArray[np.uint8], count: int, bits: int) -> npt.NDArray[np.uint16]:
    """Undo `pack_bits`."""
    out = np.empty(count, dtype=np.uint16)
    pending = 0
    held = 0
    place = 0
    for m in range(count):
        while held < bits:
            pending |= int(packed[place]) << held
            held += 8
            place += 1
        out[m] = pending & ((1 << bits) - 1)
        pending >>= bits
        held -= bits
    return out
