"""The wrapping of messages that are not the codec's: a header of 8 bytes and a checksum.

0  magic "KB"   2  version   3  scheme   4  d (u32)   8  payload   end-4  CRC32 (u32)
"""

import struct
import zlib

from klms.codec import CorruptMessage, SideInformationMismatch, UnsupportedMessage

MAGIC = b"KB"
VERSION = 1
SCHEMES = {
    "float32": 1,
    "sign": 2,
    "qsgd": 3,
    "mask": 4,
    "terngrad": 5,
    "drive": 6,
    "eden": 7,
    "topk": 8,
    "klms-rotated": 9,
}

_HEADER = struct.Struct("<2sBBI")
_CRC = struct.Struct("<I")
OVERHEAD = _HEADER.size + _CRC.size


def wrap(scheme: str, d: int, payload: bytes) -> bytes:
    """A message of `scheme`."""
    body = _HEADER.pack(MAGIC, VERSION, SCHEMES[scheme], d) + payload
    return body + _CRC.pack(zlib.crc32(body))


def unwrap(message: bytes, scheme: str, d: int) -> bytes:
    """The payload of a message of `scheme` for `d` parameters. Nothing of it is trusted beyond its checksum."""
    if len(message) < OVERHEAD:
        raise CorruptMessage(f"{len(message)} bytes are too few for a message")
    magic, version, number, claimed = _HEADER.unpack_from(message)
    if magic != MAGIC:
        raise CorruptMessage("this is not a message of a baseline scheme: it does not begin with 'KB'")
    if version != VERSION:
        raise UnsupportedMessage(f"version {version}; this release reads version {VERSION}")
    if zlib.crc32(memoryview(message)[: -_CRC.size]) != _CRC.unpack_from(message, len(message) - _CRC.size)[0]:
        raise CorruptMessage("the checksum does not match: the bytes were changed or cut on their way")
    if number not in SCHEMES.values():
        raise UnsupportedMessage(f"scheme {number} is not known to this release")
    if number != SCHEMES[scheme]:
        raise SideInformationMismatch(f"the message is of another scheme than {scheme}")
    if claimed != d:
        raise SideInformationMismatch(f"the message is for {claimed} parameters, the model has {d}")
    return bytes(message[_HEADER.size : -_CRC.size])
