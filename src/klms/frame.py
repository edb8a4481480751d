"""The common frame of messages and checkpoints: the kind of content, what it belongs to, and a checksum.

0  magic "KX"   2  version   3  kind   4  first (u32)   8  second (u32)   12  digest (8 bytes)   20  body   end-4  CRC32

Two numbers and a digest say what a frame belongs to. In requests and replies they are the round, the number of the
message within the round, and a fingerprint of everything that both sides must share to understand each other. In
broadcasts they are the state that the steps build on, the state that they lead to, and the digest of that state. So a
reply from an earlier round, from another client or from a client with another model is recognised before it is decoded.
docs/format.md describes the other kinds.

A reader for an older version belongs in `Frame.from_file`.
"""

import hashlib
import io
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from klms.container import little
from klms.errors import CorruptMessage, KLMSError, OutsizedMessage, SideInformationMismatch, UnsupportedMessage

MAGIC = b"KX"
VERSION = 1
_HEADER = struct.Struct("<2sBBII8s")
_CRC = struct.Struct("<I")
_PIECE = 1 << 20  # bytes of a file at a time
BODY = _HEADER.size
"""Bytes before the body."""
OVERHEAD = BODY + _CRC.size


class Kind(IntEnum):
    """What a frame holds."""

    REQUEST = 1
    REPLY = 2
    LOST = 3
    """Sent by a client that does not hold the state that a broadcast builds on."""
    STEPS = 4
    SNAPSHOT = 5
    JUMP = 6
    METHOD = 7
    """The message of a method of klms."""
    UPDATE = 8
    """A message of `klms.compress`."""
    CHECKPOINT = 9
    MODEL = 10
    """An exported model."""
    RESIDUAL = 11
    """The state of `klms.ErrorFeedback`."""
    SERVER = 12
    """The state of a `klms.Server`."""
    CLIENT = 13
    """The state of a `klms.Client`."""


class WrongRound(SideInformationMismatch):
    """The frame is sound but belongs to another round."""


class LostAgain(SideInformationMismatch):
    """A client claims once more that it does not hold the model."""


@dataclass(frozen=True)
class Frame:
    """One frame, parsed. Its body is still untrusted."""

    kind: Kind
    first: int
    second: int
    digest: bytes
    body: bytes = b""

    def to_bytes(self) -> bytes:
        header = _HEADER.pack(MAGIC, VERSION, self.kind, self.first, self.second, self.digest)
        checksum = zlib.crc32(self.body, zlib.crc32(header))
        return b"".join([header, self.body, _CRC.pack(checksum)])

    @classmethod
    def from_bytes(cls, data: bytes, *expected: Kind) -> "Frame":
        """Undo `to_bytes`; raise a `KLMSError` unless the bytes are a frame of one of the expected kinds."""
        return replace(cls.from_file(io.BytesIO(data), *expected), body=data[BODY : -_CRC.size])

    @classmethod
    def from_file(cls, file: IO[bytes], *expected: Kind) -> "Frame":
        """Check the frame in a file, and return it without its body, which is never in memory as a whole."""
        left = file.seek(0, io.SEEK_END) - _CRC.size
        file.seek(0)
        header = file.read(BODY)
        if left < BODY or header[:2] != MAGIC:
            raise CorruptMessage("these bytes were not written by klms: they do not begin with 'KX'")
        _, version, kind, first, second, digest = _HEADER.unpack(header)
        if version != VERSION:
            raise UnsupportedMessage(f"the frame has version {version}; this release reads version {VERSION}")
        checksum = zlib.crc32(header)
        left -= BODY
        while left and (part := file.read(min(left, _PIECE))):
            checksum = zlib.crc32(part, checksum)
            left -= len(part)
        if _CRC.pack(checksum) != file.read():
            raise CorruptMessage("the checksum does not match: the bytes were changed or cut in transit")
        if kind not in expected:
            wanted = " or ".join(one.name.lower() for one in expected)
            raise CorruptMessage(f"the frame is of kind {kind}; expected: {wanted}")
        return cls(Kind(kind), first, second, digest)

    def check_belongs_to(self, expected: "Frame") -> None:
        """Raise an error unless this frame belongs to the same round, message and model as the expected frame."""
        if self.first != expected.first:
            raise WrongRound(f"the reply is of round {self.first}, this is round {expected.first}")
        if self.second != expected.second:
            raise SideInformationMismatch(f"the reply has number {self.second}; number {expected.second} was expected")
        if self.digest != expected.digest:
            raise SideInformationMismatch("the client encoded against another model or other side information")


class FrameWriter:
    """Writes a frame to a file in parts, so that its body is never in memory as a whole."""

    def __init__(self, file: IO[bytes], frame: Frame) -> None:
        self._file = file
        self._checksum = 0
        self.written = 0
        """Bytes written so far."""
        self.write(_HEADER.pack(MAGIC, VERSION, frame.kind, frame.first, frame.second, frame.digest))

    def write(self, part: bytes | memoryview) -> None:
        """Write the next part of the body."""
        self._checksum = zlib.crc32(part, self._checksum)
        self._file.write(part)
        self.written += len(part)

    def finish(self) -> int:
        """Write the checksum; return the number of bytes of the whole frame."""
        self.write(_CRC.pack(self._checksum))
        return self.written


def body_in(file: IO[bytes]) -> bytes:
    """Return the body of the frame in a file, after `Frame.from_file` has checked it."""
    file.seek(BODY)
    return file.read()[: -_CRC.size]


def fingerprint(parts: Iterable[bytes | memoryview]) -> bytes:
    """Return eight bytes that differ when any part differs."""
    state = hashlib.blake2b(digest_size=8)
    for part in parts:
        state.update(part)
    return state.digest()


def digest_of(number: int, arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Return eight bytes that differ when the number or any array differs."""
    state = hashlib.blake2b(str(number).encode(), digest_size=8)
    for name in sorted(arrays):
        array = little(arrays[name])
        state.update(f"|{name}|{array.dtype.str}|{array.shape}|".encode())
        state.update(array.reshape(-1).view(np.uint8).data)
    return state.digest()


CAUSES = ("error", "missing", "corrupt", "stale", "mismatch", "outsized", "lost")
"""Causes of a missing or refused reply: the client failed, did not answer, or sent one of five kinds of bad replies."""


def cause_of(error: KLMSError) -> str:
    """Return the cause under which a bad reply is counted."""
    if isinstance(error, WrongRound):
        return "stale"
    if isinstance(error, OutsizedMessage):
        return "outsized"
    if isinstance(error, LostAgain):
        return "lost"
    return "mismatch" if isinstance(error, SideInformationMismatch) else "corrupt"
