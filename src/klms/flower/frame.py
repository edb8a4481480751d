"""The frame of what a client sends through Flower: whose it is, of which round, and made against what.

0  magic "KF"   2  version   3  kind   4  round (u32)   8  client (u32)   12  fingerprint (8 bytes)   20  body   CRC32

A message of the codec knows by its own tag whether it is for this round; those of other schemes do not, and a server on
a network gets what was meant for an earlier round, or for another client. The fingerprint is of everything that the
client encoded against: the model, the side information, the scheme.
"""

import hashlib
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from klms.codec import CorruptMessage, KLMSError, SideInformationMismatch, UnsupportedMessage

MAGIC = b"KF"
VERSION = 1
ARRAYS, METHOD = 1, 2
"""The kinds of bodies: arrays of a model, or the message of a method."""

_HEADER = struct.Struct("<2sBBII8s")
_CRC = struct.Struct("<I")
OVERHEAD = _HEADER.size + _CRC.size


class WrongRound(SideInformationMismatch):
    """A sound message, of another round."""


@dataclass(frozen=True)
class Ticket:
    """What the server expects of one client in one round."""

    kind: int
    round: int
    client: int
    fingerprint: bytes

    def frame(self, body: bytes) -> bytes:
        """The payload."""
        head = _HEADER.pack(MAGIC, VERSION, self.kind, self.round, self.client, self.fingerprint)
        return head + body + _CRC.pack(zlib.crc32(body, zlib.crc32(head)))

    def open(self, payload: bytes) -> bytes:
        """The body of a payload that is what was expected. Nothing of it is trusted beyond its checksum."""
        if len(payload) < OVERHEAD:
            raise CorruptMessage(f"{len(payload)} bytes are too few for a payload")
        magic, version, kind, round_, client, fingerprint = _HEADER.unpack_from(payload)
        if magic != MAGIC:
            raise CorruptMessage("this is not a payload of klms: it does not begin with 'KF'")
        if version != VERSION:
            raise UnsupportedMessage(f"version {version}; this release reads version {VERSION}")
        if zlib.crc32(memoryview(payload)[: -_CRC.size]) != _CRC.unpack_from(payload, len(payload) - _CRC.size)[0]:
            raise CorruptMessage("the checksum does not match: the bytes were changed or cut on their way")
        if round_ != self.round:
            raise WrongRound(f"the payload is of round {round_}, this is round {self.round}")
        if (kind, client) != (self.kind, self.client):
            raise SideInformationMismatch("the payload is another client's, or of another kind")
        if fingerprint != self.fingerprint:
            raise SideInformationMismatch("the client encoded against another model or other side information")
        return payload[_HEADER.size : -_CRC.size]


def claimed_client(payload: bytes) -> int | None:
    """Whose a payload says it is, unchecked: to find the ticket that it must be opened with."""
    return int(_HEADER.unpack_from(payload)[4]) if len(payload) >= OVERHEAD else None


def fingerprint(parts: Iterable[bytes | memoryview]) -> bytes:
    """Eight bytes that differ when any part does."""
    state = hashlib.blake2b(digest_size=8)
    for part in parts:
        state.update(part)
    return state.digest()


def cause(error: KLMSError) -> str:
    """The word under which a bad payload is counted."""
    if isinstance(error, WrongRound):
        return "stale"
    return "mismatch" if isinstance(error, SideInformationMismatch) else "corrupt"


CAUSES = ("error", "missing", "corrupt", "stale", "mismatch")
"""Why a client that was asked did not count: it raised; it did not answer; and the three of `cause`."""

_NO_ANSWER = (3, 4, 5)  # of Flower's codes: the message or its reply expired, or the node is gone


def failure(code: int) -> str:
    """The word for a reply that is an error: of the client's app, or of Flower, which waited in vain."""
    return "missing" if code in _NO_ANSWER else "error"
