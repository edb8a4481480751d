"""What the server sends a client at the start of a round: steps from a state that the client holds, or a snapshot.

States are numbered, and step `n` takes whoever holds state `n - 1` to state `n`. A jump is a step that leads to state
`n` from the anchor, a state that everybody can have: state 0. A client that was away gets the steps that it missed, the
last jump and the steps after it, or a snapshot, whichever is smallest. Every message carries the digest of the state
that it leads to, so that no client trains on another: one whose digest differs says so, and gets a snapshot in the same
round.

0  magic "KD"   2  version   3  kind   4  base (u32)   8  number (u32)   12  digest (8 bytes)   20  body   end-4  CRC32

The body of a snapshot is the state's; that of steps is the length (u32) and the bytes of each. Kind 0 has `number -
base` steps. Kind 2 has fewer, and the first one is a jump from the base, to the state that the second builds on.
Messages of kind 2 have version 2, others version 1.
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
_STEPS, _SNAPSHOT, _JUMP = 0, 1, 2
_VERSIONS = {_STEPS: 1, _SNAPSHOT: 1, _JUMP: 2}
_HEADER = struct.Struct("<2sBBII8s")
_LENGTH = struct.Struct("<I")
_CRC = struct.Struct("<I")
OVERHEAD = _HEADER.size + _CRC.size
ANCHOR = 0
"""Number of the state that jumps start from: it follows from the seed, or is empty."""
SERVER = (1 << 64) - 1
"""Client number in the keys of the server's own messages; no client has it."""
_RARE = 64  # no snapshot is made while steps take less than this fraction of the state: half a bit per parameter


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

    @property
    def start(self) -> int:
        """Number of the state that the first step builds on, or, if that is a jump, of the one that it replaces."""
        return self.number - len(self.steps)

    @property
    def jumps(self) -> bool:
        return self.snapshot is None and self.base < self.start

    def to_bytes(self) -> bytes:
        kind = _SNAPSHOT if self.snapshot is not None else _JUMP if self.jumps else _STEPS
        head = _HEADER.pack(_MAGIC, _VERSIONS[kind], kind, self.base, self.number, self.digest)
        body = self.snapshot
        if body is None:
            body = b"".join(_LENGTH.pack(len(step)) + step for step in self.steps)
        return b"".join([head, body, _CRC.pack(zlib.crc32(body, zlib.crc32(head)))])

    @classmethod
    def from_bytes(cls, data: bytes) -> "Broadcast":
        """Undo `to_bytes`; raise a `KLMSError` if the bytes are not a broadcast. What they carry is unchecked."""
        if len(data) < OVERHEAD or data[:2] != _MAGIC:
            raise CorruptMessage("this is not a broadcast of klms: it does not begin with 'KD'")
        _, version, kind, base, number, digest = _HEADER.unpack_from(data)
        if version not in _VERSIONS.values():
            raise UnsupportedMessage(f"broadcast version {version}; this release reads versions 1 and 2")
        if zlib.crc32(memoryview(data)[: -_CRC.size]) != _CRC.unpack_from(data, len(data) - _CRC.size)[0]:
            raise CorruptMessage("the checksum of the broadcast does not match: the bytes were changed or cut")
        body = data[_HEADER.size : -_CRC.size]
        if _VERSIONS.get(kind) != version:
            raise CorruptMessage(f"a broadcast of version {version} cannot be of kind {kind}")
        if kind == _SNAPSHOT:
            return cls(number, digest, base, snapshot=body)
        steps: list[bytes] = []
        place = 0
        while place < len(body) and len(steps) < number - base:
            (length,) = _LENGTH.unpack_from(body.ljust(place + _LENGTH.size, b"\0"), place)
            place += _LENGTH.size + length
            steps.append(body[place - length : place])
        complete = base == ANCHOR and 0 < len(steps) < number if kind == _JUMP else len(steps) == number - base
        if place != len(body) or not complete:
            raise CorruptMessage(f"the broadcast does not hold the steps from state {base} to state {number}")
        return cls(number, digest, base, tuple(steps))


@dataclass(frozen=True)
class History:
    """The latest steps. Older ones are dropped once all together are larger than a snapshot, which is cheaper then."""

    number: int
    """The state that the last step leads to."""
    steps: tuple[bytes, ...] = ()
    anchored: bool = False
    """Whether the first step is a jump."""

    @property
    def start(self) -> int:
        """Number of the state before the first step."""
        return self.number - len(self.steps)

    def then(self, step: bytes, limit: int) -> "History":
        """Return the history with one more step, and at most `limit` bytes of steps and their lengths."""
        kept: list[bytes] = []
        room = limit
        for latest in (step, *reversed(self.steps)):
            room -= _LENGTH.size + len(latest)  # with its length, so that empty steps do not pile up either
            if room < 0:
                break
            kept.append(latest)
        return History(self.number + 1, tuple(reversed(kept)), self.anchored and len(kept) > len(self.steps))

    def jump(self, step: bytes) -> "History":
        """Return the history after a jump to the next state: no earlier step is needed any more."""
        return History(self.number + 1, (step,), anchored=True)

    def base(self, held: int) -> int:
        """Return the state from which a holder of this one is led on: its own, or the anchor."""
        return ANCHOR if self.anchored and held <= self.start else held

    def since(self, held: int) -> tuple[bytes, ...] | None:
        """Return the steps that a holder of this state lacks; None if there are none to lead on from it."""
        missing = self.number - held
        if missing < 0:
            return None
        if self.anchored and held <= self.start:
            return self.steps
        return None if missing > len(self.steps) else self.steps[len(self.steps) - missing :]

    def size_since(self, held: int) -> int | None:
        steps = self.since(held)
        return None if steps is None else sum(map(len, steps)) + _LENGTH.size * len(steps)


@dataclass
class Sender:
    """Chooses for every client between the steps that lead it on and a snapshot, whichever is smaller."""

    history: History
    digest: bytes
    make_snapshot: Callable[[], bytes]
    """Returns the bytes of a snapshot; called at most once, and only if it may be smaller than steps."""
    size: int
    """Bytes of the state itself."""
    snapshot_size: int | None = None
    """Bytes of a snapshot, if known before it is made."""
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
        if size > self.size // _RARE and size > self._size_of_snapshot():
            return self.message(None)
        return Broadcast(number, self.digest, self.history.base(held), steps).to_bytes()

    def _size_of_snapshot(self) -> int:
        return len(self.message(None)) - OVERHEAD if self.snapshot_size is None else self.snapshot_size


def digest_of(number: int, arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Return eight bytes that differ when the number or any array differs."""
    state = hashlib.blake2b(str(number).encode(), digest_size=8)
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        state.update(f"|{name}|{array.dtype.str}|{array.shape}|".encode())
        state.update(array.reshape(-1).view(np.uint8).data)
    return state.digest()
