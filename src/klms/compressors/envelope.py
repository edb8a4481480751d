"""Messages that are not the codec's: their envelope (a header of 8 bytes and a checksum) and their common sections.

0  magic "KB"   2  version   3  scheme   4  d (u32)   8  payload   end-4  CRC32 (u32)
"""

import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from klms.errors import CorruptMessage, SideInformationMismatch, UnsupportedMessage
from klms.numerics.jit import Float32

MAGIC = b"KB"
VERSION = 1
RETIRED = {6: "DRIVE", 7: "EDEN", 9: "klms-rotated"}
"""Numbers of schemes before their rotation had a stream of shared randomness of its own. The next free number is 12."""
LARGEST = 2.0**96  # so that what is made of scales, levels and rotations stays finite

_HEADER = struct.Struct("<2sBBI")
_CRC = struct.Struct("<I")
OVERHEAD = _HEADER.size + _CRC.size


def wrap(scheme: int, d: int, payload: bytes) -> bytes:
    """Return the message of the scheme with this number."""
    body = _HEADER.pack(MAGIC, VERSION, scheme, d) + payload
    return body + _CRC.pack(zlib.crc32(body))


def unwrap(message: bytes, scheme: int, d: int) -> bytes:
    """Return the payload of a message of this scheme for `d` parameters; its content is still untrusted."""
    if len(message) < OVERHEAD:
        raise CorruptMessage(f"{len(message)} bytes are too few for a message")
    magic, version, number, claimed = _HEADER.unpack_from(message)
    if magic != MAGIC:
        raise CorruptMessage("this is not a message of a baseline scheme: it does not begin with 'KB'")
    if version != VERSION:
        raise UnsupportedMessage(f"envelope version {version}; this release reads version {VERSION}")
    if zlib.crc32(memoryview(message)[: -_CRC.size]) != _CRC.unpack_from(message, len(message) - _CRC.size)[0]:
        raise CorruptMessage("the checksum does not match: the bytes were changed or cut in transit")
    if number in RETIRED:
        raise UnsupportedMessage(
            f"scheme {number} is {RETIRED[number]} of an older release, which rotated differently: "
            "update klms on the sending side"
        )
    if number != scheme:
        raise SideInformationMismatch(f"the message is of scheme {number}; scheme {scheme} was agreed")
    if claimed != d:
        raise SideInformationMismatch(f"the message is for {claimed} parameters, but the model has {d}")
    return bytes(message[_HEADER.size : -_CRC.size])


def write_scales(scales: npt.NDArray[np.floating]) -> bytes:
    """Return norms or scales as bytes, f32 each."""
    return scales.astype("<f4").tobytes()


def read_scales(payload: bytes, count: int) -> tuple[Float32, bytes]:
    """Return `count` scales and the bytes after them."""
    scales, rest = read_numbers(payload, np.dtype("<f4"), count, "scales")
    if not ((scales >= 0) & (scales <= LARGEST)).all():
        raise CorruptMessage(f"a scale is negative, above {LARGEST:g} or not a number")
    return scales.astype(np.float32), rest


def read_numbers(payload: bytes, kind: np.dtype[Any], count: int, name: str) -> tuple[npt.NDArray[Any], bytes]:
    """Return `count` numbers, which the message calls by this name, and the bytes after them."""
    size = kind.itemsize * count
    if len(payload) < size:
        raise CorruptMessage(f"{len(payload)} bytes cannot hold {count} {name}")
    return np.frombuffer(payload, kind, count), payload[size:]


def write_signs(plus: npt.NDArray[np.bool_]) -> bytes:
    """Return signs as bytes: one bit each, low bits first, 1 for plus."""
    return np.packbits(plus, bitorder="little").tobytes()


def read_signs(section: bytes, count: int) -> Float32:
    """Return -1 and +1; `section` must hold exactly `count` of them."""
    packed = np.frombuffer(section, dtype=np.uint8)
    if packed.size != (count + 7) // 8 or (count % 8 and packed[-1] >> count % 8):
        raise CorruptMessage(f"{packed.size} bytes for {count} signs")
    return np.unpackbits(packed, count=count, bitorder="little").astype(np.float32) * 2 - 1
