"""The envelope of messages that are not the codec's: a header of 8 bytes and a checksum.

0  magic "KB"   2  version   3  scheme   4  d (u32)   8  payload   end-4  CRC32 (u32)
"""

import struct
import zlib

from klms.errors import CorruptMessage, SideInformationMismatch, UnsupportedMessage

MAGIC = b"KB"
VERSION = 1
RETIRED = {6: "DRIVE", 7: "EDEN", 9: "klms-rotated"}
"""Numbers of schemes before their rotation had a stream of shared randomness of its own."""

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
