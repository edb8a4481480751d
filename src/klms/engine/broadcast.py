"""What the server sends a client at the start of a round: steps from a state that the client holds, or a snapshot.

States are numbered, and step `n` takes whoever holds state `n - 1` to state `n`. A client that was away gets the steps
that it missed, or a snapshot if that is smaller. Every message carries the digest of the state that it leads to, so
that no client trains on another: one whose digest differs says so, and gets a snapshot in the same round.

0  magic "KD"   2  version   3  kind   4  base (u32)   8  number (u32)   12  digest (8 bytes)   20  body   end-4  CRC32

The body of a snapshot is the state's; that of steps `base + 1` to `number` is the length (u32) and the bytes of each.
"""

import hashlib
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from klms.errors import CorruptMessage, UnsupportedMessage

_MAGIC = b"KD"
_VERSION = 1
_STEPS, _SNAPSHOT = 0, 1
_HEADER = struct.Struct("<2sBBII8s")
_LENGTH = struct.Struct("<I")
_CRC = struct.Struct("<I")
OVERHEAD = _HEADER.size + _CRC.size


@dataclass(frozen=True)
class Broadcast:
    """One message, parsed. It leads to state `number`, whose digest it carries."""

    number: int
    digest: bytes
    base: int
    """The state that the first step builds on."""
    steps: tuple[bytes, ...] = ()
    snapshot: bytes | None = None
    """The whole state, instead of steps."""

    def to_bytes(self) -> bytes:
        kind = _STEPS if self.snapshot is None else _SNAPSHOT
        head = _HEADER.pack(_MAGIC, _VERSION, kind, self.base, self.number, self.digest)
        body = b"".join(_LENGTH.pack(len(step)) + step for step in self.steps) if kind == _STEPS else self.snapshot
        message = head + (body or b"")
        return message + _CRC.pack(zlib.crc32(message))

    @classmethod
    def from_bytes(cls, data: bytes) -> "Broadcast":
        """Undo `to_bytes`; raise a `KLMSError` if the bytes are not a broadcast. What they carry is unchecked."""
        if len(data) < OVERHEAD or data[:2] != _MAGIC:
            raise CorruptMessage("this is not a broadcast of klms: it does not begin with 'KD'")
        _, version, kind, base, number, digest = _HEADER.unpack_from(data)
        if version != _VERSION:
            raise UnsupportedMessage(f"broadcast version {version}; this release reads version {_VERSION}")
        if zlib.crc32(memoryview(data)[: -_CRC.size]) != _CRC.unpack_from(data, len(data) - _CRC.size)[0]:
            raise CorruptMessage("the checksum of the broadcast does not match: the bytes were changed or cut")
        body = data[_HEADER.size : -_CRC.size]
        if kind == _SNAPSHOT:
            return cls(number, digest, base, snapshot=body)
        steps: list[bytes] = []
        place = 0
        while place < len(body) and len(steps) < number - base:
            (length,) = _LENGTH.unpack_from(body.ljust(place + _LENGTH.size, b"\0"), place)
            place += _LENGTH.size + length
            steps.append(body[place - length : place])
        if kind != _STEPS or place != len(body) or len(steps) != number - base:
            raise CorruptMessage(f"the broadcast does not hold the steps from state {base} to state {number}")
        return cls(number, digest, base, tuple(steps))


@dataclass(frozen=True)
class History:
    """The latest steps. Older ones are dropped once all together are larger than a snapshot, which is cheaper then."""

    number: int
    """The state that the last step leads to."""
    steps: tuple[bytes, ...] = ()

    def then(self, step: bytes, limit: int) -> "History":
        """Return the history with one more step, and at most `limit` bytes of steps and their lengths."""
        kept: list[bytes] = []
        room = limit
        for latest in (step, *reversed(self.steps)):
            room -= _LENGTH.size + len(latest)  # with its length, so that empty steps do not pile up either
            if room < 0:
                break
            kept.append(latest)
        return History(self.number + 1, tuple(reversed(kept)))

    def since(self, held: int) -> tuple[bytes, ...] | None:
        """Return the steps that a holder of this state lacks; None if there are none to lead on from it."""
        missing = self.number - held
        return None if not 0 <= missing <= len(self.steps) else self.steps[len(self.steps) - missing :]

    def size_since(self, held: int) -> int | None:
        steps = self.since(held)
        return None if steps is None else sum(map(len, steps)) + _LENGTH.size * len(steps)


@dataclass
class Sender:
    """Chooses for every client between the steps that it lacks and a snapshot, whichever is smaller."""

    history: History
    digest: bytes
    make_snapshot: Callable[[], bytes]
    """Returns the bytes of a snapshot; called at most once, and only if it may be smaller than steps."""
    worth_a_snapshot: int
    """Bytes of steps below which no snapshot is made to compare with."""
    _made: dict[int | None, bytes] = field(default_factory=dict)

    def message(self, held: int | None) -> bytes:
        """Return the message for a client that holds state `held`; None for a client that holds nothing of use."""
        if held not in self._made:
            self._made[held] = self._message(held)
        return self._made[held]

    def _message(self, held: int | None) -> bytes:
        number = self.history.number
        if held is None:
            return Broadcast(number, self.digest, number, snapshot=self.make_snapshot()).to_bytes()
        steps, size = self.history.since(held), self.history.size_since(held)
        if steps is None or size is None:
            return self.message(None)
        if size > self.worth_a_snapshot and size + OVERHEAD > len(self.message(None)):
            return self.message(None)
        return Broadcast(number, self.digest, held, steps).to_bytes()


def carried_share(bits: float) -> float:
    """Return the share of what a coded difference lost that is carried over, at so many bits per parameter.

    At low rates clients are many rounds behind the server, and send again and again what it already has: all of that
    together would overshoot. From 0.3 bits on, everything is carried over. Measured in docs/downlink.md.
    """
    return min(1.0, 0.75 + bits * 5 / 6)


def digest_of(number: int, arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Return eight bytes that differ when the number or any array differs."""
    state = hashlib.blake2b(str(number).encode(), digest_size=8)
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        state.update(f"|{name}|{array.dtype.str}|{array.shape}|".encode())
        state.update(array.reshape(-1).view(np.uint8).data)
    return state.digest()
