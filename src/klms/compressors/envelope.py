"""The envelope, a header of 8 bytes and a checksum, of all messages except the codec's; and fields that schemes share.

0  magic "KB"   2  version   3  scheme   4  d (u32)   8  payload   end-4  CRC32 (u32)

The checksum covers the key and then the message, so that a message from another round, client or seed is refused like
a damaged one, at no cost in bytes. This is version 2; in version 1, which files use, the checksum covers the message
alone.
"""

import struct
import zlib
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from klms.codec import SharedKey
from klms.errors import CorruptMessage, SideInformationMismatch, UnsupportedMessage
from klms.numerics.jit import Float32

MAGIC = b"KB"
UNBOUND, BOUND = 1, 2
"""Versions: the checksum covers the message alone, or the key as well."""
LARGEST = 2.0**96  # so that everything computed from scales, levels and rotations stays finite
_BYTES_PER_PARAMETER, _SPARE_BYTES = 8, 1 << 14

_HEADER = struct.Struct("<2sBBI")
_CRC = struct.Struct("<I")
OVERHEAD = _HEADER.size + _CRC.size


class Header(NamedTuple):
    """Header of an envelope."""

    version: int
    scheme: int
    d: int


def read_header(message: bytes) -> Header:
    """Return the header of a message. Without the key, the checksum cannot be checked."""
    if len(message) < OVERHEAD:
        raise CorruptMessage(f"{len(message)} bytes are too few for a message")
    magic, version, scheme, d = _HEADER.unpack_from(message)
    if magic != MAGIC:
        raise CorruptMessage("this is not a message of a baseline scheme: it does not begin with 'KB'")
    if version not in (UNBOUND, BOUND):
        raise UnsupportedMessage(f"envelope version {version}; this release reads versions {UNBOUND} and {BOUND}")
    return Header(version, scheme, d)


def wrap(scheme: int, d: int, payload: bytes, key: SharedKey | None) -> bytes:
    """Return a payload with the header and the checksum of a message. The checksum covers the key, if there is one."""
    body = _HEADER.pack(MAGIC, UNBOUND if key is None else BOUND, scheme, d) + payload
    return body + _CRC.pack(zlib.crc32(body, _start(key)))


def unwrap(message: bytes, scheme: int, d: int, key: SharedKey | None, most: int | None = None) -> bytes:
    """Return the payload of a message of this scheme for `d` parameters; its content is still untrusted.

    A message of more than `most` bytes is refused before it is read. By default, `most` is more than any scheme needs.
    """
    most = _BYTES_PER_PARAMETER * d + _SPARE_BYTES if most is None else most
    if len(message) > most:
        raise CorruptMessage(f"{len(message)} bytes are too many for a message; there can be {most}")
    header = read_header(message)
    if header.version != (UNBOUND if key is None else BOUND):
        known = "messages have version 2, files version 1"
        raise UnsupportedMessage(f"envelope version {header.version}; {known}: update klms on the sending side")
    body = memoryview(message)[: -_CRC.size]
    if zlib.crc32(body, _start(key)) != _CRC.unpack_from(message, len(message) - _CRC.size)[0]:
        raise CorruptMessage(
            "the checksum does not match: the bytes were changed or cut in transit, or the message is of another "
            "round, client or seed"
        )
    if header.scheme != scheme:
        raise SideInformationMismatch(f"the message is of scheme {header.scheme}; scheme {scheme} was agreed")
    if header.d != d:
        raise SideInformationMismatch(f"the message is for {header.d} parameters, but the model has {d}")
    return bytes(body[_HEADER.size :])


def _start(key: SharedKey | None) -> int:
    return 0 if key is None else zlib.crc32(key.to_bytes())


def write_scales(scales: npt.NDArray[np.floating]) -> bytes:
    """Return norms or scales as bytes, f32 each."""
    return scales.astype("<f4").tobytes()


def read_scales(payload: bytes, count: int) -> tuple[Float32, bytes]:
    """Return `count` scales and the bytes after them."""
    scales, rest = read_numbers(payload, np.dtype("<f4"), count, "scales")
    if not ((scales >= 0) & (scales <= LARGEST)).all():
        raise CorruptMessage(f"a scale is negative, above {LARGEST:g} or not a number")
    return scales.astype(np.float32), rest


def write_magnitudes(magnitudes: npt.NDArray[np.floating]) -> bytes:
    """Return magnitudes as bytes: the largest one (f32), and each as a fraction of it (f16)."""
    largest = magnitudes.max(initial=0.0)
    return write_scales(np.array([largest])) + (magnitudes / (largest or 1.0)).astype("<f2").tobytes()


def read_magnitudes(payload: bytes, count: int) -> tuple[Float32, bytes]:
    """Return `count` magnitudes and the bytes after them."""
    (largest,), rest = read_scales(payload, 1)
    fractions, rest = read_numbers(rest, np.dtype("<f2"), count, "magnitudes")
    if not ((fractions >= 0) & (fractions <= 1)).all():
        raise CorruptMessage("a magnitude is not between 0 and the largest")
    return largest * fractions.astype(np.float32), rest


def read_numbers(payload: bytes, kind: np.dtype[Any], count: int, name: str) -> tuple[npt.NDArray[Any], bytes]:
    """Return `count` numbers and the bytes after them. Errors call the numbers `name`."""
    size = kind.itemsize * count
    if len(payload) < size:
        raise CorruptMessage(f"{len(payload)} bytes cannot hold {count} {name}")
    return np.frombuffer(payload, kind, count), payload[size:]


def write_signs(plus: npt.NDArray[np.bool_]) -> bytes:
    """Return signs as bytes: one bit each, low bits first, 1 for plus."""
    return np.packbits(plus, bitorder="little").tobytes()


def read_signs(section: bytes, count: int) -> Float32:
    """Return signs as -1 and +1; `section` must hold exactly `count` of them."""
    packed = np.frombuffer(section, dtype=np.uint8)
    if packed.size != (count + 7) // 8 or (count % 8 and packed[-1] >> count % 8):
        raise CorruptMessage(f"{packed.size} bytes for {count} signs")
    return np.unpackbits(packed, count=count, bitorder="little").astype(np.float32) * 2 - 1
