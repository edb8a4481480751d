"""Frame around what a client sends through Flower: whose payload it is, of which round, and what it was made against.

0  magic "KF"   3  kind          8  client (u32)             20  length of the head (u32)                28  head
2  version      4  round (u32)   12  fingerprint (8 bytes)   24  CRC32 of bytes 0 to 23 and the head      then message

The message of the scheme fills the rest of the payload. It has a checksum of its own, so that every byte is covered by
exactly one. Only messages of the codec know which round they belong to; on a network, those of other schemes may arrive
in a later round or under another client's name. The fingerprint covers everything that the client encoded against: the
model, the side information and the scheme.
"""

import hashlib
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from klms.errors import CorruptMessage, KLMSError, OutsizedMessage, SideInformationMismatch, UnsupportedMessage

MAGIC = b"KF"
VERSION = 2
ARRAYS, METHOD = 1, 2
"""Kinds of payloads: arrays of a model, or the message of a method."""

_HEADER = struct.Struct("<2sBBII8sI")
_CRC = struct.Struct("<I")
OVERHEAD = _HEADER.size + _CRC.size

CAUSES = ("error", "missing", "corrupt", "stale", "mismatch", "outsized")
"""Why a reply does not count: the client raised an error, did not answer, or sent one of four kinds of bad replies."""
_NO_ANSWER = (3, 4, 5)  # Flower's error codes: the message or its reply expired, or the node is gone


class WrongRound(SideInformationMismatch):
    """The payload is sound but belongs to another round."""


@dataclass(frozen=True)
class MessageFrame:
    """Identity of a payload: the server expects one per client and round, and every payload carries its own."""

    kind: int
    round: int
    client: int
    fingerprint: bytes

    def write(self, message: bytes, head: bytes = b"") -> bytes:
        header = _HEADER.pack(MAGIC, VERSION, self.kind, self.round, self.client, self.fingerprint, len(head))
        return b"".join([header, _CRC.pack(zlib.crc32(head, zlib.crc32(header))), head, message])

    def check(self, received: "MessageFrame") -> None:
        """Raise an error if a payload was not made for this client, this round and this model."""
        if received.round != self.round:
            raise WrongRound(f"the payload is of round {received.round}, this is round {self.round}")
        if (received.kind, received.client) != (self.kind, self.client):
            got = f"the payload is of client {received.client} and kind {received.kind}"
            raise SideInformationMismatch(f"{got}; client {self.client} and kind {self.kind} were expected")
        if received.fingerprint != self.fingerprint:
            raise SideInformationMismatch("the client encoded against another model or other side information")


def read_frame(payload: bytes) -> tuple[MessageFrame, bytes, bytes]:
    """Return the frame, the head and the message of a payload. The message is unchecked, as is who sent it."""
    if len(payload) < OVERHEAD:
        raise CorruptMessage(f"{len(payload)} bytes are too few for a payload")
    magic, version, kind, round_, client, fingerprint_, length = _HEADER.unpack_from(payload)
    if magic != MAGIC:
        raise CorruptMessage("this is not a payload of klms: it does not begin with 'KF'")
    if version != VERSION:
        raise UnsupportedMessage(f"frame version {version}; this release reads version {VERSION}")
    head, message = payload[OVERHEAD : OVERHEAD + length], payload[OVERHEAD + length :]
    checksum = zlib.crc32(head, zlib.crc32(payload[: _HEADER.size]))
    if len(head) != length or checksum != _CRC.unpack_from(payload, _HEADER.size)[0]:
        raise CorruptMessage("the checksum of the frame does not match: the bytes were changed or cut in transit")
    return MessageFrame(kind, round_, client, fingerprint_), head, message


def fingerprint(parts: Iterable[bytes | memoryview]) -> bytes:
    """Return eight bytes that differ when any part differs."""
    state = hashlib.blake2b(digest_size=8)
    for part in parts:
        state.update(part)
    return state.digest()


def cause_of(error: KLMSError) -> str:
    """Return the cause under which a bad reply is counted."""
    if isinstance(error, WrongRound):
        return "stale"
    if isinstance(error, OutsizedMessage):
        return "outsized"
    return "mismatch" if isinstance(error, SideInformationMismatch) else "corrupt"


def cause_of_failure(code: int) -> str:
    """Return the cause for an error reply, made by the client's app or by Flower when no answer came."""
    return "missing" if code in _NO_ANSWER else "error"
